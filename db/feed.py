"""What has happened in a run since somebody last looked: its steps and evaluations in the order of their events.

A step that a later attempt repeats is news again. So the order is by attempt first, and a position in it stays valid
whatever is taken back and trained again.
"""

from __future__ import annotations

import uuid
from typing import Final, NamedTuple

from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from db.models import Attempt, Evaluation, Run, StepMetrics
from db.runs import get


class Position(NamedTuple):
    """The last thing that was seen. evaluated: whether it was the step's evaluation, which comes after the step."""

    attempt: int = 0
    step: int = 0
    evaluated: bool = False


class News(NamedTuple):
    """run: as it is now; from_step: where its newest attempt began. more: there is more than the limit allowed."""

    run: Run
    from_step: int | None
    items: list[tuple[Position, StepMetrics | Evaluation]]
    more: bool


_START: Final = Position()


def since(session: Session, run_id: uuid.UUID, after: Position = _START, *, limit: int = 200) -> News:
    """The first `limit` things after a position. Raises RunNotFound.

    In a session in REPEATABLE READ, a run that has ended and has no more news will never have any.
    """
    run = get(session, run_id)
    from_step = session.scalar(
        select(Attempt.from_step).where(Attempt.run_id == run_id, Attempt.attempt == run.attempt)
    )
    here = after.attempt, after.step
    step_key, evaluation_key = (
        tuple_(StepMetrics.attempt, StepMetrics.step),
        tuple_(Evaluation.attempt, Evaluation.step),
    )
    steps = session.scalars(
        select(StepMetrics)
        .where(StepMetrics.run_id == run_id, step_key > here)
        .order_by(StepMetrics.attempt, StepMetrics.step)
        .limit(limit + 1)
    ).all()
    # An evaluation before training is of step 0, which no step precedes.
    evaluations = session.scalars(
        select(Evaluation)
        .where(Evaluation.run_id == run_id, evaluation_key > here if after.evaluated else evaluation_key >= here)
        .order_by(Evaluation.attempt, Evaluation.step)
        .limit(limit + 1)
    ).all()
    items: list[tuple[Position, StepMetrics | Evaluation]] = [
        *((Position(step.attempt, step.step), step) for step in steps),
        *((Position(e.attempt, e.step, True), e) for e in evaluations),
    ]
    items.sort(key=lambda item: item[0])
    return News(run, from_step, items[:limit], more=len(items) > limit)
