"""Runs as the API sees them: create, list, look up, ask for a stop, put back into the queue.

Nothing here commits; whoever opened the session does. State changes lock the run's row first, so that a stop
and a worker's claim of the same run happen one after the other.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import func, select, tuple_
from sqlalchemy.orm import Session

from db.models import FINISHED_STATES, Attempt, Run


class RunNotFound(LookupError):
    def __init__(self, run_id: uuid.UUID) -> None:
        self.run_id = run_id
        super().__init__(f"there is no run {run_id}")


class WrongState(Exception):
    """The run's state doesn't allow what was asked. The message tells why and what is possible instead."""

    def __init__(self, state: str, message: str) -> None:
        self.state = state
        super().__init__(message)


class RunCursor(NamedTuple):
    """Where a page of runs ended: the following page begins after this run."""

    created_at: dt.datetime
    id: uuid.UUID


def create(session: Session, *, name: str, config: dict[str, Any], config_digest: str, method: str, model: str) -> Run:
    """A new run in the queue. `config` is the whole config, defaults included."""
    run = Run(name=name, config=config, config_digest=config_digest, method=method, model=model)
    session.add(run)
    session.flush()
    session.refresh(run)  # the server's defaults
    return run


def get(session: Session, run_id: uuid.UUID) -> Run:
    """Raises RunNotFound."""
    run = session.get(Run, run_id)
    if run is None:
        raise RunNotFound(run_id)
    return run


def attempts(session: Session, run_id: uuid.UUID) -> Sequence[Attempt]:
    """A run's attempts, oldest first."""
    return session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.attempt)).all()


def page(
    session: Session, *, state: str | None = None, limit: int, after: RunCursor | None = None
) -> tuple[Sequence[Run], RunCursor | None]:
    """Up to `limit` runs, newest first, and where the next page begins; None when there is no further one.

    Runs that arrive meanwhile are newer than the first page: they neither repeat nor push out a later one.
    """
    query = select(Run).order_by(Run.created_at.desc(), Run.id.desc()).limit(limit + 1)
    if state is not None:
        query = query.where(Run.state == state)
    if after is not None:
        query = query.where(tuple_(Run.created_at, Run.id) < tuple_(after.created_at, after.id))
    found = session.scalars(query).all()
    rows = found[:limit]
    return rows, RunCursor(rows[-1].created_at, rows[-1].id) if len(found) > limit else None


def request_stop(session: Session, run_id: uuid.UUID) -> Run:
    """Ask a run to stop; one that is still queued is stopped at once. Asking twice changes nothing.

    Raises RunNotFound, and WrongState when the run has finished.
    """
    run = _locked(session, run_id)
    if run.state in FINISHED_STATES:
        raise WrongState(run.state, f"the run has {run.state} already; there is nothing to stop")
    if run.state == "stopping":
        return run
    run.stop_requested_at = func.now()
    if run.state == "queued":
        run.state = "stopped"
        run.finished_at = func.now()
        run.reason = "stopped while it was queued"
    else:
        run.state = "stopping"
        run.reason = "a stop was asked for; the run finishes its step and saves a checkpoint first"
    session.flush()
    session.refresh(run)
    return run


def request_resume(session: Session, run_id: uuid.UUID) -> Run:
    """Put a stopped or failed run back into the queue; it goes on from its newest checkpoint.

    Raises RunNotFound, and WrongState in every other state.
    """
    run = _locked(session, run_id)
    if run.state == "succeeded":
        raise WrongState(run.state, "the run has succeeded: its budget is spent; start a new run with a larger one")
    if run.state not in FINISHED_STATES:
        raise WrongState(run.state, f"the run is {run.state}; only a stopped or failed run can be resumed")
    run.state = "queued"
    run.reason = None
    run.stop_requested_at = None
    run.finished_at = None
    session.flush()
    return run


def set_queued_reason(session: Session, run_id: uuid.UUID, reason: str) -> Run:
    """Tell why a run is still queued; does nothing once a worker has taken it. Raises RunNotFound."""
    run = _locked(session, run_id)
    if run.state == "queued":
        run.reason = reason
        session.flush()
    return run


def _locked(session: Session, run_id: uuid.UUID) -> Run:
    run = session.get(Run, run_id, with_for_update=True, populate_existing=True)
    if run is None:
        raise RunNotFound(run_id)
    return run
