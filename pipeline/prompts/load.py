"""Prompt sets of a run: files of prompts with reference answers, each prompt named by the hash of its content.

A prompt's id does not depend on the file, its format, the row or the order, so the history of a prompt survives edits
of the file around it. Nothing is accepted half: a file with one bad row is refused, its bad rows counted and named.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pipeline.config import (
    HELD_OUT,
    Benchmark,
    ConfigProblems,
    DataConfig,
    FieldProblem,
    MappingName,
    RunConfig,
    VerlEngine,
    resolve,
)
from pipeline.engines.verl.compose import refused_overrides
from pipeline.prompts import files, places
from pipeline.prompts.mappings import Layout, layout, read
from pipeline.prompts.types import FileFault, Message, NoColumn, Prompt, PromptSet, RowFault, make_prompt
from pipeline.rewards.registry import RewardConfig, parts_of
from pipeline.rewards.weighted import SumReward

_PROTOCOL = "evaluation.protocol_folder"
SHOWN = 5  # rows named in one message


def load_prompts(
    source: str | Path,
    data: DataConfig,
    field: str,
    mapping: MappingName | None = None,
    rewards: Collection[str] | None = None,
) -> PromptSet:
    """Read a prompt set. source: what a config writes, or a file. field: the config field that named it, for messages.
    mapping: in place of data.mapping. rewards: the names that rows may give; None: any.

    Raises ConfigProblems as load_in_order does.
    """
    name, prompts = load_in_order(source, data, field, mapping, rewards)
    return PromptSet(name=name, prompts=tuple(sorted(prompts, key=lambda p: p.id)))


def load_in_order(
    source: str | Path,
    data: DataConfig,
    field: str,
    mapping: MappingName | None = None,
    rewards: Collection[str] | None = None,
) -> tuple[str, list[Prompt]]:
    """The name of a prompt set, and its prompts in the order of the file.

    Raises ConfigProblems: file missing or unreadable, empty, rows that are no prompts, and duplicates (the same chat
    twice, whether or not the answers agree).
    """

    def refuse(message: str) -> ConfigProblems:
        return ConfigProblems.one(field, str(source), message)

    prompts: list[Prompt] = []
    faults: list[str] = []
    rows_of: dict[tuple[Message, ...] | str, list[str]] = {}
    try:
        name, found = (source.stem, [source]) if isinstance(source, Path) else places.find(source)
        by = columns_of(source, data, mapping or data.mapping)
        for row, prompt in read_prompts(found, by, data.system, data.template):
            if isinstance(prompt, Prompt) and rewards is not None and prompt.reward not in (None, *rewards):
                known = ", ".join(rewards) or "none"
                prompt = RowFault("unknown_reward", f"reward {prompt.reward!r} is not in rewards (there: {known})")
            if isinstance(prompt, RowFault):
                faults.append(f"row {row}: {prompt}")
                continue
            prompts.append(prompt)
            rows_of.setdefault(prompt.messages or prompt.text, []).append(row)
    except FileFault as error:
        raise refuse(str(error)) from None
    repeated = [rows for rows in rows_of.values() if len(rows) > 1]
    if faults:
        raise refuse(f"{count(len(faults), 'bad row')}: {some(faults)}")
    if not prompts:
        raise refuse("has no prompts; a prompt set needs at least one")
    if repeated:
        named = [f"rows {', '.join(rows[:SHOWN])}" for rows in repeated]
        raise refuse(f"{count(len(repeated), 'prompt')} more than once ({some(named)}); keep each once")
    return name, prompts


def columns_of(source: str | Path, data: DataConfig, mapping: MappingName) -> Layout:
    """An uploaded set was mapped when it was uploaded."""
    kept = isinstance(source, str) and source.startswith("set:")
    return layout("plain") if kept else layout(mapping, data)


def read_prompts(
    paths: Sequence[Path], by: Layout, system: str | None = None, template: str | None = None
) -> Iterator[tuple[str, Prompt | RowFault]]:
    """(row, prompt) of every row. A row of several files is written `3 of b.jsonl`. Raises FileFault."""
    for path in paths:
        _check_columns(path, by)
        flat = path.suffix.lower() == ".csv"
        for number, row in files.rows(path, by.columns):
            place = f"{number}" if len(paths) == 1 else f"{number} of {path.name}"
            if isinstance(row, RowFault):
                yield place, row
                continue
            try:
                yield place, _dressed(read(row, by, flat=flat), system, template)
            except RowFault as fault:
                yield place, fault


def _check_columns(path: Path, by: Layout) -> None:
    """Where a file declares its columns, a missing one is told once, not for every row."""
    files.check(path)
    names = files.column_names(path)
    for needed in (by.prompt, f"{by.answer}|{by.solution}"):
        wanted = [column for column in needed.split("|") if column]
        if names is not None and not any(c in names or c.split(".")[0] in names for c in wanted):
            raise NoColumn(wanted, names)


def _dressed(prompt: Prompt, system: str | None, template: str | None) -> Prompt:
    """With the config's system prompt and template."""
    if system is None and template is None:
        return prompt
    *before, last = (Message(**turn) for turn in prompt.chat)
    if template is not None:
        last = Message(last.role, template.replace("{prompt}", last.content))
    if system is not None and not (before and before[0].role == "system"):
        before.insert(0, Message("system", system))
    return make_prompt((*before, last), prompt.answer, prompt.tags, prompt.reward)


