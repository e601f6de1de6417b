"""What a run page shows: metrics, bucket counts, the ledger, prompts and one prompt's history. Reads only.

Several functions run more than one statement; a session in REPEATABLE READ makes their answers one snapshot.
All raise RunNotFound for an unknown run.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import ColumnElement, Double, Select, Text, and_, func, literal, or_, select, text, tuple_
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import InstrumentedAttribute, Session

from db import marks
from db.models import (
    BUCKETS,
    Evaluation,
    LedgerEntry,
    Prompt,
    PromptMark,
    PromptMove,
    PromptState,
    PromptVisit,
    Run,
    StepMetrics,
)
from db.runs import get

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
    of the success rate at the last visit, ends included; they leave out prompts without one. marked: with such a mark,
    held or still to come.
    """

    bucket: str | None = None
    search: str | None = None
    tag: str | None = None
    min_rate: float | None = None
    max_rate: float | None = None
    marked: marks.Marked | None = None


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
    marks: Sequence[PromptMark]  # newest first


class StepNumbers(NamedTuple):
    """One step's numbers. rollouts, tokens: cumulative."""

    step: int
    attempt: int
    epoch: int
    rollouts: int
    tokens: int
    metrics: dict[str, float | None]
    finished_at: dt.datetime


def metrics(
    session: Session,
    run_id: uuid.UUID,
    from_step: int,
    to_step: int | None = None,
    *,
    names: Sequence[str] = (),
    parts: int | None = None,
    extremes: Sequence[str] = (),
) -> tuple[list[StepNumbers], Sequence[Evaluation]]:
    """Steps and evaluations of a range, both ends included, in order.

    names: only these metrics, null where a step has no such value; none: all. parts: cut the range into so many equal
    parts and return only the steps that hold the smallest or the largest value, in their part, of a metric in
    `extremes`, and the first and the last step: a chart of them looks the same.
    """
    get(session, run_id)
    last = to_step if to_step is not None else 2**31 - 1
    pairs = [part for name in names for part in (literal(name, Text), StepMetrics.metrics[name])]
    numbers = func.jsonb_build_object(*pairs, type_=JSONB) if names else StepMetrics.metrics
    wanted = StepMetrics.step.between(from_step, last)
    if parts is not None:
        wanted = StepMetrics.step.in_(_extremes(session, run_id, from_step, last, parts, extremes))
    evaluations = session.scalars(
        select(Evaluation)
        .where(Evaluation.run_id == run_id, Evaluation.step.between(from_step, last))
        .order_by(Evaluation.step)
    ).all()
    return _steps(session, run_id, numbers, wanted), evaluations


def _steps(
    session: Session,
    run_id: uuid.UUID,
    numbers: ColumnElement[Any] | InstrumentedAttribute[Any],
    wanted: ColumnElement[bool],
) -> list[StepNumbers]:
    """In order. As plain rows, for there are many: to make objects of the session of them takes as long again."""
    columns = (StepMetrics.step, StepMetrics.attempt, StepMetrics.epoch, StepMetrics.rollouts, StepMetrics.tokens)
    rows = select(*columns, numbers, StepMetrics.finished_at).where(StepMetrics.run_id == run_id, wanted)
    return [StepNumbers(*row) for row in session.execute(rows.order_by(StepMetrics.step))]


class UnknownMetric(NamedTuple):
    """A name that no step has, and those that the newest steps have."""

    name: str
    known: list[str]


def unknown_metric(session: Session, run_ids: Sequence[uuid.UUID], names: Sequence[str]) -> UnknownMetric | None:
    """The first name that no step of any of the runs has. None as well while there is no step to tell."""
    newest = (
        select(func.jsonb_object_keys(StepMetrics.metrics))
        .join(Run, and_(Run.id == StepMetrics.run_id, Run.step == StepMetrics.step))
        .where(Run.id.in_(run_ids))
    )
    known = sorted(set(session.scalars(newest))) if names else []
    for name in names:
        if known and name not in known:  # some are in few steps only
            steps = select(StepMetrics.step).where(StepMetrics.run_id.in_(run_ids), StepMetrics.metrics.has_key(name))
            if session.scalar(steps.limit(1)) is None:
                return UnknownMetric(name, known)
    return None


