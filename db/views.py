"""What a run page shows: metrics, bucket counts, the ledger, prompts and one prompt's history. Reads only.

Several functions run more than one statement; a session in REPEATABLE READ makes their answers one snapshot.
All raise RunNotFound for an unknown run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Float, Integer, Select, and_, func, literal, or_, select, text, tuple_
from sqlalchemy.orm import Session

from db.models import (
    BUCKETS,
    Evaluation,
    LedgerEntry,
    Prompt,
    PromptMove,
    PromptState,
    PromptVisit,
    Run,
    StepMetrics,
)
from db.runs import RunNotFound, get

SortKey = Literal["visits", "rollouts", "tokens", "success_rate", "step"]


class PromptNotFound(LookupError):
    def __init__(self, run_id: uuid.UUID, prompt_id: str) -> None:
        super().__init__(f"run {run_id} has no prompt {prompt_id!r} in its training set")


class BucketCounts(NamedTuple):
    """How many prompts lie in each bucket after `step`; every bucket is named."""

    step: int
    counts: dict[str, int]


class Spend(NamedTuple):
    rollouts: int
    tokens: int


class PromptStanding(NamedTuple):
    """A prompt of the data set and where it stands in one run; zeros and None when it was never touched."""

    id: str
    text: str
    answer: str
    tags: list[str]
    bucket: str
    success_rate: float | None
    visits: int
    rollouts: int
    tokens: int
    step: int | None


class PromptFilter(NamedTuple):
    """Which of a run's prompts. search: part of the text in any case, a whole id, or a whole tag. min_rate, max_rate:
    of the success rate at the last visit, ends included; they leave out prompts without one.
    """

    bucket: str | None = None
    search: str | None = None
    tag: str | None = None
    min_rate: float | None = None
    max_rate: float | None = None


class PromptCursor(NamedTuple):
    """Where a page of prompts ended: its last prompt's sort value (None counts last) and id."""

    value: float | int
    id: str


class Prompts(NamedTuple):
    rows: list[PromptStanding]
    total: int
    after: PromptCursor | None


class History(NamedTuple):
    prompt: PromptStanding
    visits: Sequence[PromptVisit]
    moves: Sequence[PromptMove]


def metrics(
    session: Session,
    run_id: uuid.UUID,
    from_step: int,
    to_step: int | None = None,
    *,
    parts: int | None = None,
    shown: Sequence[str] = (),
) -> tuple[Sequence[StepMetrics], Sequence[Evaluation]]:
    """Steps and evaluations of a range, both ends included, in order.

    parts: cut the range into so many equal parts and return only the steps that hold the smallest or the largest
    value, in their part, of a metric in `shown`, and the first and the last step: a chart of them looks the same.
    """
    get(session, run_id)
    last = to_step if to_step is not None else 2**31 - 1
    steps = (
        select(StepMetrics)
        .where(StepMetrics.run_id == run_id, StepMetrics.step.between(from_step, last))
        .order_by(StepMetrics.step)
    )
    if parts is not None:
        range_ = {"run_id": run_id, "from_step": from_step, "to_step": last}
        kept = session.scalars(_EXTREMES, range_ | {"parts": parts, "shown": list(shown)}).all()
        steps = steps.where(StepMetrics.step.in_(kept))
    evaluations = session.scalars(
        select(Evaluation)
        .where(Evaluation.run_id == run_id, Evaluation.step.between(from_step, last))
        .order_by(Evaluation.step)
    ).all()
    return session.scalars(steps).all(), evaluations


