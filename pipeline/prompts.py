"""Prompt sets: JSONL files of prompts with reference answers, each prompt named by the hash of its content.

A prompt's id does not depend on the file, the row or the order, so the history of a prompt survives edits of the
file around it. Nothing is accepted half: a file with one bad row is refused with every bad row named.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.config import (
    HELD_OUT,
    Benchmark,
    ConfigProblems,
    DataConfig,
    FieldProblem,
    RunConfig,
    VerlEngine,
    resolve,
)
from pipeline.engines.verl.compose import refused_overrides

MAX_BYTES = 1 << 30
SHOWN = 5  # rows named in one message


@dataclass(frozen=True, slots=True)
class Prompt:
    id: str
    text: str
    answer: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts in the order of their ids, so that the same content gives the same pool, whatever the file's order."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def digest(self) -> str:
        """Content hash of the whole set, 16 hex digits."""
        joined = "\n".join(p.id for p in self.prompts)
        return hashlib.sha256(joined.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.prompts)


def prompt_id(text: str, answer: str) -> str:
    """16 hex digits from prompt and answer; the separator keeps ("ab", "c") and ("a", "bc") apart."""
    return hashlib.sha256(f"{text}\x1f{answer}".encode()).hexdigest()[:16]


def load_prompts(path: Path, data: DataConfig, field: str) -> PromptSet:
    """Read a JSONL prompt set. `field` is the config field that named the file, for messages.

    Raises ConfigProblems: file missing or unreadable, empty, rows that are not objects or lack a field, and
    duplicate prompts (the same text twice, whether or not the answers agree).
    """

    def refuse(message: str) -> ConfigProblems:
        return ConfigProblems.one(field, str(path), message)

    try:
        status = path.stat()
        # A pipe or a device would keep the reader waiting, or never end.
        if not stat.S_ISREG(status.st_mode):
            raise refuse("is not a regular file; give a JSONL file with one prompt a line")
        if status.st_size > MAX_BYTES:
            raise refuse(f"has {status.st_size:,} bytes; at most {MAX_BYTES:,} are accepted")
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise refuse("no such file; give a JSONL file with one prompt a line") from None
    except (OSError, UnicodeDecodeError) as error:
        raise refuse(f"cannot be read as UTF-8 text: {error}") from None

    prompts: list[Prompt] = []
    faults: list[str] = []
    rows_of: dict[str, list[int]] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        fault, prompt = _parse_row(line, data)
        if prompt is None:
            faults.append(f"row {number}: {fault}")
            continue
        prompts.append(prompt)
        rows_of.setdefault(prompt.text, []).append(number)
    repeated = [rows for rows in rows_of.values() if len(rows) > 1]
    if faults:
        raise refuse(f"{_count(len(faults), 'bad row')}: {_some(faults)}")
    if not prompts:
        raise refuse("has no prompts; a prompt set needs at least one")
    if repeated:
        named = [f"rows {', '.join(map(str, rows[:SHOWN]))}" for rows in repeated]
        raise refuse(f"{_count(len(repeated), 'prompt')} more than once ({_some(named)}); keep each once")
    return PromptSet(name=path.stem, prompts=tuple(sorted(prompts, key=lambda p: p.id)))


def _parse_row(line: str, data: DataConfig) -> tuple[str, Prompt | None]:
    try:
        row: Any = json.loads(line)
    except json.JSONDecodeError as error:
        return f"is not JSON ({error.msg})", None
    if not isinstance(row, dict):
        return f"is a {type(row).__name__}, not an object", None
    values = []
    for key in (data.prompt_key, data.answer_key):
        value = row.get(key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str) or not value.strip():
            present = ", ".join(sorted(map(str, row))) or "none"
            return f"has no text in {key!r} (fields there: {present})", None
        if "\x00" in value:
            return f"has a NUL character in {key!r}", None
        values.append(value)
    tags = row.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(t, str) and "\x00" not in t for t in tags):
        return f"'tags' must be a list of strings, not {tags!r}", None
    text, answer = values
    return "", Prompt(prompt_id(text, answer), text, answer, tuple(tags))


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _some(items: list[str]) -> str:
    more = f"; and {len(items) - SHOWN} more" if len(items) > SHOWN else ""
    return "; ".join(items[:SHOWN]) + more


def load_run_prompts(config: RunConfig) -> tuple[PromptSet, tuple[PromptSet, ...]]:
    """The training prompts of a run, and those of each of `config.benchmarks`, the held-out set first.

    Raises ConfigProblems; also when one of them shares a prompt with the training set.
    """
    problems: list[FieldProblem] = []
    sets: list[PromptSet | None] = []
    fields = [("data.train", config.data.train), *((_field(config, b), b.data) for b in config.benchmarks)]
    for field, path in fields:
        try:
            sets.append(load_prompts(resolve(path), config.data, field))
        except ConfigProblems as error:
            sets.append(None)
            problems += error.problems
    train, held_out = sets[0], [found for found in sets[1:] if found is not None]
    if train is not None:
        texts = {p.text for p in train.prompts}
        for (field, path), found in zip(fields[1:], sets[1:], strict=True):
            if shared := texts & {p.text for p in found.prompts} if found is not None else set():
                some = _some([repr(t[:80]) for t in sorted(shared)])
                n = _count(len(shared), "held-out prompt")
                message = f"{n} also among the training prompts: {some}; keep each on one side"
                problems.append(FieldProblem(field=field, value=path, message=message))
    if problems or train is None:
        raise ConfigProblems(problems)
    return train, tuple(held_out)


def _field(config: RunConfig, benchmark: Benchmark) -> str:
    """The config's field that names the benchmark's file."""
    for i, own in enumerate(config.evaluation.benchmarks):
        if own.name == benchmark.name:
            return f"evaluation.benchmarks.{i}.data"
    return "data.eval" if benchmark.name == HELD_OUT else "evaluation.protocol_folder"


def check_model_folder(config: RunConfig) -> list[FieldProblem]:
    """What is missing in the model folder; empty when it looks whole. Contents are checked when it is loaded."""

    def problem(message: str) -> list[FieldProblem]:
        return [FieldProblem(field="model.path", value=config.model.path, message=message)]

    folder = resolve(config.model.path)
    if not os.path.isdir(folder):  # False also for a path that the system refuses to look at
        return problem("no such folder; give a model in Hugging Face format on storage that the workers share")
    missing = [f for f in ("config.json", "tokenizer_config.json") if not (folder / f).is_file()]
    if not list(folder.glob("*.safetensors")):
        missing.append("*.safetensors")
    return problem(f"lacks {', '.join(missing)}") if missing else []


def preflight(config: RunConfig) -> None:
    """Check everything that a run reads before it is accepted. Raises ConfigProblems with every fault found."""
    problems = check_model_folder(config)
    if isinstance(config.engine, VerlEngine):
        problems += refused_overrides(config)
    try:
        load_run_prompts(config)
    except ConfigProblems as error:
        problems += error.problems
    if problems:
        raise ConfigProblems(problems)
