"""Evaluations on demand: of a run's checkpoint, when somebody asks.

Each is a row of `runs` of its own, which names the run that it `evaluates`: so it waits in the one queue, holds slots,
a lease and attempts as every run does, and the run itself stays as it is. `step` is the checkpoint's; `config` the
run's, with the benchmarks that were asked for. What it found is in `evaluations` twice: under its own id, and with the
run's own evaluations of that step (`ingest.add_to_evaluated`). Nothing here commits.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db import runs
from db.models import Evaluation, Run
from db.paging import Place, newest


class EvaluationNotFound(LookupError):
    def __init__(self, evaluation_id: uuid.UUID) -> None:
        super().__init__(f"there is no evaluation {evaluation_id}")


def create(
    session: Session,
    run_id: uuid.UUID,
    *,
    step: int,
    config: dict[str, Any],
    config_digest: str,
    created_by: str | None = None,
) -> Run:
    """A new evaluation in the queue. Raises RunNotFound."""
    run = runs.locked(session, run_id)  # it cannot be deleted meanwhile
    evaluation = runs.create(
        session,
        name=run.name,
        config=config,
        config_digest=config_digest,
        method=run.method,
        model=run.model,
        device=run.device,
        n_devices=run.n_devices,
        priority=run.priority,
        created_by=created_by,
    )
    evaluation.evaluates, evaluation.step = run_id, step
    session.flush()
    return evaluation


def get(session: Session, evaluation_id: uuid.UUID) -> Run:
    """Raises EvaluationNotFound."""
    found = session.get(Run, evaluation_id)
    if found is None or found.evaluates is None or found.deleted_at is not None:
        raise EvaluationNotFound(evaluation_id)
    return found


def page(
    session: Session, *, run_id: uuid.UUID | None, states: Sequence[str], limit: int, after: Place | None
) -> tuple[Sequence[Run], Place | None]:
    """Up to `limit` evaluations, newest first, and where the next page begins.

    run_id: only of this run. states: only in one of these; none: in any.
    """
    query = select(Run).where(Run.evaluates.is_not(None), Run.deleted_at.is_(None))
    if run_id is not None:
        query = query.where(Run.evaluates == run_id)
    if states:
        query = query.where(Run.state.in_(states))
    rows, more = newest(session, query, (Run.created_at, Run.id), limit, after)
    return rows, Place(rows[-1].created_at, rows[-1].id) if more else None


def results(session: Session, evaluation_ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Evaluation]:
    """What each of them has found, of those that have."""
    found = session.scalars(select(Evaluation).where(Evaluation.run_id.in_(evaluation_ids)))
    return {row.run_id: row for row in found}
