"""`pilot data`: published sets as prompt sets; files checked, converted, fetched; what training gives away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from api.client import Client, proposed_name
from api.schemas import PromptSetDetail
from cli.failure import WRONG_USE, Failure, told
from cli.table import counted, table
from pipeline.config import ConfigProblems, DataConfig, MappingName, parse_reward
from pipeline.datasets import SETS, prepare
from pipeline.decontamination import Hit, contaminated, numbered
from pipeline.prompts import (
    HUB_WORDS,
    FileFault,
    PromptReport,
    columns_of,
    convert_prompts,
    examine_source,
    fetch_hub,
    hub_ref,
)


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


def described(source: str, mapping: str, keys: Mapping[str, str | None] | None = None, **more: Any) -> DataConfig:
    """How files are read, as a config says it. keys, more: by the names of the data section; None: its default. Raises
    Failure that names the option."""
    given = {name: value for name, value in {"mapping": mapping, **(keys or {}), **more}.items() if value is not None}
    own = [f"--{name.replace('_', '-')}" for name, value in (keys or {}).items() if value is not None]
    if own and "plain" not in (mapping, more.get("eval_mapping")):
        raise Failure(f"{own[0]} goes with --mapping plain; {mapping} has columns of its own", WRONG_USE)
    try:
        return DataConfig.model_validate({"train": source, "eval": source, **given})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        said = f"unknown; known: {', '.join(get_args(MappingName))}" if field.endswith("mapping") else first["msg"]
        raise Failure(f"--{field.replace('_', '-')}: {said} (given {given.get(field)!r})", WRONG_USE) from None


def validated(
    data: DataConfig,
    against: str | None,
    model: Path | None,
    max_tokens: int | None,
    rewards: Sequence[str],
) -> PromptReport:
    """Of data.train. against: the other side. rewards: NAME for all rows but those that name a reward, ROW'S=NAME for
    those. Raises Failure for what is wrong with the question; what is wrong with the file is in the report."""
    try:
        named = {of: parse_reward({"name": name}) for of, _, name in (r.rpartition("=") for r in rewards)}
        return examine_source(
            data, against, model=model, max_tokens=max_tokens, reward=named.pop("", None), rewards=named
        )  # fmt: skip
    except (ConfigProblems, FileFault) as error:
        raise Failure(str(error), WRONG_USE) from None


def converted(data: DataConfig, out: Path) -> str:
    """Raises Failure."""
    try:
        written = convert_prompts(data, out)
    except (ConfigProblems, OSError) as error:
        raise Failure(str(error), WRONG_USE) from None
    return f"{out}: {counted(len(written), 'prompt')}"


def uploaded(
    client: Client, source: str, name: str | None, mapping: str, keys: Mapping[str, str | None]
) -> PromptSetDetail:
    """source: a file, or a data set that the API fetches from the hub. Raises Failure that names the bad rows."""
    described(source, mapping, keys)
    name = name or proposed_name(source)
    if source.startswith("hub:"):
        with told():
            return client.add_from_hub(name, source, mapping=mapping, **keys)
    file = Path(source)
    try:
        with told(), file.open("rb") as content:
            return client.upload_prompts(name, file.name, content, mapping=mapping, **keys)
    except OSError as error:
        raise Failure(f"{file} cannot be read: {error.strerror}", WRONG_USE) from None


def fetched(source: str) -> str:
    """Raises Failure."""
    try:
        ref = hub_ref(source)
        if ref is None:
            raise FileFault(f"is not {HUB_WORDS}")
        return str(fetch_hub(ref).ref)
    except FileFault as error:
        raise Failure(f"{source} {error}") from None
    except OSError as error:
        raise Failure(f"{source} cannot be kept: {error.strerror or error}") from None


def overlaps(data: DataConfig, evaluation: Sequence[str], n: int) -> dict[str, list[dict[str, object]]]:
    """Per held-out file the prompts that data.train gives away, with rows as in the files. Raises Failure."""
    try:
        train_rows, train_prompts = numbered(data.train, columns_of(data.train, data, data.mapping))
        found = {}
        for path in evaluation:
            rows, prompts = numbered(path, columns_of(path, data, data.eval_mapping or data.mapping))
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
