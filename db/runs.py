"""Runs as the API sees them: create, look up, label, ask for a stop, put back into the queue, archive, delete; and in
words where a run stands. `db.run_list` lists them.

Nothing here commits; whoever opened the session does. State changes lock the run's row first, so that a stop
and a worker's claim of the same run happen one after the other.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import delete as sa_delete
from sqlalchemy import func, or_, select, text, update
from sqlalchemy.orm import Session, aliased

from db import leases, slots
from db.models import (
    FINISHED_STATES,
    Attempt,
    Evaluation,
    LedgerEntry,
    PromptMark,
    PromptMove,
    PromptState,
    PromptVisit,
    Run,
    StepMetrics,
)


class RunNotFound(LookupError):
    def __init__(self, run_id: uuid.UUID) -> None:
        self.run_id = run_id
        super().__init__(f"there is no run {run_id}")


class WrongState(Exception):
    """The run's state doesn't allow what was asked. The message tells why and what is possible instead."""

    def __init__(self, state: str, message: str) -> None:
        self.state = state
        super().__init__(message)


def create(
    session: Session,
    *,
    name: str,
    config: dict[str, Any],
    config_digest: str,
    method: str,
    model: str,
    device: str = "cpu",
    n_devices: int = 1,
    priority: int = 0,
    cloned_from: uuid.UUID | None = None,
    created_by: str | None = None,
) -> Run:
    """A new run in the queue. `config` is the whole config, defaults included; device and n_devices are what its engine
    needs (`RunConfig.engine.devices`).
    """
    run = Run(
        name=name,
        config=config,
        config_digest=config_digest,
        method=method,
        model=model,
        device=device,
        n_devices=n_devices,
        priority=priority,
        cloned_from=cloned_from,
        created_by=created_by,
    )
    session.add(run)
    session.flush()
    session.refresh(run)  # the server's defaults
    return run


def get(session: Session, run_id: uuid.UUID) -> Run:
    """Raises RunNotFound."""
    run = session.get(Run, run_id)
    if run is None or run.deleted_at is not None or run.evaluates is not None:
        raise RunNotFound(run_id)
    return run


def attempts(session: Session, run_id: uuid.UUID) -> Sequence[Attempt]:
    """A run's attempts, oldest first."""
    return session.scalars(select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.attempt)).all()


def request_stop(session: Session, run_id: uuid.UUID) -> Run:
    """Ask a run, or an evaluation, to stop; one that is still queued is stopped at once. Asking twice changes nothing.

    Raises RunNotFound, and WrongState when it has finished.
    """
    run = locked(session, run_id)
    what = "run" if run.evaluates is None else "evaluation"
    if run.state in FINISHED_STATES:
        raise WrongState(run.state, f"the {what} has {run.state} already; there is nothing to stop")
    if run.state == "stopping":
        return run
    run.stop_requested_at = func.now()
    if run.state == "queued":
        run.state = "stopped"
        run.finished_at = func.now()
        run.reason = "stopped while it was queued"
    else:
        run.state = "stopping"
        run.reason = "a stop was asked for"
        if run.evaluates is None:
            run.reason += "; the run finishes its step and saves a checkpoint first"
    session.flush()
    session.refresh(run)
    return run


def request_resume(session: Session, run_id: uuid.UUID) -> Run:
    """Put a stopped or failed run back into the queue; it goes on from its newest checkpoint.

    Raises RunNotFound, and WrongState in every other state.
    """
    run = locked(session, run_id)
    if run.state == "succeeded":
        raise WrongState(run.state, "the run has succeeded: its budget is spent; start a new run with a larger one")
    if run.state not in FINISHED_STATES:
        raise WrongState(run.state, f"the run is {run.state}; only a stopped or failed run can be resumed")
    run.state = "queued"
    run.archived_at = None
    run.reason = None
    run.stop_requested_at = None
    run.finished_at = None
    session.flush()
    return run


def set_queued_reason(session: Session, run_id: uuid.UUID, reason: str) -> Run:
    """Tell why a run is still queued; does nothing once a worker has taken it. Raises RunNotFound."""
    run = locked(session, run_id)
    if run.state == "queued":
        run.reason = reason
        session.flush()
    return run


def set_priority(session: Session, run_id: uuid.UUID, priority: int) -> Run:
    """Where the run stands in the queue, now or when it is resumed. Raises RunNotFound."""
    run = locked(session, run_id)
    run.priority = priority
    session.flush()
    return run


def set_labels(session: Session, run_id: uuid.UUID, *, name: str | None = None, tags: list[str] | None = None) -> Run:
    """What people call the run; its config keeps the name that it began with. Raises RunNotFound."""
    run = locked(session, run_id)
    if name is not None:
        run.name = name
    if tags is not None:
        run.tags = tags
    session.flush()
    return run


def archive(session: Session, run_id: uuid.UUID, archived: bool) -> Run:
    """Lists leave the run out, or show it again; so does a resume. Raises RunNotFound, and WrongState when it is to be
    archived and has not ended.
    """
    run = locked(session, run_id)
    if not archived:
        run.archived_at = None
    elif run.state not in FINISHED_STATES:
        raise WrongState(run.state, f"the run is {run.state}; stop it first, then archive it")
    elif run.archived_at is None:
        run.archived_at = func.now()
    session.flush()
    session.refresh(run)
    return run


