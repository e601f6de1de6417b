"""Slots: which device of which host works for whom.

A worker announces what its host has; whoever claims a run takes its slots in the same transaction
(`leases.claim_next`). A slot is held by a run under one fence. It is given back by whoever has made sure, on that host,
that no process of the run is left: the supervisor as it settles the run, or else a worker's sweep.

Order of locks: the host's row, the run's row, its lease, then slots.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import Host, Lease, Run, Slot

FORGOTTEN_AFTER = dt.timedelta(days=1)


class Device(NamedTuple):
    """kind: cpu or cuda. name: what CUDA_VISIBLE_DEVICES calls it, a CPU slot's number. label: for people."""

    kind: str
    name: str
    label: str


class Use(NamedTuple):
    """How busy a host is, as shares from 0 to 1: all its cores together, and its GPUs by name, those that are known."""

    cpu: float | None = None
    gpus: Mapping[str, float] = {}


NOT_KNOWN: Final = Use()


class Holding(NamedTuple):
    """What holds a slot."""

    run_id: uuid.UUID
    fence: int


class HostSlots(NamedTuple):
    """A live host and the slots that it offers, in order."""

    name: str
    slots: Sequence[Slot]

    def count(self, kind: str) -> int:
        return sum(slot.kind == kind for slot in self.slots)

    def free(self, kind: str) -> int:
        return sum(slot.kind == kind and slot.run_id is None for slot in self.slots)


class Held(NamedTuple):
    """A slot, and what holds it: a run, or an evaluation of that run. name: the run's; None when nobody holds the slot,
    or the run was deleted.
    """

    slot: Slot
    run_id: uuid.UUID | None
    evaluation_id: uuid.UUID | None
    name: str | None


class Worker(NamedTuple):
    """A host that has announced itself within a day. silent: its announcement ran out."""

    host: Host
    silent: bool
    slots: Sequence[Held]


def announce(session: Session, host: str, devices: Sequence[Device], ttl: dt.timedelta, use: Use = NOT_KNOWN) -> None:
    """The host has exactly these devices for runs, for another `ttl`.

    Who holds a slot stays; one that is held and no longer announced is not given away again. Hosts that have been
    silent for a day are forgotten, unless a run that they started is still alive.
    """
    expires = sa.func.clock_timestamp() + ttl
    told = {"expires_at": expires, "cpu_use": use.cpu}
    statement = insert(Host).values(name=host, **told)
    session.execute(statement.on_conflict_do_update(index_elements=["name"], set_=told))
    positions: Counter[str] = Counter()
    rows = []
    for device in devices:
        rows.append(
            {
                "host": host,
                "kind": device.kind,
                "position": positions[device.kind],
                "device": device.name,
                "label": device.label,
                "offered": True,
                "use": use.gpus.get(device.name) if device.kind == "cuda" else None,
            }
        )
        positions[device.kind] += 1
    of_host = sa.update(Slot).where(Slot.host == host)
    session.execute(of_host.values(offered=False))
    if rows:
        new = insert(Slot)
        columns = {name: new.excluded[name] for name in ("device", "label", "offered", "use")}
        session.execute(new.on_conflict_do_update(index_elements=["host", "kind", "position"], set_=columns), rows)
    session.execute(sa.delete(Slot).where(Slot.host == host, Slot.offered.is_(False), Slot.run_id.is_(None)))
    living = (
        sa.select(Slot.host)
        .join(Lease, sa.and_(Lease.run_id == Slot.run_id, Lease.fence == Slot.fence))
        .where(Lease.expires_at > sa.func.clock_timestamp())
    )
    silent = sa.delete(Host).where(Host.expires_at < sa.func.clock_timestamp() - FORGOTTEN_AFTER)
    session.execute(silent.where(Host.name.not_in(living)))


def lock_host(session: Session, host: str) -> HostSlots | None:
    """The host, locked: until the transaction ends nobody else takes slots of it. None before its announcement."""
    name = session.scalar(sa.select(Host.name).where(Host.name == host).with_for_update())
    return None if name is None else HostSlots(name, _offered(session, [name]))


