"""Typed events: what a trainer tells the world, as JSON lines in `RUN_DIR/attempts/<attempt>/events.jsonl`.

The trainer knows no database. It appends events with sequence numbers 1, 2, 3, ... per attempt and flushes at the
end of each; `fsync` makes them durable before a checkpoint is published, so that no checkpoint is ahead of its
events. A reader ignores a torn last line. Whoever ingests them is idempotent by (run, attempt, seq).

One step is one event, so that a reader that takes it in one transaction never shows half a step.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, TextIO

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter


class Event(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="null")
    seq: int = 0  # given by the writer
    time: float = 0.0  # Unix seconds, given by the writer


class Count(BaseModel):
    rollouts: int = 0
    tokens: int = 0


class AttemptStarted(Event):
    """The trainer has read its inputs. `from_step` is the checkpoint it goes on from (0 = the beginning).

    lost: what earlier attempts sampled after that step, it will be sampled again, and all that they may have sampled
        of the steps that they did not finish.
    """

    type: Literal["attempt_started"] = "attempt_started"
    attempt: int
    from_step: int
    lost: Count
    n_train: int
    n_eval: int
    model_parameters: int


class PromptRecord(BaseModel):
    id: str
    text: str
    answer: str
    tags: list[str] = []


class PromptsLoaded(Event):
    """A chunk of the training prompt set, in pool order. Sent once, by the first attempt that gets so far."""

    type: Literal["prompts_loaded"] = "prompts_loaded"
    dataset: str = Field(description="Content hash of the whole prompt set.")
    name: str
    prompts: list[PromptRecord]


class VisitRecord(NamedTuple):
    """pipeline.allocation.Visit with the prompt's id instead of its pool index. In JSON a list: a step has hundreds."""

    prompt_id: str
    stage: str
    n: int
    n_failed: int
    success_rate: float | None
    reward_variance: float | None
    tokens: int
    bucket: str


MarkName = Literal["pin", "exclude", "clear", "retest"]


class MarkRecord(NamedTuple):
    """What somebody wishes for a prompt: pipeline.allocation.Mark says what each means. id: of the wish, rising."""

    id: int
    mark: MarkName
    prompt_id: str


class MarksApplied(Event):
    """Marks that hold from `step` on, in the order in which they were applied. It is durable before the step begins:
    an attempt that goes on from before the step applies them again before the same step.
    """

    type: Literal["marks_applied"] = "marks_applied"
    step: int
    marks: list[MarkRecord]


class SamplingStarted(Event):
    """An inference pass of a step begins. rollouts, tokens: what it may sample at most.

    Should the trainer die before the step is finished, nobody can tell how far it came: all of it is booked as lost, so
    that no budget is passed unnoticed.
    """

    type: Literal["sampling_started"] = "sampling_started"
    step: int
    rollouts: int
    tokens: int


class StepFinished(Event):
    """One training step, whole.

    metrics: flat name -> number. Always there: trained_prompts, trained_rollouts, reward_variance (mean group
        variance of the trained groups), uniform_reward_variance (mean variance of this step's pilot or uniform
        groups, unconditioned: what uniform sampling would have trained on), success_rate, loss, grad_norm,
        entropy, clip_fraction, response_tokens (mean), short_by, rounds, buffer_size, age_mean, seconds_generate,
        seconds_reward, seconds_update. A value that does not exist in this step is null.
    fates: change in this step, per fate. buckets: counts after this step; they sum to the pool.
    rollouts, tokens: sampled for training so far, lost ones included.
    """

    type: Literal["step_finished"] = "step_finished"
    step: int
    epoch: int
    metrics: dict[str, float | None]
    fates: dict[str, Count]
    buckets: dict[str, int]
    visits: list[VisitRecord]
    moves: dict[str, str] = Field(description="prompt id -> bucket, for prompts moved without a visit")
    rollouts: int
    tokens: int