def delete(session: Session, run_id: uuid.UUID) -> None:
    """Nobody sees the run any more; a worker removes its files and rows (`purge`).

    What evaluated it goes, too. Raises RunNotFound, and WrongState unless all of them have ended.
    """
    run = locked(session, run_id)
    if run.state not in FINISHED_STATES:
        raise WrongState(run.state, f"the run is {run.state}; stop it first, then delete it")
    its_own = Run.evaluates == run_id
    under_way = session.scalars(select(Run.id).where(its_own, Run.state.not_in(FINISHED_STATES))).all()
    if under_way:
        named = ", ".join(map(str, under_way))
        raise WrongState(run.state, f"the run is being evaluated ({named}); stop that first, then delete it")
    session.execute(update(Run).where(or_(Run.id == run_id, its_own)).values(deleted_at=func.now()))


def deleted(session: Session) -> list[uuid.UUID]:
    """Runs that are to be purged; one that has evaluations once these are."""
    evaluation = aliased(Run)
    kept = select(evaluation.id).where(evaluation.evaluates == Run.id).exists()
    return list(session.scalars(select(Run.id).where(Run.deleted_at.is_not(None), ~kept).order_by(Run.deleted_at)))


def purge(session: Session, run_id: uuid.UUID, rows: int = 20_000) -> bool:
    """Remove up to `rows` rows of a deleted run, so that a transaction stays short. Returns whether all are gone.

    The prompts stay: other runs may train on the same set. Raises RunNotFound unless it is deleted.
    """
    if session.scalar(select(Run.id).where(Run.id == run_id, Run.deleted_at.is_not(None))) is None:
        raise RunNotFound(run_id)
    for table in (PromptVisit, PromptMove, PromptMark, PromptState, LedgerEntry, StepMetrics, Evaluation):
        name = table.__tablename__
        some = text(f"DELETE FROM {name} WHERE ctid IN (SELECT ctid FROM {name} WHERE run_id = :run_id LIMIT :rows)")
        if session.execute(some, {"run_id": run_id, "rows": rows}).rowcount:  # type: ignore[attr-defined]
            return False
    session.execute(sa_delete(Run).where(Run.id == run_id))
    return True


class Standing(NamedTuple):
    """reason: why the run is in its state. todo: what a person can do now. Both are sentences without a full stop."""

    reason: str | None
    todo: str


_TODO = {
    "starting": "wait: the trainer reads its prompts and loads the model",
    "running": "stop it to end after the step under way, with a checkpoint",
    "stopping": "wait: it ends after the step under way, with a checkpoint",
    "stopped": "resume it to go on from its newest checkpoint, or delete it",
    "succeeded": "clone it with a larger budget to train longer, or delete it",
    "failed": "read its log and remove the cause, then resume it; clone it with changes if its config is the cause",
}


def standings(session: Session, runs: Sequence[Run]) -> dict[uuid.UUID, Standing]:
    """Where each run stands, by its id. A queued one tells what it waits for, and how many are before it."""
    found = {run.id: Standing(run.reason, _TODO[run.state]) for run in runs if run.state != "queued"}
    queued = [run for run in runs if run.state == "queued"]
    if queued:
        hosts, queue = slots.hosts(session), leases.waiting(session)
        for run in queued:
            reason, todo = _waits_for(run, hosts, queue)
            found[run.id] = Standing(f"{run.reason}; {reason}" if run.reason else reason, todo)
    return found


def _waits_for(run: Run, hosts: Sequence[slots.HostSlots], queue: Sequence[leases.Waiting]) -> tuple[str, str]:
    kind, n = run.device, run.n_devices
    if not hosts:
        return (
            "no worker is running that could start it",
            "start a worker: `./pilot up`, or `python -m worker` on a host with the same DATABASE_URL and REDIS_URL",
        )
    largest = max(hosts, key=lambda host: host.count(kind))
    if largest.count(kind) < n:
        most = f"at most {largest.count(kind)}, on {largest.name}" if largest.count(kind) else "none"
        return (
            f"it needs {_devices(kind, n)} on one host, and the hosts with a worker have {most}",
            "start a worker on a host that has them, or stop it and clone it with an engine that needs less",
        )
    same = [other.id for other in queue if other.device == kind]
    if run.id not in same:
        return "its last processes are being ended", "wait: it starts as soon as they are gone"
    before = same.index(run.id)
    total, free = sum(host.count(kind) for host in hosts), sum(host.free(kind) for host in hosts)
    ahead = f"{before} before it" if before else "it is next"
    return (
        f"it waits for {_devices(kind, n)} ({free} of {total} free; {ahead})",
        "wait, raise its priority to start it earlier, or stop it",
    )


def _devices(kind: str, n: int) -> str:
    if kind == "cpu":
        return "a CPU slot" if n == 1 else f"{n} CPU slots"
    return "a GPU" if n == 1 else f"{n} GPUs"


def locked(session: Session, run_id: uuid.UUID) -> Run:
    """The run, or an evaluation, locked until the transaction ends. Raises RunNotFound."""
    run = session.get(Run, run_id, with_for_update=True, populate_existing=True)
    if run is None or run.deleted_at is not None:
        raise RunNotFound(run_id)
    return run
