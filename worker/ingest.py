"""From a trainer's event log into the database: whole events, in order, each exactly once."""

from __future__ import annotations

import datetime as dt
import logging
import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from db import ingest as tables
from db import leases, marks, runs
from db.models import Attempt, Run
from pipeline.config import parse_config
from pipeline.events import (
    AnyEvent,
    AttemptFinished,
    AttemptStarted,
    CheckpointSaved,
    EvaluationFinished,
    EvaluationProgress,
    MarksApplied,
    PromptsLoaded,
    SamplingStarted,
    StepFinished,
)

log = logging.getLogger(__name__)


class EventLogBroken(Exception):
    """The events cannot be those of this attempt in this order: one is missing, or one contradicts another."""


def ingest(session: Session, run_id: uuid.UUID, attempt: int, fence: int, events: Sequence[AnyEvent]) -> int:
    """Write the events that are new into the caller's transaction. Returns how many were.

    An event whose sequence number was taken before is skipped, so any part of a log may be given any number of
    times. Raises EventLogBroken when an event is missing before one of these or does not fit those before it,
    when a later attempt has begun; and LeaseLost.
    """
    run = leases.owned(session, run_id, fence)
    row = tables.attempt(session, run, attempt)
    new = [event for event in events if event.seq > row.last_seq]
    if not new:
        return 0
    if attempt != run.attempt:
        raise EventLogBroken(f"attempt {attempt} has new events although attempt {run.attempt} has begun")
    for expected, event in enumerate(new, row.last_seq + 1):
        if event.seq != expected:
            raise EventLogBroken(f"event {expected} of attempt {attempt} is missing; {event.seq} comes next")
    tables.reopen(session, run, row)
    steps: list[StepFinished] = []  # neighbouring steps go in together: a log that is caught up on has many
    try:
        for event in new:
            if isinstance(event, SamplingStarted):
                row.open_rollouts += event.rollouts
                row.open_tokens += event.tokens
                continue
            if isinstance(event, StepFinished):
                steps.append(event)
                row.open_rollouts = row.open_tokens = 0
                continue
            _add_steps(session, run, row, steps)
            steps.clear()
            _add(session, run, row, event)
        _add_steps(session, run, row, steps)
    except ValueError as error:
        raise EventLogBroken(str(error)) from error
    row.last_seq = new[-1].seq
    session.flush()
    return len(new)


def _add(session: Session, run: Run, attempt: Attempt, event: AnyEvent) -> None:
    match event:
        case AttemptStarted():
            lost = tables.start(session, run, attempt, event.from_step, event.n_train)
            if lost != (event.lost.rollouts, event.lost.tokens):
                log.warning(
                    "attempt %s says that %s rollouts were lost, the database says %s",
                    attempt.attempt,
                    event.lost.rollouts,
                    lost.rollouts,
                )
        case PromptsLoaded():
            prompts = [(p.id, p.text, p.answer, p.tags) for p in event.prompts]
            tables.add_prompts(session, run, event.dataset, event.name, prompts)
        case MarksApplied():
            marks.applied(session, run, event.step, [mark.id for mark in event.marks])
        case EvaluationProgress():
            attempt.open_evaluation = {name: count.model_dump() for name, count in event.spent.items()}
        case EvaluationFinished():
            values = event.model_dump(exclude={"type", "seq", "time"}) | {"finished_at": _instant(event.time)}
            tables.add_evaluation(session, run, attempt, values)
            if run.evaluates is not None:
                _add_to_evaluated(session, run.evaluates, values)
        case CheckpointSaved():
            tables.add_checkpoint(run, attempt, event.step)
        case AttemptFinished():
            pass  # what it means for the run is the supervisor's to say, once the process is gone
        case StepFinished() | SamplingStarted():
            raise AssertionError("these are taken together")


def _add_to_evaluated(session: Session, run_id: uuid.UUID, values: dict[str, Any]) -> None:
    """Order of locks: the evaluation's row, which the caller holds, then its run's."""
    run = runs.locked(session, run_id)  # it cannot be deleted while it is evaluated
    own = [benchmark.name for benchmark in parse_config(run.config).benchmarks]
    tables.add_to_evaluated(session, run, values, own)


def _add_steps(session: Session, run: Run, attempt: Attempt, events: Sequence[StepFinished]) -> None:
    tables.add_steps(
        session,
        run,
        attempt,
        [
            tables.Step(
                step=event.step,
                epoch=event.epoch,
                finished_at=_instant(event.time),
                metrics=event.metrics,
                buckets=event.buckets,
                rollouts=event.rollouts,
                tokens=event.tokens,
                fates={f: tables.Spend(c.rollouts, c.tokens) for f, c in event.fates.items()},
                visits=event.visits,
                moves=event.moves,
            )
            for event in events
        ],
    )


def _instant(unix_seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(unix_seconds, dt.UTC)
