"""Several runs side by side: how accurate each became, for which rollouts, tokens and hours, and where they went.

Reads only. It runs several statements; a session in REPEATABLE READ makes their answers one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Double, FromClause, Row, Subquery, and_, func, literal, select, union
from sqlalchemy.orm import Session

from db.models import Attempt, Evaluation, Run, StepMetrics
from db.runs import RunNotFound


class AccuracyAt(NamedTuple):
    """An evaluation. rollouts, tokens: sampled for training until then. hours: see StepAt."""

    step: int
    rollouts: int
    tokens: int
    hours: float
    accuracy: float
    stderr: float
    greedy_accuracy: float


class StepAt(NamedTuple):
    """A step with what training had cost until its end, and the metrics that were asked for, in that order.

    hours: how long the run's trainers had run, those of earlier attempts included; of the running one from its start on
    the database's clock to the step's end on its own, so that it is as right as the clocks agree.
    """

    step: int
    rollouts: int
    tokens: int
    hours: float
    metrics: list[float | None]


class Compared(NamedTuple):
    run: Run
    evaluations: list[AccuracyAt]
    steps: list[StepAt]


def compare(session: Session, run_ids: Sequence[uuid.UUID], *, points: int, metrics: Sequence[str]) -> list[Compared]:
    """The runs in the order in which they are named, each with all its evaluations and evenly spaced steps.

    points: about so many steps of each run at most; the first and the last are always among them.
    Raises RunNotFound for the first that is unknown.
    """
    runs = {run.id: run for run in session.scalars(select(Run).where(Run.id.in_(run_ids), Run.deleted_at.is_(None)))}
    for run_id in run_ids:
        if run_id not in runs:
            raise RunNotFound(run_id)
    evaluations = _by_run(session.execute(_evaluations(run_ids)))
    steps = _by_run(session.execute(_steps(run_ids, points, metrics)))
    return [
        Compared(
            runs[run_id],
            [AccuracyAt(*row) for row in evaluations.get(run_id, ())],
            [StepAt(row[0], row[1], row[2], row[3], row[4:]) for row in steps.get(run_id, ())],
        )
        for run_id in run_ids
    ]


def _evaluations(run_ids: Sequence[uuid.UUID]) -> Any:
    began = _began(run_ids)
    return (
        select(
            Evaluation.run_id,
            Evaluation.step,
            Evaluation.rollouts_spent,
            func.coalesce(StepMetrics.tokens, 0),  # none before the first step
            _hours(began, Evaluation.finished_at),
            Evaluation.sampled_accuracy,
            Evaluation.stderr,
            Evaluation.greedy_accuracy,
        )
        .join(began, and_(began.c.run_id == Evaluation.run_id, began.c.attempt == Evaluation.attempt))
        .outerjoin(StepMetrics, and_(StepMetrics.run_id == Evaluation.run_id, StepMetrics.step == Evaluation.step))
        .where(Evaluation.run_id.in_(run_ids))
        .order_by(Evaluation.run_id, Evaluation.step)
    )


def _steps(run_ids: Sequence[uuid.UUID], points: int, metrics: Sequence[str]) -> Any:
    """Steps are numbered without a gap: which are evenly spaced is known without reading the others."""
    stride = func.greatest(1, func.ceil(Run.step.cast(Double) / points)).cast(Run.step.type)
    last_to_first = select(Run.id, func.generate_series(Run.step, 1, -stride).label("step"))
    chosen = union(
        last_to_first.where(Run.id.in_(run_ids)),
        select(Run.id, literal(1)).where(Run.id.in_(run_ids), Run.step > 0),
    ).subquery()
    began = _began(run_ids)
    return (
        select(
            StepMetrics.run_id,
            StepMetrics.step,
            StepMetrics.rollouts,
            StepMetrics.tokens,
            _hours(began, StepMetrics.finished_at),
            *(StepMetrics.metrics[name].astext.cast(Double) for name in metrics),
        )
        .join(chosen, and_(chosen.c.id == StepMetrics.run_id, chosen.c.step == StepMetrics.step))
        .join(began, and_(began.c.run_id == StepMetrics.run_id, began.c.attempt == StepMetrics.attempt))
        .order_by(StepMetrics.run_id, StepMetrics.step)
    )


def _began(run_ids: Sequence[uuid.UUID]) -> Subquery:
    """When each attempt began, and for how many seconds the trainers of those before it had run."""
    before = func.sum(Attempt.seconds).over(partition_by=Attempt.run_id, order_by=Attempt.attempt, rows=(None, -1))
    return (
        select(Attempt.run_id, Attempt.attempt, Attempt.started_at, func.coalesce(before, 0.0).label("before"))
        .where(Attempt.run_id.in_(run_ids))
        .subquery()
    )


def _hours(began: FromClause, until: Any) -> Any:
    ran = func.extract("epoch", until - began.c.started_at).cast(Double)
    return (began.c.before + func.greatest(0.0, ran)) / 3600.0


def _by_run(rows: Iterable[Row[Any]]) -> dict[uuid.UUID, list[list[Any]]]:
    """The rows without their first column, by that."""
    found: dict[uuid.UUID, list[list[Any]]] = {}
    for row in rows:
        found.setdefault(row[0], []).append(list(row[1:]))
    return found
