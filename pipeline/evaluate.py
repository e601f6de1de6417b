"""`python -m pipeline evaluate RUN_DIR --step N`: measure a checkpoint of a run, whenever somebody asks.

By itself it prints what it found and touches nothing of the run. With --attempt it is what the platform starts: it has
a directory of its own, as a run has, with a config that names the benchmarks, and tells its result there by events; the
responses come to the run's own evaluations.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from pipeline.asked import asked_benchmarks, changed
from pipeline.config import HELD_OUT, Benchmark, ConfigProblems, RunConfig, load_config, parse_reward
from pipeline.engines.build import build_engine
from pipeline.estimators import mean_of_means
from pipeline.evaluation import evaluate, measure
from pipeline.events import AttemptFinished, AttemptStarted, BenchmarkResult, Count, EventLog, events_path
from pipeline.prompts import PromptSet, load_benchmarks, load_prompts
from pipeline.rundir import checkpoints, evaluation_folder
from pipeline.train import full, why


def chosen(config: RunConfig, asked: Sequence[str], changes: dict[str, Any]) -> list[Benchmark]:
    """The benchmarks that were asked for, with these changes. Raises ValueError that names what is not accepted."""
    ours = [b.name for b in config.benchmarks]
    if nowhere := [given for given in asked if given not in ours and not Path(given).is_file()]:
        raise ValueError(f"{nowhere[0]!r} is neither a file nor a benchmark of the run; those are {', '.join(ours)}")
    sources = [given if given in ours else str(Path(given).resolve()) for given in asked]
    try:
        found = [changed(benchmark, changes) for benchmark in asked_benchmarks(config, sources or ours)]
    except ValidationError as error:
        words = [f"--{str(e['loc'][0]).replace('_', '-')}: {e['msg']}" for e in error.errors()]
        raise ValueError("; ".join(words)) from None
    if twice := {b.name for b in found if [x.name for x in found].count(b.name) > 1}:
        raise ValueError(f"benchmark {', '.join(map(repr, sorted(twice)))} more than once")
    return found


def checkpoint(run_dir: Path, step: int | None) -> tuple[int, Path]:
    """Raises ValueError that says which checkpoints there are."""
    saved = checkpoints(run_dir)
    for number, folder in saved if step is not None else saved[-1:]:
        if step in (number, None):
            return number, folder
    there = ", ".join(str(number) for number, _ in saved) or "none"
    raise ValueError(f"{run_dir} has no checkpoint {'' if step is None else f'of step {step}'}; there are: {there}")


def load_sets(config: RunConfig, benchmarks: Sequence[Benchmark]) -> list[PromptSet]:
    """Raises ConfigProblems."""
    return [load_prompts(b.data, config.data, f"benchmark {b.name}", b.mapping, config.rewards) for b in benchmarks]


def words(step: int, results: Sequence[BenchmarkResult]) -> str:
    """A table, a benchmark a line, and the mean over those that are not the held-out set."""
    head = ("benchmark", "prompts", "k", "T", "top-p", "avg@k", "s.e.", "pass@k", "maj@k", "greedy", "failed")
    rows = [
        (
            r.name, f"{r.n_prompts:,}", str(r.samples), f"{r.temperature:g}", f"{r.top_p:g}", percent(r.accuracy),
            percent(r.stderr), percent(r.pass_at[str(r.samples)]), percent(r.majority), percent(r.greedy_accuracy),
            str(r.n_failed),
        )
        for r in results
    ]  # fmt: skip
    others = [(r.accuracy, r.stderr) for r in results if r.name != HELD_OUT]
    if len(others) > 1:
        mean, error = mean_of_means(others)
        rows.append((f"mean of {len(others)}", "", "", "", "", percent(mean), percent(error), "", "", "", ""))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in (head, *rows)
    ]
    return "\n".join([f"checkpoint of step {step}, in per cent", *lines])


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def main(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done, 1 it did not work, 2 not accepted as given; with --attempt as pipeline.train's."""
    if arguments.attempt is not None:
        own_dir = arguments.run_dir.resolve()
        return as_attempt(own_dir, arguments.attempt, (arguments.of or own_dir).resolve(), arguments.step)
    run_dir, out = arguments.run_dir.resolve(), arguments.out
    changes = {name: getattr(arguments, name) for name in ("samples", "temperature", "top_p")}
    changes = {name: value for name, value in changes.items() if value is not None}
    changes |= {"greedy": True} if arguments.greedy else {}
    try:
        if arguments.reward is not None:
            given = arguments.reward.strip()
            changes["reward"] = parse_reward(json.loads(given) if given.startswith("{") else {"name": given})
        config = load_config(run_dir / "config.json")
        step, folder = checkpoint(run_dir, arguments.step)
        benchmarks = chosen(config, arguments.benchmark, changes)
        sets = load_sets(config, benchmarks)
        if out is not None:
            out.mkdir(parents=True)
    except FileExistsError:
        print(f"{out} is there already; give --out a new folder", file=sys.stderr)
        return 2
    except (ConfigProblems, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    try:
        with closing(build_engine(config, PromptSet("none", ()), sets, run_dir)) as engine:
            engine.load(folder)
            results = [measure(engine, b, s, step, out) for b, s in zip(benchmarks, sets, strict=True)]
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    told = {"step": step, "benchmarks": [r.model_dump(mode="json") for r in results]}
    print(json.dumps(told, indent=2) if arguments.json else words(step, results))
    return 0


def as_attempt(own_dir: Path, attempt: int, run_dir: Path, step: int | None) -> int:
    """Evaluate as the platform asks: all benchmarks of the config in own_dir, on a checkpoint of the run in run_dir.

    Events and the log are in own_dir. The responses come to the run's own evaluations once all of them are there.
    """
    log = EventLog(events_path(own_dir, attempt))

    def stop(_signum: int, _frame: object) -> NoReturn:
        raise Stopped

    finished: AttemptFinished
    number = step or 0
    try:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        config = load_config(own_dir / "config.json")
        number, folder = checkpoint(run_dir, step)
        sets = load_benchmarks(config)
        with closing(build_engine(config, PromptSet("none", ()), sets, own_dir)) as engine:
            engine.load(folder)
            log.append(
                AttemptStarted(
                    attempt=attempt, from_step=number, lost=Count(), n_train=0, n_eval=len(sets[0]),
                    model_parameters=engine.n_parameters,
                )
            )  # fmt: skip
            benchmarks = list(zip(config.benchmarks, sets, strict=True))
            responses = evaluation_folder(own_dir, number)
            found = evaluate(engine, benchmarks, number, responses, log.append, config.sampling.max_new_tokens)
        publish(responses, evaluation_folder(run_dir, number))
        log.append(found)
        finished = AttemptFinished(
            outcome="succeeded", reason=f"the checkpoint of step {number} is evaluated", step=number
        )
    except Stopped:
        finished = AttemptFinished(outcome="stopped", reason="the evaluation was stopped on request", step=number)
    except Exception as error:
        traceback.print_exc()
        words = f"the disk of {own_dir} is full: free some space, then evaluate again" if full(error) else why(error)
        finished = AttemptFinished(outcome="failed", reason=f"the evaluation failed: {words}", step=number)
    return log.finish(finished)


def publish(responses: Path, folder: Path) -> None:
    """Move the files into the folder, in place of those of the same names. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(responses.glob("*.parquet")):
        path.replace(folder / path.name)


class Stopped(BaseException):
    """A signal asked us to stop."""