# The range is that of the steps that are there, so that parts are not wasted on steps to come.
_EXTREMES = text(
    """
    WITH ends AS (
        SELECT min(step) AS first, max(step) AS last FROM step_metrics
        WHERE run_id = :run_id AND step BETWEEN :from_step AND :to_step
    ), known AS (
        SELECT step, name, (metrics ->> name)::float8 AS value,
               width_bucket(step, first, last + 1, :parts) AS part
        FROM step_metrics CROSS JOIN ends CROSS JOIN unnest(CAST(:shown AS text[])) AS name
        WHERE run_id = :run_id AND step BETWEEN first AND last AND metrics ->> name IS NOT NULL
    )
    (SELECT DISTINCT ON (name, part) step FROM known ORDER BY name, part, value, step)
    UNION (SELECT DISTINCT ON (name, part) step FROM known ORDER BY name, part, value DESC, step)
    UNION SELECT first FROM ends WHERE first IS NOT NULL
    UNION SELECT last FROM ends WHERE last IS NOT NULL
    """
)


_SPREAD = text(
    """
    WITH ends AS (
        SELECT min(step) AS first, max(step) AS last FROM step_metrics WHERE run_id = :run_id AND step >= :from_step
    )
    SELECT max(step) FROM step_metrics CROSS JOIN ends
    WHERE run_id = :run_id AND step >= :from_step GROUP BY width_bucket(step, first, last + 1, :parts)
    UNION SELECT first FROM ends WHERE first IS NOT NULL
    """
)


class Recent(NamedTuple):
    """The newest steps, oldest first, all evaluations; and of the last `last` steps how many groups of the prompts'
    first stage led to each bucket, and how many rollouts got no reward.
    """

    run: Run
    steps: Sequence[StepMetrics]
    evaluations: Sequence[Evaluation]
    judged: dict[str, int]
    failed: int


def recent(session: Session, run_id: uuid.UUID, *, steps: int, last: int) -> Recent:
    """What alerts are made from."""
    run = get(session, run_id)
    newest = session.scalars(
        select(StepMetrics)
        .where(StepMetrics.run_id == run_id, StepMetrics.step > run.step - steps)
        .order_by(StepMetrics.step)
    ).all()
    evaluations = session.scalars(select(Evaluation).where(Evaluation.run_id == run_id).order_by(Evaluation.step)).all()
    groups = session.execute(
        select(PromptVisit.stage, PromptVisit.bucket, func.count())
        .where(PromptVisit.run_id == run_id, PromptVisit.step > run.step - last)
        .group_by(PromptVisit.stage, PromptVisit.bucket)
    ).all()
    first = "pilot" if any(stage == "pilot" for stage, _, _ in groups) else "commit"
    failed = session.scalar(
        select(func.coalesce(func.sum(LedgerEntry.rollouts), 0)).where(
            LedgerEntry.run_id == run_id, LedgerEntry.fate == "failed", LedgerEntry.step > run.step - last
        )
    )
    judged = {bucket: n for stage, bucket, n in groups if stage == first}
    return Recent(run, newest, evaluations, judged, int(failed or 0))


def buckets(
    session: Session, run_id: uuid.UUID, from_step: int, *, points: int | None = None
) -> tuple[BucketCounts, list[BucketCounts]]:
    """The counts now, and after every step from `from_step` on; points: only of so many steps, evenly spread."""
    run = get(session, run_id)
    after = (
        select(StepMetrics.step, StepMetrics.buckets)
        .where(StepMetrics.run_id == run_id, StepMetrics.step >= from_step)
        .order_by(StepMetrics.step)
    )
    if points is not None:
        kept = session.scalars(_SPREAD, {"run_id": run_id, "from_step": from_step, "parts": points - 1}).all()
        after = after.where(StepMetrics.step.in_(kept))
    rows = session.execute(after)
    return bucket_counts(run.step, run.buckets), [bucket_counts(step, counts) for step, counts in rows]


class Books(NamedTuple):
    """sampled: by the run's own counters. fates: its spend by fate, which adds up to the same. evaluation: apart from
    both, by benchmark.
    """

    sampled: Spend
    fates: dict[str, Spend]
    evaluation: dict[str, Spend]


