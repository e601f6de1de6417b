"""`pilot data`: published sets as prompt sets; files checked, converted, fetched; what training gives away."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cli.failure import WRONG_USE, Failure
from cli.table import table
from pipeline.config import ConfigProblems, parse_reward
from pipeline.datasets import SETS, prepare
from pipeline.decontamination import Hit, contaminated, numbered
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
    rewards: Sequence[str],
) -> PromptReport:
    """rewards: NAME for all rows but those that name a reward, ROW'S=NAME for those. Raises Failure for what is wrong
    with the question; what is wrong with the file is in the report."""
    try:
        named = {of: parse_reward({"name": name}) for of, _, name in (r.rpartition("=") for r in rewards)}
        return examine_source(
            source, mapping, against, against_mapping, model=model, max_tokens=max_tokens,
            reward=named.pop("", None), rewards=named,
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


def overlaps(train: str, evaluation: Sequence[str], mapping: str, n: int) -> dict[str, list[dict[str, object]]]:
    """Per held-out file the prompts that the training file gives away, with rows as in the files. Raises Failure."""
    try:
        train_rows, train_prompts = numbered(train, mapping)
        found = {}
        for path in evaluation:
            rows, prompts = numbered(path, mapping)
            found[path] = [_told(hit, rows, train_rows) for hit in contaminated(train_prompts, prompts, n)]
        return found
    except (ValueError, OSError) as error:
        raise Failure(str(error), WRONG_USE) from None


def _told(hit: Hit, rows: Sequence[str], train_rows: Sequence[str]) -> dict[str, object]:
    return {
        "kind": hit.kind, "row": rows[hit.evaluation], "id": hit.evaluation_id, "train_row": train_rows[hit.train],
        "train_id": hit.train_id, "n_train": hit.n_train, "shared": hit.shared,
    }  # fmt: skip


def overlaps_in_words(found: dict[str, list[dict[str, object]]]) -> str:
    lines = []
    for path, hits in found.items():
        lines.append(f"{path}: {len(hits)} of its prompts are given away")
        if hits:
            head = ("ROW", "KIND", "TRAIN ROW", "IN ALL", "SHARED")
            cells = [(h["row"], h["kind"], h["train_row"], h["n_train"], str(h["shared"])[:80]) for h in hits]
            lines.append(table([head, *(tuple(map(str, row)) for row in cells)]))
    return "\n".join(lines)