def _extremes(
    session: Session, run_id: uuid.UUID, from_step: int, to_step: int, parts: int, shown: Sequence[str]
) -> set[int]:
    """The steps to keep: see `metrics`. Of several steps with an extreme value, the first."""
    in_range = StepMetrics.run_id == run_id, StepMetrics.step.between(from_step, to_step)
    # The parts are those of the steps that are there, so that none is wasted on steps to come.
    first, last = session.execute(select(func.min(StepMetrics.step), func.max(StepMetrics.step)).where(*in_range)).one()
    if first is None:
        return set()
    values = [StepMetrics.metrics[name].astext.cast(Double).label(f"value_{i}") for i, name in enumerate(shown)]
    part = func.width_bucket(StepMetrics.step, first, last + 1, parts).label("part")
    known = select(StepMetrics.step, part, *values).where(*in_range).cte("known")
    series = [known.c[value.name] for value in values]
    low = [func.min(value).label(f"low_{i}") for i, value in enumerate(series)]
    high = [func.max(value).label(f"high_{i}") for i, value in enumerate(series)]
    ends = select(known.c.part, *low, *high).group_by(known.c.part).cte("ends")
    # In two passes over plain numbers: carrying each value's step along in one took five times as long.
    at_end = [
        func.min(known.c.step).filter(value == ends.c[end.name])
        for value, pair in zip(series, zip(low, high, strict=True), strict=True)
        for end in pair
    ]
    rows = session.execute(select(*at_end).join_from(known, ends, known.c.part == ends.c.part).group_by(known.c.part))
    return {first, last} | {step for row in rows for step in row if step is not None}


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
    steps: Sequence[StepNumbers]
    evaluations: Sequence[Evaluation]
    judged: dict[str, int]
    failed: int


def recent(session: Session, run_id: uuid.UUID, *, steps: int, last: int) -> Recent:
    """What alerts are made from."""
    run = get(session, run_id)
    newest = _steps(session, run_id, StepMetrics.metrics, StepMetrics.step > run.step - steps)
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
    return ledger_of(get(session, run_id))