def ledger(session: Session, run_id: uuid.UUID) -> Books:
    """One statement, so that all is of the same moment."""
    rows = session.execute(
        select(
            Run.rollouts,
            Run.tokens,
            LedgerEntry.fate,
            func.coalesce(func.sum(LedgerEntry.rollouts), 0).cast(Run.rollouts.type),
            func.coalesce(func.sum(LedgerEntry.tokens), 0).cast(Run.tokens.type),
            Run.eval_spend,
        )
        .outerjoin(LedgerEntry, LedgerEntry.run_id == Run.id)
        .where(Run.id == run_id, Run.deleted_at.is_(None))
        .group_by(Run.id, LedgerEntry.fate)
    ).all()
    if not rows:
        raise RunNotFound(run_id)
    return Books(
        Spend(rows[0][0], rows[0][1]),
        {row[2]: Spend(row[3], row[4]) for row in rows if row[2] is not None},
        {benchmark: Spend(**spend) for benchmark, spend in rows[0][5].items()},
    )


_ALL = PromptFilter()


def prompts(
    session: Session,
    run_id: uuid.UUID,
    *,
    which: PromptFilter = _ALL,
    sort: SortKey = "visits",
    descending: bool = True,
    limit: int,
    after: PromptCursor | None = None,
) -> Prompts:
    """One page of a run's training prompts, the untouched ones included, and how many match in all.

    Prompts without a value to sort by come last in both directions; equal values are in the order of ids. A prompt
    whose own value changes between two pages may move across the border; no other one is lost or repeated.
    """
    run = get(session, run_id)
    if run.dataset_id is None:  # the trainer has not read its prompts yet
        return Prompts([], 0, None)
    matching = _matching(run, which)
    total = session.scalar(_count(run, which)) or 0
    key = _sort_key(sort, descending)
    ordered = matching.add_columns(key.label("sort_key"))
    if descending:
        ordered = ordered.order_by(key.desc(), Prompt.id.desc())
    else:
        ordered = ordered.order_by(key, Prompt.id)
    if after is not None:
        here, end = tuple_(key, Prompt.id), tuple_(literal(after.value, key.type), literal(after.id))
        ordered = ordered.where(here < end if descending else here > end)
    found = session.execute(ordered.limit(limit + 1)).all()
    rows = found[:limit]
    last = PromptCursor(rows[-1].sort_key, rows[-1].id) if len(found) > limit else None
    return Prompts([PromptStanding(*row[:-1]) for row in rows], total, last)


def selected(session: Session, run_id: uuid.UUID, which: PromptFilter) -> Iterator[PromptStanding]:
    """Every prompt that matches, by id, as the rows come from the server. Raises RunNotFound at once."""
    run = get(session, run_id)
    if run.dataset_id is None:
        return iter(())
    rows = session.execute(_matching(run, which).order_by(Prompt.id).execution_options(yield_per=2000))
    return (PromptStanding(*row) for row in rows)


def visited_steps(session: Session, run_id: uuid.UUID, prompt_id: str, before: int, limit: int) -> Sequence[int]:
    """The newest steps before `before` in which the prompt was sampled, newest first. Raises PromptNotFound."""
    run = get(session, run_id)
    if session.execute(_standings(run).where(Prompt.id == prompt_id)).one_or_none() is None:
        raise PromptNotFound(run_id, prompt_id)
    of_prompt = (PromptVisit.run_id == run_id, PromptVisit.prompt_id == prompt_id, PromptVisit.step < before)
    newest = select(PromptVisit.step).where(*of_prompt).distinct().order_by(PromptVisit.step.desc()).limit(limit)
    return session.scalars(newest).all()


def tags(session: Session, run_id: uuid.UUID, limit: int) -> list[tuple[str, int]]:
    """The most frequent tags of a run's prompts, and on how many prompts each is."""
    run = get(session, run_id)
    each = select(func.unnest(Prompt.tags).label("tag")).where(Prompt.dataset_id == run.dataset_id).subquery()
    n = func.count().label("n")
    rows = session.execute(select(each.c.tag, n).group_by(each.c.tag).order_by(n.desc(), each.c.tag).limit(limit))
    return [(tag, count) for tag, count in rows]


