"""What earlier runs saw on the same prompts with the same starting policy: what forecasts rest on. Reads only."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from sqlalchemy import text
from sqlalchemy.orm import Session

RUNS: Final = 5
"""The newest runs are looked at, so many of them."""
_KEPT: Final = 64
_known: dict[Hashable, Any] = {}
_T = TypeVar("_T")


class Groups(NamedTuple):
    """Groups of a run's first stage in one part of it: `groups` of them had k right of n scored rollouts."""

    run: uuid.UUID
    part: int  # from 0
    n: int
    k: int
    groups: int


class Sampled(NamedTuple):
    """What was sampled in one part of a run."""

    run: uuid.UUID
    part: int
    rollouts: int
    tokens: int


class Took(NamedTuple):
    """A run, and the seconds that it took by what for. seconds: all that its trainers ran."""

    run: uuid.UUID
    engine: str
    device: str
    n_gpus: int
    steps: int
    rollouts: int
    trained: float
    eval_rollouts: int
    sample_s: float
    update_s: float
    eval_s: float
    seconds: float


class Past(NamedTuple):
    runs: list[Took]
    groups: list[Groups]
    sampled: list[Sampled]
    prompts: int


def past(session: Session, dataset: str, model: str, edges: Sequence[int]) -> Past:
    """Of the newest runs on this data set that began with this model and have finished a step.

    edges: the first step of each part that runs are cut into.
    """
    newest = [tuple(row) for row in session.execute(_NEWEST, {"dataset": dataset, "model": model, "runs": RUNS})]
    runs = [_once((stamp, tuple(edges)), partial(_read, session, stamp[0], edges)) for stamp in newest]
    ids = {"ids": [stamp[0] for stamp in newest]}
    return Past(
        [took for took, _, _ in runs],
        [seen for _, groups, _ in runs for seen in groups],
        [part for _, _, sampled in runs for part in sampled],
        _once(tuple(newest), lambda: session.scalar(_PROMPTS, ids) or 0),
    )


def _once(key: Hashable, read: Callable[[], _T]) -> _T:
    """What was read before under this key, which names the run's state, too: only what goes on is read again."""
    if (found := _known.get(key)) is None:
        found = read()
        while len(_known) >= _KEPT:
            _known.pop(next(iter(_known)), None)
        _known[key] = found
    return cast(_T, found)


def _read(session: Session, run: uuid.UUID, edges: Sequence[int]) -> tuple[Took, list[Groups], list[Sampled]]:
    given = {"id": run, "edges": list(edges)}
    took = Took(*session.execute(_TOOK, given).one())
    groups = [Groups(*row) for row in session.execute(_GROUPS, given)]
    return took, groups, [Sampled(*row) for row in session.execute(_SAMPLED, given)]


_NEWEST = text(
    """
    SELECT id, attempt, state, step, rollouts, eval_rollouts, finished_at FROM runs
    WHERE dataset_id = :dataset AND model = :model AND step > 0 AND rollouts > 0 AND deleted_at IS NULL
    ORDER BY created_at DESC, id LIMIT :runs
    """
)
# Steps since the newest attempt that are not finished are in no row. Time of attempts that were lost is not counted.
_TOOK = text(
    """
    SELECT runs.id, config #>> '{engine,name}', device,
           CASE WHEN config #>> '{engine,name}' = 'verl'
                THEN (config #>> '{engine,nodes}')::int * (config #>> '{engine,gpus_per_node}')::int ELSE 1 END,
           runs.step, runs.rollouts, took.trained, took.eval_rollouts, took.sample_s, took.update_s, took.eval_s,
           (SELECT sum(seconds) FROM attempts WHERE run_id = runs.id)
    FROM runs CROSS JOIN LATERAL (
        SELECT coalesce(sum((metrics ->> 'seconds_generate')::float8 + coalesce((metrics ->> 'seconds_reward')::float8,
                   0)), 0) AS sample_s,
               coalesce(sum((metrics ->> 'seconds_update')::float8), 0) AS update_s,
               coalesce(sum((metrics ->> 'trained_rollouts')::float8), 0) AS trained,
               (SELECT coalesce(sum(seconds), 0) FROM evaluations WHERE run_id = runs.id) AS eval_s,
               (SELECT coalesce(sum(eval_rollouts), 0)::bigint FROM evaluations WHERE run_id = runs.id)
                   AS eval_rollouts
        FROM step_metrics WHERE run_id = runs.id
    ) AS took
    WHERE runs.id = :id
    """
)
_PART = "width_bucket(visits.step, CAST(:edges AS int[])) - 1"
_FIRST = "visits.stage = CASE WHEN runs.method = 'pilot_commit' THEN 'pilot' ELSE 'commit' END"
_GROUPS = text(
    f"""
    SELECT run_id, {_PART} AS part, n - n_failed AS scored, round(success_rate * (n - n_failed))::int AS k, count(*)
    FROM prompt_visits AS visits JOIN runs ON runs.id = run_id
    WHERE run_id = :id AND success_rate IS NOT NULL AND n > n_failed AND {_FIRST}
    GROUP BY run_id, part, scored, k
    """
)
_SAMPLED = text(
    f"""
    SELECT run_id, {_PART} AS part, sum(n)::bigint, sum(visits.tokens)::bigint
    FROM prompt_visits AS visits WHERE run_id = :id GROUP BY run_id, part
    """
)
_PROMPTS = text("SELECT count(DISTINCT prompt_id) FROM prompt_states WHERE run_id = ANY (:ids) AND visits > 0")