def ledger_of(run: Run) -> Books:
    return Books(
        Spend(run.rollouts, run.tokens),
        {fate: Spend(*spend) for fate, spend in run.fates.items()},
        {benchmark: Spend(**spend) for benchmark, spend in run.eval_spend.items()},
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
    if which.search or which.tag is not None or which.marked is not None:
        return _read_through(session, run, which, sort, descending, limit, after)
    total = _count(session, run, which)
    places = _touched(session, run, which, sort, descending, limit + 1, after)
    # The untouched ones all have one value, mostly the last: a page that ends before it has none of them.
    value = _without_value(sort, descending)
    full = len(places) > limit and (places[-1].value > value if descending else places[-1].value < value)
    if not full:
        others = _untouched(session, run, which, sort, descending, limit + 1, after)
        places = sorted({*places, *others}, reverse=descending)
    page = places[:limit]
    rows = session.execute(_standings(run).where(Prompt.id.in_([place.id for place in page])))
    found = {row.id: PromptStanding(*row) for row in rows}
    return Prompts([found[place.id] for place in page], total, page[-1] if len(places) > limit else None)


def _touched(
    session: Session,
    run: Run,
    which: PromptFilter,
    sort: SortKey,
    descending: bool,
    limit: int,
    after: PromptCursor | None,
) -> list[PromptCursor]:
    """The first prompts that the run has touched, without a look at the prompts themselves."""
    key, id = _sort_key(sort, descending), PromptState.prompt_id
    query = select(key, id).where(PromptState.run_id == run.id, *_of_state(which))
    return _first(session, query, key, id, descending, limit, after)


def _untouched(
    session: Session,
    run: Run,
    which: PromptFilter,
    sort: SortKey,
    descending: bool,
    limit: int,
    after: PromptCursor | None,
) -> list[PromptCursor]:
    """The first prompts that the run has not touched: they all have one sort value, and are in the order of ids."""
    rated = which.min_rate is not None or which.max_rate is not None
    if rated or which.bucket not in (None, "unseen") or not run.buckets.get("unseen"):
        return []
    touched = select(PromptState).where(PromptState.run_id == run.id, PromptState.prompt_id == Prompt.id)
    key = literal(_without_value(sort, descending))
    query = select(key, Prompt.id).where(Prompt.dataset_id == run.dataset_id, ~touched.exists())
    return _first(session, query, key, Prompt.id, descending, limit, after)


def _first(
    session: Session,
    query: Select[*tuple[Any, ...]],
    key: ColumnElement[Any],
    id: ColumnElement[str] | InstrumentedAttribute[str],
    descending: bool,
    limit: int,
    after: PromptCursor | None,
) -> list[PromptCursor]:
    if after is not None:
        here, end = tuple_(key, id), tuple_(literal(after.value, key.type), literal(after.id))
        query = query.where(here < end if descending else here > end)
    order = (key.desc(), id.desc()) if descending else (key, id)
    return [PromptCursor(*row) for row in session.execute(query.order_by(*order).limit(limit))]


def _read_through(
    session: Session,
    run: Run,
    which: PromptFilter,
    sort: SortKey,
    descending: bool,
    limit: int,
    after: PromptCursor | None,
) -> Prompts:
    """The page for a filter that asks for the prompts' texts, tags or marks: every prompt is looked at, once."""
    key = _sort_key(sort, descending)
    matching = _matching(run, which).add_columns(key.label("sort_key")).cte()
    total = select(func.count()).select_from(matching).scalar_subquery()
    here = matching.c.sort_key, matching.c.id
    query = select(matching, total.label("total"))
    query = query.order_by(*(column.desc() if descending else column for column in here)).limit(limit + 1)
    if after is not None:
        end = tuple_(literal(after.value, key.type), literal(after.id))
        query = query.where(tuple_(*here) < end if descending else tuple_(*here) > end)
    found = session.execute(query).all()
    page = found[:limit]
    last = PromptCursor(page[-1].sort_key, page[-1].id) if len(found) > limit else None
    if found or after is None:
        n = found[0].total if found else 0
    else:  # the prompts beyond the cursor are gone
        n = session.scalar(select(func.count()).select_from(_matching(run, which).subquery())) or 0
    return Prompts([PromptStanding(*row[:-2]) for row in page], n, last)


def selected(session: Session, run_id: uuid.UUID, which: PromptFilter) -> Iterator[PromptStanding]:
    """Every prompt that matches, by id, as the rows come from the server. Raises RunNotFound at once."""
    run = get(session, run_id)
    if run.dataset_id is None:
        return iter(())
    rows = session.execute(_matching(run, which).order_by(Prompt.id).execution_options(yield_per=2000))
    return (PromptStanding(*row) for row in rows)


def selected_ids(session: Session, run_id: uuid.UUID, which: PromptFilter, limit: int) -> Sequence[str]:
    """The first `limit` prompts that match, by id."""
    run = get(session, run_id)
    if run.dataset_id is None:
        return []
    return session.scalars(_matching(run, which).with_only_columns(Prompt.id).order_by(Prompt.id).limit(limit)).all()


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
    return History(PromptStanding(*row), visits, moves, marks.of_prompt(session, run_id, prompt_id))


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
    if which.marked is not None:
        matching = matching.where(Prompt.id.in_(marks.marked(run.id, which.marked)))
    return matching.where(*_of_state(which._replace(bucket=None)))


def _of_state(which: PromptFilter) -> list[ColumnElement[bool]]:
    """What the filter asks of a prompt's state."""
    asked: list[ColumnElement[bool]] = []
    if which.bucket is not None:
        asked.append(PromptState.bucket == which.bucket)
    if which.min_rate is not None:
        asked.append(PromptState.success_rate >= which.min_rate)
    if which.max_rate is not None:
        asked.append(PromptState.success_rate <= which.max_rate)
    return asked


def _without_value(sort: SortKey, descending: bool) -> int | float:
    """What a prompt that was never touched is sorted by."""
    if sort in ("visits", "rollouts", "tokens"):
        return 0
    beyond = -1 if descending else 2**31 - 1
    return float(beyond) if sort == "success_rate" else beyond


def _count(session: Session, run: Run, which: PromptFilter) -> int:
    """How many prompts match, texts and tags aside: what the run has counted itself, or else of its states."""
    if which.min_rate is None and which.max_rate is None:
        counts = bucket_counts(run.step, run.buckets).counts
        return sum(counts.values()) if which.bucket is None else counts[which.bucket]
    matching = select(func.count()).where(PromptState.run_id == run.id, *_of_state(which))
    return session.scalar(matching) or 0


def _sort_key(sort: SortKey, descending: bool) -> ColumnElement[Any]:
    """A value for every prompt, so that pages can go on after it; none counts as beyond the last."""
    column = getattr(PromptState, sort)
    return func.coalesce(column, _without_value(sort, descending), type_=column.type)


def bucket_counts(step: int, counts: dict[str, Any]) -> BucketCounts:
    return BucketCounts(step, {bucket: int(counts.get(bucket, 0)) for bucket in BUCKETS})