class BenchmarkResult(BaseModel):
    """What one benchmark said of the policy; pipeline.estimators says what the numbers are.

    dataset: content hash of its prompts. samples: per prompt, at this temperature and top-p. accuracy: avg@samples;
    stderr: its standard error, clustered by prompt. pass_at: k -> pass@k. majority: maj@samples. greedy_accuracy: of
    one response per prompt with the most likely tokens; null when not asked for. n_failed: responses whose reward
    failed, in none of these. rollouts, tokens: spent, the greedy ones included.
    """

    name: str
    dataset: str
    n_prompts: int
    samples: int
    temperature: float
    top_p: float
    accuracy: float
    stderr: float
    pass_at: dict[str, float | None]
    majority: float
    greedy_accuracy: float | None
    greedy_stderr: float | None
    n_failed: int
    rollouts: int
    tokens: int
    seconds: float


class EvaluationProgress(Event):
    """An evaluation comes to its next benchmark, or has come through the last one. spent: by those that are done, and
    at most by the one that begins.

    Should the evaluation never finish, this is booked as what it has spent.
    """

    type: Literal["evaluation_progress"] = "evaluation_progress"
    step: int
    spent: dict[str, Count]


class EvaluationFinished(Event):
    """Accuracy after `step` (0 = before training).

    greedy_accuracy, sampled_accuracy, stderr, samples and n_prompts are those of the held-out set, the first of
    `benchmarks`. mean_accuracy: the plain mean over the others, mean_stderr its standard error; null without others.
    rollouts_spent: training rollouts until then. eval_rollouts, eval_tokens: this evaluation's own spend, all
    benchmarks together.
    """

    type: Literal["evaluation_finished"] = "evaluation_finished"
    step: int
    greedy_accuracy: float
    sampled_accuracy: float
    stderr: float
    samples: int
    n_prompts: int
    rollouts_spent: int
    eval_rollouts: int
    eval_tokens: int
    seconds: float
    benchmarks: list[BenchmarkResult] = []
    mean_accuracy: float | None = None
    mean_stderr: float | None = None


class CheckpointSaved(Event):
    type: Literal["checkpoint_saved"] = "checkpoint_saved"
    step: int
    path: str


class AttemptFinished(Event):
    """The last event of an attempt that ended by itself. `reason` tells a person why, and what to do if it failed."""

    type: Literal["attempt_finished"] = "attempt_finished"
    outcome: Literal["succeeded", "stopped", "failed"]
    reason: str
    step: int


AnyEvent = Annotated[
    AttemptStarted
    | PromptsLoaded
    | MarksApplied
    | SamplingStarted
    | StepFinished
    | EvaluationProgress
    | EvaluationFinished
    | CheckpointSaved
    | AttemptFinished,
    Field(discriminator="type"),
]
_adapter: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


EXIT_SILENT = 74
"""Exit status of a trainer that could not write its last event (sysexits.h: an I/O error)."""


def parse_event(line: str | bytes) -> AnyEvent:
    """One event. Raises pydantic.ValidationError when the line is not a known event."""
    return _adapter.validate_json(line)


def events_path(run_dir: Path, attempt: int) -> Path:
    return run_dir / "attempts" / str(attempt) / "events.jsonl"


class EventLog:
    """Appends events to one attempt's file. Raises FileExistsError when the attempt already has one."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("x", encoding="utf-8")
        self._seq = 0

    def append(self, event: Event) -> None:
        self._seq += 1
        stamped = event.model_copy(update={"seq": self._seq, "time": time.time()})
        self._file.write(stamped.model_dump_json() + "\n")
        self._file.flush()

    def fsync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.fsync()
        self._file.close()

    def finish(self, end: AttemptFinished) -> int:
        """Tells the end and closes. Returns the process' exit code: 0 when it succeeded or was stopped, 1 when it
        failed, EXIT_SILENT when it could not be told."""
        try:
            self.append(end)
            self.close()
        except OSError:
            traceback.print_exc()
            return EXIT_SILENT
        return 1 if end.outcome == "failed" else 0


def read_events(path: Path, offset: int = 0) -> Iterator[tuple[AnyEvent, int]]:
    """Whole events from byte `offset` on, each with the offset after it. A torn last line is left for later."""
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield parse_event(line), offset