def count(n: int, what: str) -> str:
    return f"{n:,} {what}{'' if n == 1 else 's'}"


def some(items: list[str]) -> str:
    more = f"; and {len(items) - SHOWN:,} more" if len(items) > SHOWN else ""
    return "; ".join(items[:SHOWN]) + more


def load_run_prompts(config: RunConfig) -> tuple[PromptSet, tuple[PromptSet, ...]]:
    """The training prompts of a run, and those of each of `config.benchmarks`, the held-out set first.

    Raises ConfigProblems; also when one of them shares a prompt with the training set.
    """
    problems: list[FieldProblem] = []
    sets: list[PromptSet | None] = []
    sources = [("data.train", config.data.train, config.data.mapping)]
    sources += [(_field(config, b), b.data, b.mapping) for b in config.benchmarks]
    if lacking := [
        source for field, source, _ in sources if field == _PROTOCOL and not os.path.isfile(resolve(source))
    ]:
        folder = config.evaluation.protocol_folder
        message = f"lacks {', '.join(Path(path).name for path in lacking)}: `pilot data prepare "
        message += f"{config.evaluation.protocol} --out {folder}` makes them; evaluation.protocol=null measures without"
        problems.append(FieldProblem(field=_PROTOCOL, value=folder, message=message))
        sources = [of for of in sources if of[1] not in lacking]
    for field, source, mapping in sources:
        try:
            sets.append(load_prompts(source, config.data, field, mapping, config.rewards))
        except ConfigProblems as error:
            sets.append(None)
            problems += error.problems
    train, held_out = sets[0], [found for found in sets[1:] if found is not None]
    if train is not None:
        texts = {p.text for p in train.prompts}
        for (field, source, _), found in zip(sources[1:], sets[1:], strict=True):
            if shared := texts & {p.text for p in found.prompts} if found is not None else set():
                named = some([repr(t[:80]) for t in sorted(shared)])
                n = count(len(shared), "held-out prompt")
                message = f"{n} also among the training prompts: {named}; keep each on one side"
                problems.append(FieldProblem(field=field, value=source, message=message))
    if problems or train is None:
        raise ConfigProblems(problems)
    return train, tuple(held_out)


class Counts(NamedTuple):
    """How much there is to train and to evaluate on. digest: of the training set. n_eval: prompts of each of
    `config.benchmarks`."""

    digest: str
    n_train: int
    n_eval: tuple[int, ...]


