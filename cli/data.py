"""`pilot data prepare`: a published data set as prompt sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.failure import WRONG_USE, Failure
from pipeline.datasets import SETS, prepare


def prepared(name: str, out: Path, files: Sequence[str], held_out: Sequence[str], instruction: str) -> str:
    """Writes the prompt sets into `out` and tells what is in them. Raises Failure."""
    given: dict[str, list[Path]] = {}
    for text in files:
        source, equals, path = text.partition("=")
        if not equals:
            sources = [s for part in SETS.get(name, ()) for s in part]
            if len(sources) > 1:
                raise Failure(
                    f"--from {text!r} does not say which source it is: give one of "
                    f"{', '.join(f'--from {s}=FILE' for s in sources)}",
                    WRONG_USE,
                )
            source, path = (sources or [name])[0], text
        given.setdefault(source, []).append(Path(path))
    try:
        written = prepare(name, out, given, held_out, instruction)
    except (ValueError, OSError) as error:
        raise Failure(str(error), WRONG_USE) from None
    return "\n".join(map(str, written))