def take(session: Session, host: str, kind: str, n: int, run_id: uuid.UUID, fence: int) -> None:
    """n free slots for the run; the caller has locked the host and knows that there are so many."""
    free = (
        sa.select(Slot.position)
        .where(Slot.host == host, Slot.kind == kind, Slot.offered, Slot.run_id.is_(None))
        .order_by(Slot.position)
        .limit(n)
        .scalar_subquery()
    )
    taken = session.execute(
        sa.update(Slot)
        .where(Slot.host == host, Slot.kind == kind, Slot.position.in_(free))
        .values(run_id=run_id, fence=fence, taken_at=sa.func.clock_timestamp())
        .returning(Slot.position)
        .execution_options(synchronize_session=False)
    ).all()
    if len(taken) != n:
        raise AssertionError(f"{host} had {len(taken)} free {kind} slots and {n} were to be taken")


def free(session: Session, host: str, run_id: uuid.UUID, fence: int) -> None:
    """Give back what the run holds on the host under this fence or an older one: its processes there are gone."""
    session.execute(
        sa.update(Slot)
        .where(Slot.host == host, Slot.run_id == run_id, Slot.fence <= fence)
        .values(run_id=None, fence=None, taken_at=None)
        .execution_options(synchronize_session=False)
    )


def held(session: Session, host: str, run_id: uuid.UUID, fence: int) -> list[Device]:
    """What the run holds on the host under this fence, in order."""
    rows = session.execute(
        sa.select(Slot.kind, Slot.device, Slot.label)
        .where(Slot.host == host, Slot.run_id == run_id, Slot.fence == fence)
        .order_by(Slot.kind, Slot.position)
    )
    return [Device(*row) for row in rows]


def stale(session: Session, host: str) -> list[Holding]:
    """Holders on this host whose lease is no longer theirs. Once their processes are gone, `free` them."""
    alive = sa.exists().where(Lease.run_id == Slot.run_id, Lease.fence == Slot.fence)
    rows = session.execute(
        sa.select(Slot.run_id, Slot.fence).distinct().where(Slot.host == host, Slot.run_id.is_not(None), ~alive)
    )
    return [Holding(run_id, fence) for run_id, fence in rows if run_id is not None and fence is not None]


def hosts(session: Session) -> list[HostSlots]:
    """Every host whose announcement stands, by name."""
    names = session.scalars(
        sa.select(Host.name).where(Host.expires_at > sa.func.clock_timestamp()).order_by(Host.name)
    ).all()
    slots = _offered(session, names)
    return [HostSlots(name, [slot for slot in slots if slot.host == name]) for name in names]


def workers(session: Session) -> list[Worker]:
    """Every known host, by name, with what it offers and what is still held there."""
    known = session.execute(
        sa.select(Host, Host.expires_at <= sa.func.clock_timestamp())
        .order_by(Host.name)
        .execution_options(populate_existing=True)
    ).all()
    held = session.execute(
        sa.select(Slot, Run.evaluates, Run.name)
        .outerjoin(Run, sa.and_(Run.id == Slot.run_id, Run.deleted_at.is_(None)))
        .order_by(Slot.host, Slot.kind, Slot.position)
        .execution_options(populate_existing=True)
    ).all()
    return [
        Worker(host, silent, [_holding(*row) for row in held if row[0].host == host.name]) for host, silent in known
    ]


def _holding(slot: Slot, evaluates: uuid.UUID | None, name: str | None) -> Held:
    return Held(slot, evaluates or slot.run_id, slot.run_id if evaluates else None, name)


def _offered(session: Session, hosts: Sequence[str]) -> Sequence[Slot]:
    return session.scalars(
        sa.select(Slot)
        .where(Slot.host.in_(hosts), Slot.offered)
        .order_by(Slot.host, Slot.kind, Slot.position)
        .execution_options(populate_existing=True)
    ).all()
