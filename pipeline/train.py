"""The trainer process: `python -m pipeline train RUN_DIR --attempt N`.

It reads RUN_DIR/config.json, goes on from the newest checkpoint if there is one, and tells what happens by events.
It knows no database and no broker. SIGTERM or SIGINT stop it after the step under way, with a checkpoint.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import numpy as np

from pipeline.allocation import Allocator, Batch, Bucket, Group, Mark, Plan
from pipeline.checkpoint import load_state, save_checkpoint
from pipeline.config import RunConfig, load_config
from pipeline.engines.build import Engine, build_engine
from pipeline.evaluation import evaluate
from pipeline.events import (
    AttemptFinished,
    AttemptStarted,
    CheckpointSaved,
    Count,
    EvaluationFinished,
    Event,
    EventLog,
    MarkRecord,
    MarksApplied,
    PromptRecord,
    PromptsLoaded,
    SamplingStarted,
    StepFinished,
    VisitRecord,
    events_path,
    read_events,
)
from pipeline.marks import Wishes
from pipeline.prompts import load_run_prompts
from pipeline.rollouts import write_rollouts
from pipeline.rundir import checkpoints, evaluation_folder
from pipeline.step import build_allocator, training_step

PROMPTS_PER_EVENT = 1000
_log = logging.getLogger("pipeline")  # unlike print, it outlives a reader of our output that is gone


class Recorder:
    """The engine, with the groups that it samples in a step kept for the record, and each pass told before it."""

    def __init__(self, engine: Engine, tell: Callable[[Plan], None]) -> None:
        self.engine, self.tell = engine, tell
        self.groups: list[Group] = []

    def generate(self, plan: Plan) -> list[Group]:
        self.tell(plan)
        groups = self.engine.generate(plan)
        self.groups += groups
        return groups

    def update(self, batch: Batch) -> dict[str, float | None]:
        return self.engine.update(batch)


class Trainer:
    """One attempt. Counters cover all attempts of the run."""

    engine: Engine  # from `train` on

    def __init__(self, run_dir: Path, attempt: int, log: EventLog) -> None:
        """Reads the run's inputs and the newest checkpoint's state; the engine comes with `run`, for it may take long.

        Raises ConfigProblems, FileNotFoundError or ValueError when the run cannot start, saying why.
        """
        self.run_dir, self.attempt, self.log = run_dir, attempt, log
        self.config: RunConfig = load_config(run_dir / "config.json")
        self.train_set, self.eval_sets = load_run_prompts(self.config)
        self.allocator: Allocator = build_allocator(self.config, len(self.train_set))
        self.step = 0  # finished steps
        self.began, self.seconds_before = time.monotonic(), 0.0  # what earlier attempts took
        self.slowest = 0.0  # seconds of this attempt's longest step, with its evaluation and checkpoint
        self.evaluated_at, self.accuracy = -1, math.nan
        self.saved_at: tuple[int, int] | None = None  # step, evaluated_at of this attempt's newest checkpoint
        self.stop_requested = False
        self.resume_from = self._load_state()

    def _load_state(self) -> Path | None:
        """Take up the newest checkpoint's state, all but the engine's. Returns its folder; None when there is none."""
        found = checkpoints(self.run_dir)
        if not found:
            return None
        self.step, folder = found[-1]
        state = load_state(folder)
        if state["prompts"] != self.train_set.digest:
            raise ValueError(
                f"the training prompts have changed since checkpoint {folder.name} was saved; "
                "restore the file that config field data.train names, or start a new run"
            )
        self.allocator.load_state_dict(state["allocator"])
        self.evaluated_at, self.accuracy = state["evaluated_at"], state.get("accuracy", math.nan)
        return folder

    def run(self) -> AttemptFinished:
        """Trains until a budget is reached or a stop is asked for; returns the closing event."""
        with closing(build_engine(self.config, self.train_set, self.eval_sets, self.run_dir)) as engine:
            if self.resume_from is not None:
                engine.load(self.resume_from)
            return self.train(engine)

    def train(self, engine: Engine) -> AttemptFinished:
        """The same with an engine that is there, and loaded."""
        self.engine = engine
        engine.keep(self.allocator.waiting)
        self._tell_start()
        if self.evaluated_at < 0 and not self.stop_requested:
            self._evaluate()
        may_go_on = False  # by what somebody may do now
        while (reason := self._why_end()) is None:
            self._apply_marks()
            if (reason := self._why_nothing_is_left()) is not None:
                may_go_on = self._left_out() > 0
                break
            start = time.monotonic()
            self._train_one_step()
            if self.step % self.config.evaluation.every == 0:
                self._evaluate()
            if self.step % self.config.checkpoint.every == 0:
                self._checkpoint()
            self.slowest = max(self.slowest, time.monotonic() - start)
        if not self.stop_requested and self.evaluated_at != self.step:
            self._evaluate()
        if self.saved_at != (self.step, self.evaluated_at):
            self._checkpoint()
        outcome: Literal["stopped", "succeeded"] = "stopped" if self.stop_requested or may_go_on else "succeeded"
        return AttemptFinished(outcome=outcome, reason=reason, step=self.step)

    def _tell(self, event: Event) -> None:
        self.log.append(event)
        if line := words(event):
            _log.info(line)

    def _tell_start(self) -> None:
        self.earlier = earlier_attempts(self.run_dir, self.attempt)
        lost = add(count for step, count in self.earlier.live.items() if step > self.step)
        lost = add((lost, self.earlier.unfinished))
        self.spent = self.earlier.total
        applied = (mark.id for marks in self.earlier.marks.values() for mark in marks)
        self.wishes = Wishes(self.run_dir, self.train_set.prompts, applied)
        self._tell(
            AttemptStarted(
                attempt=self.attempt,
                from_step=self.step,
                lost=lost,
                n_train=len(self.train_set),
                n_eval=len(self.eval_sets[0]),
                model_parameters=self.engine.n_parameters,
            )
        )
        self._tell_prompts()

    def _tell_prompts(self) -> None:
        prompts = self.train_set.prompts
        for start in range(0, len(prompts), PROMPTS_PER_EVENT):
            chunk = prompts[start : start + PROMPTS_PER_EVENT]
            records = [PromptRecord(id=p.id, text=p.text, answer=p.answer, tags=list(p.tags)) for p in chunk]
            self._tell(PromptsLoaded(dataset=self.train_set.digest, name=self.train_set.name, prompts=records))

    def _why_end(self) -> str | None:
        """Why no further step may start; None when one may. The budgets are hard: the next step must fit in."""
        budget, next_pass = self.config.budget, self.allocator.pass_rollouts
        most_tokens = next_pass * self.config.sampling.max_new_tokens
        if self.stop_requested:
            return f"stopped on request after step {self.step}"
        if self.step >= budget.steps:
            return f"all {budget.steps} steps done"
        if budget.rollouts is not None and self.spent.rollouts + next_pass > budget.rollouts:
            return (
                f"rollout budget: {self.spent.rollouts:,} of {budget.rollouts:,} spent and the next step may take "
                f"{next_pass:,}"
            )
        if budget.tokens is not None and self.spent.tokens + most_tokens > budget.tokens:
            return (
                f"token budget: {self.spent.tokens:,} of {budget.tokens:,} spent and the next step may take "
                f"{most_tokens:,}"
            )
        seconds, n_gpus = self.seconds_before + time.monotonic() - self.began, self.config.engine.n_gpus
        if budget.wall_clock_s is not None and seconds + self.slowest > budget.wall_clock_s:
            return (
                f"time budget: {seconds:.0f} s of {budget.wall_clock_s:g} s used and the next step may take "
                f"{self.slowest:.1f} s"
            )
        if budget.gpu_hours is not None and (seconds + self.slowest) * n_gpus > budget.gpu_hours * 3600:
            return (
                f"GPU budget: {seconds * n_gpus / 3600:.2f} of {budget.gpu_hours:g} GPU-hours used and the next step "
                f"may take {self.slowest * n_gpus / 3600:.4f}"
            )
        return None

    def _why_nothing_is_left(self) -> str | None:
        if not self.allocator.pool_is_solved:
            return None
        if n := self._left_out():
            return (
                f"{n:,} of {len(self.train_set):,} prompts are excluded, the others solved: include some, then resume"
            )
        return "every prompt of the pool is evicted as solved: nothing is left to train on"

    def _left_out(self) -> int:
        """How many excluded prompts keep a run from going on that has solved all others; 0 while there are others."""
        evicted = self.allocator.bucket_counts()[Bucket.EVICTED]
        return len(self.train_set) - evicted if self.allocator.pool_is_solved else 0

    def _limit(self) -> int | None:
        budget, limits = self.config.budget, []
        if budget.rollouts is not None:
            limits.append(budget.rollouts - self.spent.rollouts)
        if budget.tokens is not None:
            limits.append((budget.tokens - self.spent.tokens) // self.config.sampling.max_new_tokens)
        return min(limits, default=None)

    def _tell_sampling(self, plan: Plan) -> None:
        most_tokens = plan.n_rollouts * self.config.sampling.max_new_tokens
        self._tell(SamplingStarted(step=self.step + 1, rollouts=plan.n_rollouts, tokens=most_tokens))

    def _apply_marks(self) -> None:
        """Marks that hold from the next step on: those that an earlier attempt applied before it, and, beyond the steps
        that earlier attempts have begun, those that are wished for now.
        """
        step = self.step + 1
        marks = self.earlier.marks.get(step, [])
        if step > self.earlier.last_step:
            marks = marks + self.wishes.new()
        if not marks:
            return
        self._tell(MarksApplied(step=step, marks=marks))
        self.log.fsync()
        for mark, some in groupby(marks, key=lambda record: record.mark):
            self.allocator.mark([self.wishes.place[record.prompt_id] for record in some], Mark(mark))

    def _train_one_step(self) -> None:
        recorder = Recorder(self.engine, self._tell_sampling)
        batch, stats = training_step(self.allocator, recorder, self.config, self._limit())
        self.engine.keep(self.allocator.waiting)
        self.step = batch.step
        fates = {fate.value: Count(rollouts=n, tokens=t) for fate, (n, t) in batch.fates.items()}
        self.spent = add((self.spent, *fates.values()))
        write_rollouts(self.run_dir, self.step, recorder.groups, self.train_set)
        prompts = self.train_set.prompts
        metrics = {**batch_metrics(batch), **stats}
        self._tell(
            StepFinished(
                step=self.step,
                epoch=self.allocator.epoch,
                metrics=metrics,
                fates=fates,
                buckets={bucket.value: n for bucket, n in self.allocator.bucket_counts().items()},
                visits=[
                    VisitRecord(
                        prompt_id=prompts[v.prompt].id,
                        stage=v.stage.value,
                        n=v.n,
                        n_failed=v.n_failed,
                        success_rate=v.success_rate,
                        reward_variance=v.reward_variance,
                        tokens=v.tokens,
                        bucket=v.bucket.value,
                    )
                    for v in batch.visits
                ],
                moves={prompts[move.prompt].id: move.bucket.value for move in batch.moves},
                rollouts=self.spent.rollouts,
                tokens=self.spent.tokens,
            )
        )
        self.engine.record({**metrics, "rollouts": self.spent.rollouts, "tokens": self.spent.tokens}, self.step)

    def _evaluate(self) -> None:
        benchmarks = list(zip(self.config.benchmarks, self.eval_sets, strict=True))
        found = evaluate(
            self.engine, benchmarks, self.step, evaluation_folder(self.run_dir, self.step), self._tell,
            self.config.sampling.max_new_tokens, self.spent.rollouts,
        )  # fmt: skip
        self.accuracy, self.evaluated_at = found.sampled_accuracy, self.step
        self._tell(found)
        told: dict[str, float | None] = {f"accuracy/{b.name}": b.accuracy for b in found.benchmarks}
        told |= {"greedy_accuracy": found.greedy_accuracy, "sampled_accuracy": self.accuracy}
        self.engine.record(told | {"mean_accuracy": found.mean_accuracy}, self.step)

    def _checkpoint(self) -> None:
        self.log.fsync()  # no checkpoint may be ahead of the events that led to it
        state: dict[str, Any] = {
            "prompts": self.train_set.digest,
            "allocator": self.allocator.state_dict(),
            "evaluated_at": self.evaluated_at,
            "accuracy": self.accuracy,
        }
        keep, accuracy = self.config.checkpoint, self.accuracy if self.evaluated_at == self.step else None
        path = save_checkpoint(self.run_dir, self.step, state, self.engine.save, keep.keep, keep.keep_best, accuracy)
        self.saved_at = (self.step, self.evaluated_at)
        self._tell(CheckpointSaved(step=self.step, path=str(path.relative_to(self.run_dir))))


def batch_metrics(batch: Batch) -> dict[str, float | None]:
    """The step's numbers that come from allocation; pipeline.events.StepFinished says what each means."""
    rewards = [group.rollouts.rewards for group in batch.groups]
    # Judged before any selection: pilots where there are some, else the uniform groups themselves.
    stage = "pilot" if any(v.stage == "pilot" for v in batch.visits) else "commit"
    first = [v for v in batch.visits if v.stage == stage and v.success_rate is not None]
    sampled = sum(n for n, _ in batch.fates.values())
    tokens = sum(t for _, t in batch.fates.values())
    return {
        "trained_prompts": len(batch.groups),
        "trained_rollouts": sum(len(r) for r in rewards),
        "reward_variance": mean([float(r.var(ddof=1)) for r in rewards if len(r) > 1]),
        "zero_variance_share": mean([float((r == r[0]).all()) for r in rewards]),
        # Visits carry the population variance; n / (n - 1) makes groups of unequal size comparable.
        "uniform_reward_variance": mean(
            [
                v.reward_variance * m / (m - 1)
                for v in first
                if v.reward_variance is not None and (m := v.n - v.n_failed) > 1
            ]
        ),
        "success_rate": mean([v.success_rate for v in first if v.success_rate is not None]),
        "response_tokens": tokens / sampled if sampled else None,
        "sampled_rollouts": sampled,
        "short_by": batch.short_by,
        "rounds": batch.rounds,
        "buffer_size": batch.buffer_size,
        "age_mean": mean(batch.ages),
    }


