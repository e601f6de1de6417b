"""Pictures of a run's whole pool, computed where the rows are: flows between buckets, and how hard the prompts are.

All raise RunNotFound for an unknown run.
"""

from __future__ import annotations

import uuid
from collections import Counter
from itertools import groupby
from typing import NamedTuple

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from db.models import StepMetrics
from db.runs import get
from db.views import bucket_counts

SAMPLED_STEPS = 120  # whose groups the success rates over time are counted from


class Flow(NamedTuple):
    source: str
    target: str
    prompts: int


class Flows(NamedTuple):
    """Each prompt once: its bucket after `from_step` and after `to_step`; of those that stayed, both are the same."""

    from_step: int
    to_step: int
    flows: list[Flow]


class RateCell(NamedTuple):
    """Groups whose success rate lay in the bin (0-based), in one part of the steps (0-based)."""

    part: int
    rate: int
    groups: int


class SpendCell(NamedTuple):
    """Prompts with a success rate in one bin and 2^visits .. 2^(visits+1)-1 visits, and what they cost together."""

    rate: int
    visits: int
    prompts: int
    rollouts: int
    tokens: int
    bucket: str


class Difficulty(NamedTuple):
    """first, last: the range of steps that the parts cut up; every: each how manyth step was looked at."""

    first: int
    last: int
    every: int
    over_time: list[RateCell]
    spend: list[SpendCell]


def flows(session: Session, run_id: uuid.UUID, from_step: int, to_step: int | None = None) -> Flows:
    """How many prompts went from which bucket into which, between two steps; None: until now.

    Only prompts that were touched since are looked at one by one; all others have stayed where they were.
    """
    run = get(session, run_id)
    to_step = run.step if to_step is None else min(to_step, run.step)
    from_step = min(from_step, to_step)
    given = {"run_id": run_id, "from_step": from_step, "to_step": to_step}
    source = (
        _EARLIER.format(step=":from_step", name="source")
        if from_step
        else "CROSS JOIN (SELECT 'unseen' AS bucket) AS source"
    )
    target = "CROSS JOIN LATERAL (SELECT s.bucket) AS target"
    if to_step < run.step:
        target = _EARLIER.format(step=":to_step", name="target")
    moved = {(a, b): n for a, b, n in session.execute(text(_FLOWS.format(source=source, target=target)), given)}
    stayed = Counter(_counts_after(session, run_id, from_step, sum(bucket_counts(0, run.buckets).counts.values())))
    for (bucket, _), n in moved.items():
        stayed[bucket] -= n
    found = Counter({(bucket, bucket): n for bucket, n in stayed.items() if n > 0}) + Counter(moved)
    return Flows(from_step, to_step, [Flow(a, b, n) for (a, b), n in sorted(found.items())])


def difficulty(session: Session, run_id: uuid.UUID, *, parts: int, bins: int) -> Difficulty:
    """How success rates are spread over steps, and over prompts by what was spent on them.

    Over steps they are those of the groups that prompts are judged by: pilots, or with a method without pilots all.
    The last bin holds the upper end, too.
    """
    run = get(session, run_id)
    every = max(1, -(-run.step // SAMPLED_STEPS))
    given = {
        "run_id": run_id, "parts": parts, "bins": bins, "last": run.step, "steps": list(range(run.step, 0, -every)),
        "stages": ["pilot"] if run.method == "pilot_commit" else ["pilot", "commit"],
    }  # fmt: skip
    over_time = [RateCell(*row) for row in session.execute(_OVER_TIME, given)] if run.step else []
    spend = []
    of_cell = groupby(session.execute(_SPEND, given), key=lambda row: (row.rate, row.visits))
    for (rate, visits), rows in of_cell:
        buckets, prompts, rollouts, tokens = zip(*(row[2:] for row in rows), strict=True)
        most = buckets[prompts.index(max(prompts))]
        spend.append(SpendCell(rate, visits, sum(prompts), sum(rollouts), sum(tokens), most))
    return Difficulty(1, run.step, every, over_time, spend)


def _counts_after(session: Session, run_id: uuid.UUID, step: int, pool: int) -> dict[str, int]:
    if step == 0:
        return {"unseen": pool}
    counts = session.scalar(select(StepMetrics.buckets).where(StepMetrics.run_id == run_id, StepMetrics.step == step))
    return bucket_counts(step, counts or {}).counts


_FLOWS = """
    SELECT coalesce(source.bucket, 'unseen'), coalesce(target.bucket, 'unseen'), count(*)
    FROM prompt_states AS s {source} {target}
    WHERE s.run_id = :run_id AND s.step > :from_step
    GROUP BY 1, 2
    """
# A move happens as its step begins, before the step's visits.
_EARLIER = """
    LEFT JOIN LATERAL (
        SELECT bucket FROM (
            (SELECT bucket, step, position FROM prompt_visits AS v
             WHERE v.run_id = s.run_id AND v.prompt_id = s.prompt_id AND v.step <= {step}
             ORDER BY v.step DESC, v.position DESC LIMIT 1)
            UNION ALL
            (SELECT bucket, step, -1 FROM prompt_moves AS m
             WHERE m.run_id = s.run_id AND m.prompt_id = s.prompt_id AND m.step <= {step}
             ORDER BY m.step DESC LIMIT 1)
        ) AS known ORDER BY step DESC, position DESC LIMIT 1
    ) AS {name} ON true
    """
_OVER_TIME = text(
    """
    SELECT width_bucket(step, 1, :last + 1, :parts) - 1 AS part,
        least(floor(success_rate * :bins)::int, :bins - 1) AS rate, count(*)
    FROM prompt_visits
    WHERE run_id = :run_id AND step = ANY(CAST(:steps AS int[]))
        AND success_rate IS NOT NULL AND stage = ANY(CAST(:stages AS text[]))
    GROUP BY 1, 2 ORDER BY 1, 2
    """
)
_SPEND = text(
    """
    SELECT rate, floor(ln(visits::float8) / ln(2::float8) + 1e-9)::int AS visits, bucket,
        sum(prompts)::bigint, sum(rollouts)::bigint, sum(tokens)::bigint
    FROM (
        -- first by plain columns: the logarithm of a few hundred groups instead of every prompt's
        SELECT least(floor(success_rate * :bins)::int, :bins - 1) AS rate, visits, bucket,
            count(*) AS prompts, sum(rollouts) AS rollouts, sum(tokens) AS tokens
        FROM prompt_states
        WHERE run_id = :run_id AND success_rate IS NOT NULL AND visits > 0
        GROUP BY 1, 2, 3
    ) AS counted
    GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    """
)
