"""Lists of runs: filtered, sorted, a page at a time; and how the runs of a page got on lately. Reads only."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Double, Text, case, cast, func, literal, or_, select, text, tuple_
from sqlalchemy.orm import Session

from db.models import RUN_STATES, Run, StepMetrics

Sort = Literal["created", "name", "accuracy", "rollouts", "state", "variance", "owner"]
Archived = Literal["no", "only", "any"]
CURVE_POINTS = 30
PACE_STEPS = 20
BEYOND = 1e18  # any variance


class Filter(NamedTuple):
    """Which runs: of one of these states (none: of any), of this method, tag and owner; archived ones, too, or only.

    search: part of the name or of the model's path in any case, a whole tag, or the beginning of the id.
    """

    states: Sequence[str] = ()
    method: str | None = None
    tag: str | None = None
    owner: str | None = None
    search: str | None = None
    archived: Archived = "no"


class RunPlace(NamedTuple):
    """Where a page of runs ended: its last run's sort value and id."""

    value: dt.datetime | float | str
    id: uuid.UUID


class RunRows(NamedTuple):
    rows: list[Run]
    total: int
    after: RunPlace | None


class Facets(NamedTuple):
    """What there is to filter by, in alphabetical order."""

    methods: list[str]
    tags: list[str]
    owners: list[str]


class Progress(NamedTuple):
    """How a run got on. curve: rollouts spent and sampled accuracy of at most CURVE_POINTS evaluations, the first and
    the newest among them. seconds: how long its trainers ran.

    reward_variance: mean of the trained groups of the last PACE_STEPS steps. steps, rollouts, tokens, pace_s: what the
    newest attempt did in so many of its last seconds; zeros until two of its steps are known.
    """

    curve: list[tuple[int, float]]
    seconds: float
    reward_variance: float | None
    steps: int
    rollouts: int
    tokens: int
    pace_s: float


def page(
    session: Session,
    wanted: Filter,
    *,
    sort: Sort = "created",
    descending: bool = True,
    limit: int,
    after: RunPlace | None = None,
) -> RunRows:
    """Up to `limit` runs, how many match in all, and where the next page begins; None when there is no further one.

    Runs without an accuracy, a variance or an owner come last in both directions; states are in the order of a run's
    life; equal values are in the order of ids. How long a run still takes is nothing to sort by: it follows from its
    budgets, which its config has. A run whose own sort value changes between two pages may move across the border; no
    other one is lost or repeated.
    """
    matching = select(Run).where(*_conditions(wanted))
    total = session.scalar(select(func.count()).select_from(matching.subquery())) or 0
    key = _sort_key(sort, descending)
    ordered = matching.add_columns(key.label("sort_key"))
    if descending:
        ordered = ordered.order_by(key.desc(), Run.id.desc())
    else:
        ordered = ordered.order_by(key, Run.id)
    if after is not None:
        here, end = tuple_(key, Run.id), tuple_(literal(after.value), literal(after.id))
        ordered = ordered.where(here < end if descending else here > end)
    found = session.execute(ordered.limit(limit + 1)).all()
    rows = found[:limit]
    last = RunPlace(rows[-1].sort_key, rows[-1].Run.id) if len(found) > limit else None
    return RunRows([row.Run for row in rows], total, last)


def facets(session: Session) -> Facets:
    """Of all runs, the archived ones included."""
    kept = _training_runs()
    columns = (Run.method, func.unnest(Run.tags), Run.created_by)
    found = (session.scalars(select(column).where(*kept).distinct()) for column in columns)
    return Facets(*(sorted(value for value in values if value is not None) for values in found))


def progress(session: Session, run_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Progress]:
    """Of each of these runs. Its cost does not grow with their length: it is looked up, not read through."""
    if not run_ids:
        return {}
    curves: dict[uuid.UUID, list[tuple[int, float]]] = {run_id: [] for run_id in run_ids}
    for run_id, rollouts, accuracy, _ in session.execute(_CURVES, {"ids": list(run_ids), "last": CURVE_POINTS - 1}):
        curves[run_id].append((rollouts, accuracy))
    lately = session.execute(_LATELY, {"ids": list(run_ids), "last": PACE_STEPS}).all()
    return {row.id: Progress(curves[row.id], *row[1:]) for row in lately}