def words(event: Event) -> str:
    """A line of the log, for whoever reads along; empty for what is no news to a person."""
    match event:
        case AttemptStarted():
            begins = f"goes on from step {event.from_step}" if event.from_step else "begins"
            prompts = f"{event.n_train:,} prompts to train on, {event.n_eval:,} held out"
            return f"attempt {event.attempt} {begins}: {prompts}, {event.model_parameters:,} parameters"
        case MarksApplied():
            return f"step {event.step}: {len(event.marks):,} marks of prompts hold from now on"
        case StepFinished(metrics=metrics):
            told = {
                "reward variance": metrics["reward_variance"], "loss": metrics.get("loss"),
                "gradient norm": metrics.get("grad_norm"), "entropy": metrics.get("entropy"),
            }  # fmt: skip
            numbers = ", ".join(f"{name} {value:.4g}" for name, value in told.items() if value is not None)
            seconds = sum(value or 0.0 for name, value in metrics.items() if name.startswith("seconds_"))
            return (
                f"step {event.step}: trained on {metrics['trained_prompts']:,.0f} prompts "
                f"({metrics['trained_rollouts']:,.0f} rollouts), {numbers}; {event.rollouts:,} rollouts so far; "
                f"{seconds:.2f} s"
            )
        case EvaluationFinished():
            by_name = ", ".join(f"{b.name} {b.accuracy:.1%} ± {b.stderr:.1%}" for b in event.benchmarks)
            return f"evaluation after step {event.step}: {by_name}; {event.seconds:.1f} s"
        case CheckpointSaved():
            return f"checkpoint of step {event.step} saved"
        case AttemptFinished():
            return f"{event.outcome} after step {event.step}: {event.reason}"
    return ""


def mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def add(counts: Any) -> Count:
    total = Count()
    for count in counts:
        total = Count(rollouts=total.rollouts + count.rollouts, tokens=total.tokens + count.tokens)
    return total


class Earlier:
    """What earlier attempts sampled: `total` of all their steps, and per step that still stands (`live`).

    unfinished: at most, of steps that they died in and that no attempt has booked as lost yet; in `total`, too.
    marks: what they applied before each step. last_step: the last one that any of them began.
    """

    def __init__(self) -> None:
        self.total = Count()
        self.live: dict[int, Count] = {}
        self.unfinished = Count()
        self.marks: dict[int, list[MarkRecord]] = {}
        self.last_step = 0


def earlier_attempts(run_dir: Path, attempt: int) -> Earlier:
    found = Earlier()
    for earlier in range(1, attempt):
        path, under_way = events_path(run_dir, earlier), Count()
        for event, _ in read_events(path) if path.exists() else ():
            if isinstance(event, AttemptStarted):
                found.live = {s: c for s, c in found.live.items() if s <= event.from_step}
                found.unfinished = Count()
            elif isinstance(event, MarksApplied):
                # Not forgotten where an attempt goes on from before it: that one may die before it comes so far.
                found.marks[event.step] = event.marks
            elif isinstance(event, SamplingStarted):
                under_way = add((under_way, Count(rollouts=event.rollouts, tokens=event.tokens)))
                found.last_step = max(found.last_step, event.step)
            elif isinstance(event, StepFinished):
                under_way = Count()
                found.live[event.step] = add(event.fates.values())
                found.total = add((found.total, found.live[event.step]))
        found.unfinished = add((found.unfinished, under_way))
        found.total = add((found.total, under_way))
    return found


