"""Several runs side by side: how accurate each became, for which rollouts, tokens and hours, and where they went.

Reads only. It runs several statements; a session in REPEATABLE READ makes their answers one snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Double, FromClause, Select, Subquery, and_, func, literal, select, union
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.orm import Session

from db.models import Attempt, Evaluation, Run, StepMetrics
from db.runs import RunNotFound


class Evaluations(NamedTuple):
    """Value i of each list is of evaluation i. rollouts, tokens: sampled for training until then. hours: see Steps."""

    step: list[int]
    rollouts: list[int]
    tokens: list[int]
    hours: list[float]
    accuracy: list[float]
    stderr: list[float]
    greedy_accuracy: list[float]


class Steps(NamedTuple):
    """Value i of each list is of the same step. metrics: one list for each metric that was asked for.

    hours: how long the run's trainers had run, those of earlier attempts included; of the running one from its start on
    the database's clock to the step's end on its own, so that it is as right as the clocks agree.
    """

    step: list[int]
    rollouts: list[int]
    tokens: list[int]
    hours: list[float]
    metrics: list[list[float | None]]


class Compared(NamedTuple):
    run: Run
    evaluations: Evaluations
    steps: Steps


def compare(session: Session, run_ids: Sequence[uuid.UUID], *, points: int, metrics: Sequence[str]) -> list[Compared]:
    """The runs in the order in which they are named, each with all its evaluations and evenly spaced steps.

    points: about so many steps of each run at most; the first and the last are always among them.
    Raises RunNotFound for the first that is unknown.
    """
    kept = select(Run).where(Run.id.in_(run_ids), Run.deleted_at.is_(None), Run.evaluates.is_(None))
    runs = {run.id: run for run in session.scalars(kept)}
    for run_id in run_ids:
        if run_id not in runs:
            raise RunNotFound(run_id)
    evaluations = {row[0]: Evaluations(*row[1:]) for row in session.execute(_columns(_evaluations(run_ids)))}
    found = session.execute(_columns(_steps(run_ids, points, metrics)))
    steps = {id: Steps(step, rollouts, tokens, hours, values) for id, step, rollouts, tokens, hours, *values in found}
    none, unstarted = Evaluations([], [], [], [], [], [], []), Steps([], [], [], [], [[] for _ in metrics])
    return [Compared(runs[run_id], evaluations.get(run_id, none), steps.get(run_id, unstarted)) for run_id in run_ids]


def _columns(rows: Select[Any]) -> Select[Any]:
    """One row a run: its id, and each further column of its rows as an array in the order of steps.

    Faster than as many rows: neither the driver nor we touch each value.
    """
    of = rows.cte("rows").prefix_with("MATERIALIZED")  # else each step's whole JSON goes through the sort, on disk
    run_id, step, *_ = of.c
    arrays = (func.array_agg(aggregate_order_by(column, step)) for column in list(of.c)[1:])
    return select(run_id, *arrays).group_by(run_id)


def _evaluations(run_ids: Sequence[uuid.UUID]) -> Select[Any]:
    began = _began(run_ids)
    return (
        select(
            Evaluation.run_id,
            Evaluation.step,
            Evaluation.rollouts_spent,
            func.coalesce(StepMetrics.tokens, 0).label("tokens"),  # none before the first step
            _hours(began, Evaluation.finished_at).label("hours"),
            Evaluation.sampled_accuracy,
            Evaluation.stderr,
            Evaluation.greedy_accuracy,
        )
        .join(began, and_(began.c.run_id == Evaluation.run_id, began.c.attempt == Evaluation.attempt))
        .outerjoin(StepMetrics, and_(StepMetrics.run_id == Evaluation.run_id, StepMetrics.step == Evaluation.step))
        .where(Evaluation.run_id.in_(run_ids))
    )


def _steps(run_ids: Sequence[uuid.UUID], points: int, metrics: Sequence[str]) -> Select[Any]:
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
            _hours(began, StepMetrics.finished_at).label("hours"),
            *(StepMetrics.metrics[name].astext.cast(Double).label(f"metric_{i}") for i, name in enumerate(metrics)),
        )
        .join(chosen, and_(chosen.c.id == StepMetrics.run_id, chosen.c.step == StepMetrics.step))
        .join(began, and_(began.c.run_id == StepMetrics.run_id, began.c.attempt == StepMetrics.attempt))
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
