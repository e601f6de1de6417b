"""Leases: who may run a run.

A lease is held until it expires on the database's clock. Every claim and every revocation takes a higher
fence, and everything that a supervisor writes is checked against the fence that it was given, so one that was
thought dead cannot write any more, however late it wakes up.

Order of locks everywhere: the run's row first, then its lease (and see db.slots). Fences change only under the lock of
the run's row, so that `owned` makes a whole transaction safe; `renew` touches the lease alone and never waits for a
long ingest.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import slots
from db.models import Lease, Run

ACTIVE_STATES = ("starting", "running", "stopping")


class LeaseLost(Exception):
    """The fence is not the run's newest one: somebody else may run it now, or it is deleted. Stop at once."""

    def __init__(self, run_id: uuid.UUID, fence: int) -> None:
        super().__init__(f"run {run_id} is no longer ours (fence {fence}): its lease ran out and was taken")


class Expired(NamedTuple):
    """A run that should be alive and whose lease ran out."""

    run_id: uuid.UUID
    fence: int
    holder: str


_CLAIM = sa.text(
    """
    WITH run AS (
        SELECT id FROM runs WHERE id = :run_id AND state = 'queued' AND stop_requested_at IS NULL
        FOR UPDATE
    ), lease AS (
        INSERT INTO leases AS l (run_id, fence, holder, expires_at)
        SELECT id, 1, :holder, clock_timestamp() + :ttl FROM run
        ON CONFLICT (run_id) DO UPDATE
            SET fence = l.fence + 1, holder = excluded.holder, expires_at = excluded.expires_at, seconds = 0
            WHERE l.expires_at <= clock_timestamp()
        RETURNING run_id, fence
    ), started AS (
        UPDATE runs SET state = 'starting', reason = NULL, finished_at = NULL,
                        started_at = coalesce(started_at, now())
        FROM lease WHERE id = run_id
        RETURNING id
    )
    SELECT fence FROM lease JOIN started ON id = run_id
    """
)


def claim(session: Session, run_id: uuid.UUID, holder: str, ttl: dt.timedelta) -> int | None:
    """Take a queued run whose lease is free: it is `starting` then. Returns the fence, or None.

    One statement; of any number of callers one gets the run.
    """
    fence = session.scalar(_CLAIM, {"run_id": run_id, "holder": holder, "ttl": ttl})
    return None if fence is None else int(fence)


class Claim(NamedTuple):
    run_id: uuid.UUID
    fence: int


def claim_next(session: Session, host: str, holder: str, ttl: dt.timedelta) -> Claim | None:
    """The first run of the queue that can start on this host now, taken with the slots that it needs, or None.

    A run that fits the host but not what is free of it holds back the later ones that need the same kind of device:
    else small runs would keep a large one waiting for ever. One that no slots of this host could hold is passed over.
    """
    here = slots.lock_host(session, host)
    if here is None:
        return None
    held_back: set[str] = set()
    for run in waiting(session):
        if run.device in held_back or run.n_devices > here.count(run.device):
            continue
        if run.n_devices > here.free(run.device):
            held_back.add(run.device)
            continue
        fence = claim(session, run.id, holder, ttl)
        if fence is not None:  # else it was stopped, or another host was faster
            slots.take(session, host, run.device, run.n_devices, run.id, fence)
            return Claim(run.id, fence)
    return None


def renew(
    session: Session,
    run_id: uuid.UUID,
    fence: int,
    ttl: dt.timedelta,
    *,
    holder: str | None = None,
    seconds: float = 0.0,
) -> bool:
    """Hold the lease for another `ttl`, as `holder` if given. Returns whether a stop was asked for.

    seconds: how long the trainer has run under this fence. A lease that ran out while nobody took it is held again.
    Raises LeaseLost.
    """
    values: dict[str, object] = {"expires_at": sa.func.clock_timestamp() + ttl, "seconds": seconds}
    if holder is not None:
        values["holder"] = holder
    stop = session.execute(
        sa.update(Lease)
        .where(Lease.run_id == run_id, Lease.fence == fence, Run.id == Lease.run_id)
        .values(values)
        .returning(Run.stop_requested_at.is_not(None))
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    if stop is None:
        raise LeaseLost(run_id, fence)
    return bool(stop)


def owned(session: Session, run_id: uuid.UUID, fence: int) -> Run:
    """The run, locked until the transaction ends; the fence stays valid as long. Raises LeaseLost."""
    run = session.get(Run, run_id, with_for_update=True, populate_existing=True)
    held = session.scalar(sa.select(Lease.fence).where(Lease.run_id == run_id))
    if run is None or held != fence:
        raise LeaseLost(run_id, fence)
    return run


def release(session: Session, run_id: uuid.UUID, fence: int) -> None:
    """Give the lease back; the run can be claimed at once if it is queued. Raises LeaseLost."""
    owned(session, run_id, fence)
    _set(session, run_id, fence=fence + 1)  # so that a renewal under way cannot hold it again


def revoke(session: Session, expired: Expired) -> Run | None:
    """Shut out a holder whose lease ran out: from now on its writes raise LeaseLost. Returns the run, locked.

    None when it renewed its lease or somebody else was faster; nothing is changed then.
    """
    run = session.get(Run, expired.run_id, with_for_update=True, populate_existing=True)
    still = session.scalar(
        sa.select(Lease.fence)
        .where(Lease.run_id == expired.run_id, Lease.fence == expired.fence)
        .where(Lease.expires_at <= sa.func.clock_timestamp())
        .with_for_update()
    )
    if run is None or still is None or run.state not in ACTIVE_STATES:
        return None
    _set(session, expired.run_id, fence=expired.fence + 1)
    return run


def expired(session: Session) -> list[Expired]:
    """Runs that are starting, running or stopping without a live lease, oldest first."""
    rows = session.execute(
        sa.select(Lease.run_id, Lease.fence, Lease.holder)
        .join(Run, Run.id == Lease.run_id)
        .where(Run.state.in_(ACTIVE_STATES), Lease.expires_at <= sa.func.clock_timestamp())
        .order_by(Lease.expires_at)
    )
    return [Expired(*row) for row in rows]


class Waiting(NamedTuple):
    """A queued run and what it needs."""

    id: uuid.UUID
    device: str
    n_devices: int


def waiting(session: Session) -> list[Waiting]:
    """Queued runs that can be claimed: those of higher priority first, then the older ones."""
    live = sa.select(Lease.run_id).where(Lease.expires_at > sa.func.clock_timestamp())
    rows = session.execute(
        sa.select(Run.id, Run.device, Run.n_devices)
        .where(Run.state == "queued", Run.stop_requested_at.is_(None), Run.id.not_in(live))
        .order_by(Run.priority.desc(), Run.created_at, Run.id)
    )
    return [Waiting(*row) for row in rows]


def _set(session: Session, run_id: uuid.UUID, *, fence: int) -> None:
    session.execute(
        sa.update(Lease)
        .where(Lease.run_id == run_id)
        .values(fence=fence, expires_at=sa.func.clock_timestamp())
        .execution_options(synchronize_session=False)
    )
