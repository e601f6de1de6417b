"""Benchmarks that somebody asks for, of a run that is there: by name or as prompt sets, measured as the run measures
them or otherwise. No torch here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from pipeline.config import HELD_OUT, Benchmark, ConfigProblems, FieldProblem, RunConfig, is_path, parse_config, resolve


def asked_benchmarks(config: RunConfig, asked: Sequence[str]) -> list[Benchmark]:
    """The run's benchmarks of these names; what is none of them is a prompt set, written as data.eval is."""
    ours = {b.name: b for b in config.benchmarks}
    return [ours.get(given) or config.filled_in(Benchmark(name=_name_of(given), data=given)) for given in asked]


def changed(benchmark: Benchmark, changes: dict[str, Any]) -> Benchmark:
    """The benchmark measured otherwise. Raises pydantic.ValidationError."""
    return Benchmark.model_validate(benchmark.model_dump() | changes)


def asked_config(
    config: RunConfig, asked: Sequence[str] | None, protocol: str | None, changes: dict[str, Any]
) -> RunConfig:
    """The run's config with benchmarks that were asked for in place of its own; the held-out set stays as it is.

    asked: as `asked_benchmarks`; None: all of the run's. protocol: and these, as evaluation.protocol. changes: fields
    of Benchmark, for all of them. What is measured otherwise than the run does has a name that says so, such as
    aime24.k64.t0.6: its numbers and files stand beside the run's own.

    Raises ConfigProblems, and pydantic.ValidationError for a change that is not accepted.
    """
    ours = {b.name: b for b in config.benchmarks}
    if asked is None:
        asked = () if protocol else tuple(ours)
    words = f"no such file, and no benchmark of the run; those are {', '.join(ours)}"
    nowhere = [
        FieldProblem(field=f"benchmark {given}", value=given, message=words)
        for given in asked
        if given not in ours and is_path(given) and not os.path.exists(resolve(given))
    ]
    if nowhere:
        raise ConfigProblems(nowhere)
    benchmarks = asked_benchmarks(config, asked)
    if protocol is not None:
        section = config.evaluation.model_copy(update={"protocol": protocol, "benchmarks": ()})
        whole = config.model_copy(update={"evaluation": section}).benchmarks
        benchmarks += [b for b in whole if b.name not in (HELD_OUT, *asked)]
    found = []
    for benchmark in benchmarks:
        new = changed(benchmark, changes)
        namesake = ours.get(benchmark.name, benchmark) != benchmark
        suffix = (".asked" if namesake else "") + _told(benchmark, new)
        if suffix or new.name != HELD_OUT:
            found.append(new.model_copy(update={"name": new.name[: 60 - len(suffix)] + suffix}))
    section = config.evaluation.model_copy(update={"protocol": None, "benchmarks": tuple(found)})
    return parse_config(config.model_copy(update={"evaluation": section}).model_dump(mode="json"))


def _name_of(source: str) -> str:
    """Of a prompt set: a file's stem, or the NAME of set:NAME@VERSION and hub:OWNER/NAME@REVISION:SPLIT."""
    if not is_path(source):
        source = source.partition(":")[2].partition("@")[0]
    stem = re.sub(r"\.(jsonl|json|csv|parquet)$", "", source.rpartition("/")[2].lower())
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-")[:60] or "file"


def _told(before: Benchmark, after: Benchmark) -> str:
    """What differs, for the end of a name."""
    parts = {
        "samples": f"k{after.samples}",
        "temperature": f"t{after.temperature:g}",
        "top_p": f"p{after.top_p:g}",
        "greedy": "greedy" if after.greedy else "sampled",
        "reward": after.reward.name if after.reward is not None else "",
    }
    return "".join(f".{part}" for field, part in parts.items() if getattr(before, field) != getattr(after, field))
