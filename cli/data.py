"""`pilot data`: published data sets as prompt sets; files checked, converted, fetched from the hub."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.failure import WRONG_USE, Failure
from pipeline.config import ConfigProblems, parse_reward
from pipeline.datasets import SETS, prepare
from pipeline.prompts import FileFault, PromptReport, convert_prompts, examine_source, fetch_hub


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


def validated(
    source: str,
    mapping: str,
    against: str | None,
    against_mapping: str,
    model: Path | None,
    max_tokens: int | None,
    reward: str | None,
) -> PromptReport:
    """Raises Failure for what is wrong with the question; what is wrong with the file is in the report."""
    try:
        return examine_source(
            source, mapping, against, against_mapping, model=model, max_tokens=max_tokens,
            reward=None if reward is None else parse_reward({"name": reward}),
        )  # fmt: skip
    except (ConfigProblems, FileFault) as error:
        raise Failure(str(error), WRONG_USE) from None


def converted(source: str, out: Path, mapping: str, system: str | None, template: str | None) -> str:
    """Raises Failure."""
    try:
        written = convert_prompts(source, out, mapping, system, template)
    except (ConfigProblems, OSError) as error:
        raise Failure(str(error), WRONG_USE) from None
    return f"{out}: {len(written):,} prompts"


def fetched(source: str) -> str:
    """Raises Failure."""
    try:
        return str(fetch_hub(source))
    except FileFault as error:
        raise Failure(f"{source} {error}") from None