def count_run_prompts(config: RunConfig) -> Counts:
    """What load_run_prompts finds, counted. Files that have not changed since are not read again.

    Raises ConfigProblems, as load_run_prompts does.
    """
    sources = (config.data.train, *(benchmark.data for benchmark in config.benchmarks))
    try:
        states = tuple(_state(path) for source in sources for path in places.find(source)[1])
    except (FileFault, OSError):
        return _count(config)  # tells it by the config's field
    said = config.model_dump_json(include={"data", "rewards", "evaluation"})
    return _remembered(_Sources(said, states, config))


def _count(config: RunConfig) -> Counts:
    train, measured = load_run_prompts(config)
    return Counts(train.digest, len(train), tuple(map(len, measured)))


def _state(path: Path) -> tuple[str, int, int, int, int]:
    """Another one when the file is written to or replaced."""
    now = path.stat()
    return str(path), now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns


@dataclasses.dataclass(frozen=True)
class _Sources:
    """What decides how a config's prompts are read: its words, and the files' states."""

    said: str
    files: tuple[tuple[str, int, int, int, int], ...]
    config: RunConfig = dataclasses.field(compare=False)


@lru_cache(maxsize=64)
def _remembered(sources: _Sources) -> Counts:
    return _count(sources.config)


def _field(config: RunConfig, benchmark: Benchmark) -> str:
    """The config's field that names the benchmark's file."""
    for i, own in enumerate(config.evaluation.benchmarks):
        if own.name == benchmark.name:
            return f"evaluation.benchmarks.{i}.data"
    return "data.eval" if benchmark.name == HELD_OUT else _PROTOCOL


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


def check_rewards(config: RunConfig) -> list[FieldProblem]:
    """What is wrong with the files that rewards name. Their code is run when the run starts."""
    rewards = [("reward", config.reward)]
    rewards += [(f"rewards.{name}", reward) for name, reward in config.rewards.items()]
    own = enumerate(config.evaluation.benchmarks)
    rewards += [(f"evaluation.benchmarks.{i}.reward", b.reward) for i, b in own if b.reward is not None]
    return [problem for field, reward in rewards for problem in reward_problems(field, reward)]


def reward_problems(field: str, reward: RewardConfig) -> list[FieldProblem]:
    """field: where a config or a request has it."""
    found = []
    for i, part in enumerate(parts_of(reward)[0]):
        place = f"{field}.parts.{i}.reward" if isinstance(reward, SumReward) else field
        for name, message in part.reward.faults().items():
            found.append(FieldProblem(field=f"{place}.{name}", value=getattr(part.reward, name), message=message))
    return found


def load_benchmarks(config: RunConfig) -> list[PromptSet]:
    """The prompts of each of `config.benchmarks`, without a look at the training prompts. Raises ConfigProblems."""
    problems: list[FieldProblem] = []
    sets = []
    for benchmark in config.benchmarks:
        field = f"benchmark {benchmark.name}"
        try:
            sets.append(load_prompts(benchmark.data, config.data, field, benchmark.mapping, config.rewards))
        except ConfigProblems as error:
            problems += error.problems
    if problems:
        raise ConfigProblems(problems)
    return sets


def preflight_evaluation(config: RunConfig) -> None:
    """Check everything that an evaluation of a checkpoint reads. Raises ConfigProblems with every fault found."""
    problems = check_model_folder(config) + check_rewards(config)
    try:
        load_benchmarks(config)
    except ConfigProblems as error:
        problems += error.problems
    if problems:
        raise ConfigProblems(problems)


def preflight(config: RunConfig) -> None:
    """Check everything that a run reads before it is accepted. Raises ConfigProblems with every fault found."""
    problems = check_model_folder(config) + check_rewards(config)
    if isinstance(config.engine, VerlEngine):
        problems += refused_overrides(config)
    try:
        count_run_prompts(config)
    except ConfigProblems as error:
        problems += error.problems
    if problems:
        raise ConfigProblems(problems)