def prompt_history(session: Session, run_id: uuid.UUID, prompt_id: str) -> History:
    """A prompt, its visits and its moves, each in the order in which they happened. Raises PromptNotFound."""
    run = get(session, run_id)
    row = session.execute(_standings(run).where(Prompt.id == prompt_id)).one_or_none()
    if row is None:
        raise PromptNotFound(run_id, prompt_id)
    visits = session.scalars(
        select(PromptVisit)
        .where(PromptVisit.run_id == run_id, PromptVisit.prompt_id == prompt_id)
        .order_by(PromptVisit.step, PromptVisit.position)
    ).all()
    moves = session.scalars(
        select(PromptMove)
        .where(PromptMove.run_id == run_id, PromptMove.prompt_id == prompt_id)
        .order_by(PromptMove.step)
    ).all()
    return History(PromptStanding(*row), visits, moves)


_bucket = func.coalesce(PromptState.bucket, "unseen")


def _standings(run: Run) -> Select[*tuple[Any, ...]]:
    """The data set's prompts with their state in this run, in the fields' order of PromptStanding."""
    return (
        select(
            Prompt.id,
            Prompt.text,
            Prompt.answer,
            Prompt.tags,
            _bucket.label("bucket"),
            PromptState.success_rate,
            func.coalesce(PromptState.visits, 0).label("visits"),
            func.coalesce(PromptState.rollouts, 0).label("rollouts"),
            func.coalesce(PromptState.tokens, 0).label("tokens"),
            PromptState.step,
        )
        .outerjoin(PromptState, and_(PromptState.prompt_id == Prompt.id, PromptState.run_id == run.id))
        .where(Prompt.dataset_id == run.dataset_id)
    )


def _matching(run: Run, which: PromptFilter) -> Select[*tuple[Any, ...]]:
    matching = _standings(run)
    if which.bucket is not None:
        matching = matching.where(_bucket == which.bucket)
    if which.search:
        matching = matching.where(
            or_(
                Prompt.text.icontains(which.search, autoescape=True),
                Prompt.id == which.search,
                Prompt.tags.contains([which.search]),
            )
        )
    if which.tag is not None:
        matching = matching.where(Prompt.tags.contains([which.tag]))
    if which.min_rate is not None:
        matching = matching.where(PromptState.success_rate >= which.min_rate)
    if which.max_rate is not None:
        matching = matching.where(PromptState.success_rate <= which.max_rate)
    return matching


def _count(run: Run, which: PromptFilter) -> Select[int]:
    """How many prompts match: without the prompts' texts, or the states, where those do not matter."""
    if which.search or which.tag is not None or which.bucket == "unseen":
        return select(func.count()).select_from(_matching(run, which).subquery())
    if which._replace(search=None) == _ALL:
        return select(func.count()).where(Prompt.dataset_id == run.dataset_id)
    states = [PromptState.run_id == run.id]
    if which.bucket is not None:
        states.append(PromptState.bucket == which.bucket)
    if which.min_rate is not None:
        states.append(PromptState.success_rate >= which.min_rate)
    if which.max_rate is not None:
        states.append(PromptState.success_rate <= which.max_rate)
    return select(func.count()).where(*states)


def _sort_key(sort: SortKey, descending: bool) -> ColumnElement[Any]:
    """A value for every prompt, so that pages can go on after it; none counts as beyond the last."""
    beyond = -1 if descending else 2**31 - 1
    match sort:
        case "visits":
            return func.coalesce(PromptState.visits, 0, type_=Integer())
        case "rollouts":
            return func.coalesce(PromptState.rollouts, 0, type_=Integer())
        case "tokens":
            return func.coalesce(PromptState.tokens, 0, type_=BigInteger())
        case "step":
            return func.coalesce(PromptState.step, beyond, type_=Integer())
        case "success_rate":
            return func.coalesce(PromptState.success_rate, float(beyond), type_=Float())


def bucket_counts(step: int, counts: dict[str, Any]) -> BucketCounts:
    return BucketCounts(step, {bucket: int(counts.get(bucket, 0)) for bucket in BUCKETS})