# Of equal parts of the run's steps, the newest evaluation before the end of each.
_CURVES = text(
    """
    SELECT DISTINCT e.run_id, e.rollouts_spent, e.sampled_accuracy, e.step
    FROM runs CROSS JOIN generate_series(0, :last) AS part
    CROSS JOIN LATERAL (
        SELECT run_id, step, rollouts_spent, sampled_accuracy FROM evaluations
        WHERE run_id = runs.id AND step <= runs.step::bigint * part / :last
        ORDER BY step DESC LIMIT 1
    ) AS e
    WHERE runs.id = ANY (:ids) ORDER BY e.run_id, e.step
    """
)
_LATELY = text(
    """
    SELECT runs.id,
        coalesce((SELECT sum(seconds) FROM attempts WHERE run_id = runs.id), 0)
            + coalesce((SELECT seconds FROM leases WHERE run_id = runs.id AND EXISTS (
                SELECT FROM attempts WHERE run_id = runs.id AND attempt = runs.attempt AND finished_at IS NULL)), 0)
            AS seconds,
        lately.reward_variance, coalesce(lately.steps, 0) AS steps, coalesce(lately.rollouts, 0) AS rollouts,
        coalesce(lately.tokens, 0) AS tokens, coalesce(lately.pace_s, 0) AS pace_s
    FROM runs CROSS JOIN LATERAL (
        SELECT avg((metrics ->> 'reward_variance')::float8) AS reward_variance,
            max(step) FILTER (WHERE newest) - min(step) FILTER (WHERE newest) AS steps,
            max(rollouts) FILTER (WHERE newest) - min(rollouts) FILTER (WHERE newest) AS rollouts,
            max(tokens) FILTER (WHERE newest) - min(tokens) FILTER (WHERE newest) AS tokens,
            extract(epoch FROM max(finished_at) FILTER (WHERE newest) - min(finished_at) FILTER (WHERE newest))::float8
                AS pace_s
        FROM (
            SELECT *, attempt = runs.attempt AS newest FROM step_metrics
            WHERE run_id = runs.id AND step > runs.step - :last
        ) AS steps
    ) AS lately
    WHERE runs.id = ANY (:ids)
    """
)


def _training_runs() -> list[ColumnElement[bool]]:
    return [Run.deleted_at.is_(None), Run.evaluates.is_(None)]


def _conditions(wanted: Filter) -> list[ColumnElement[bool]]:
    conditions = _training_runs()
    if wanted.states:
        conditions.append(Run.state.in_(wanted.states))
    if wanted.method is not None:
        conditions.append(Run.method == wanted.method)
    if wanted.tag is not None:
        conditions.append(Run.tags.contains([wanted.tag]))
    if wanted.owner is not None:
        conditions.append(Run.created_by == wanted.owner)
    if wanted.search:
        conditions.append(
            or_(
                Run.name.icontains(wanted.search, autoescape=True),
                Run.model.icontains(wanted.search, autoescape=True),
                Run.tags.contains([wanted.search]),
                cast(Run.id, Text).startswith(wanted.search.lower(), autoescape=True),
            )
        )
    if wanted.archived != "any":
        conditions.append(Run.archived_at.is_(None) if wanted.archived == "no" else Run.archived_at.is_not(None))
    return conditions


def _sort_key(sort: Sort, descending: bool) -> ColumnElement[Any]:
    """A value for every run, so that pages can go on after it; where there is none it is beyond the last."""
    match sort:
        case "created":
            return Run.created_at.expression
        case "name":
            return func.lower(Run.name)
        case "accuracy":
            return func.coalesce(Run.accuracy, -1.0 if descending else 2.0)
        case "rollouts":
            return Run.rollouts.expression
        case "state":
            return cast(case({state: at for at, state in enumerate(RUN_STATES)}, value=Run.state), Double)
        case "variance":
            return func.coalesce(_reward_variance(), -1.0 if descending else BEYOND)
        case "owner":
            # The digit decides first, in every collation.
            with_owner, without = ("1", "0") if descending else ("0", "1")
            return func.coalesce(with_owner + func.lower(Run.created_by), without)


def _reward_variance() -> ColumnElement[Any]:
    """As `progress` tells it."""
    value = StepMetrics.metrics["reward_variance"].astext.cast(Double)
    lately = (StepMetrics.run_id == Run.id, StepMetrics.step > Run.step - PACE_STEPS)
    return select(func.avg(value)).where(*lately).correlate(Run).scalar_subquery()