def main(run_dir: Path, attempt: int, seconds_before: float = 0.0) -> int:
    """Runs one attempt to its end. seconds_before: what earlier attempts took.

    Returns the exit code: 0 when it succeeded or was stopped, 1 when it failed, EXIT_SILENT when it could not tell so.
    """
    began = time.monotonic()
    lines, output = logging.Formatter("%(asctime)s %(message)s", "%Y-%m-%dT%H:%M:%SZ"), logging.StreamHandler()
    lines.converter = time.gmtime  # whoever reads them may be in another zone than this machine
    output.setFormatter(lines)
    logging.basicConfig(handlers=[output])
    _log.setLevel(logging.INFO)
    log = EventLog(events_path(run_dir, attempt))
    trainer: Trainer | None = None
    stop_early = False

    def stop(_signum: int, _frame: FrameType | None) -> None:
        nonlocal stop_early
        stop_early = True
        if trainer is not None:
            trainer.stop_requested = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    try:
        trainer = Trainer(run_dir, attempt, log)
        trainer.stop_requested, trainer.began, trainer.seconds_before = stop_early, began, seconds_before
        finished = trainer.run()
    except Exception as error:
        traceback.print_exc()
        step = trainer.step if trainer is not None else 0
        reason = f"the disk of {run_dir} is full: free some space, then resume" if full(error) else why(error)
        finished = AttemptFinished(outcome="failed", reason=reason, step=step)
    _log.info(words(finished))
    return log.finish(finished)


def full(error: BaseException) -> bool:
    """Whether it came of a full disk or a spent quota; not every library raises OSError then."""
    words = (os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT))
    return any(word in str(error) for word in words) or (error.__cause__ is not None and full(error.__cause__))


def why(error: Exception) -> str:
    """One sentence for a person; the traceback is in the log."""
    expected = isinstance(error, ValueError | OSError | FloatingPointError)
    return str(error) if expected and str(error) else f"{type(error).__name__}: {error}"
