"""Slots: announced, taken with a run, one holder each, given back when somebody knows that the processes are gone."""

from __future__ import annotations

import datetime as dt
import threading
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import leases, runs, slots
from db.models import Host, Lease, Run, Slot

TTL = dt.timedelta(seconds=30)
REQUIRED: dict[str, object] = {"name": "r", "config": {}, "config_digest": "d", "method": "grpo", "model": "m"}


def new_run(session: Session, **values: object) -> uuid.UUID:
    run = Run(**REQUIRED | {"created_at": sa.func.clock_timestamp(), **values})
    session.add(run)
    session.flush()
    return run.id


def cpu(n: int) -> list[slots.Device]:
    return [slots.Device("cpu", str(i), f"CPU slot {i}") for i in range(n)]


def gpus(*names: str) -> list[slots.Device]:
    return [slots.Device("cuda", name, f"GPU {name}") for name in names]


def claim(session: Session, host: str) -> leases.Claim | None:
    return leases.claim_next(session, host, f"{host}:1:1:1", TTL)


def claimed(session: Session, host: str) -> uuid.UUID | None:
    taken = claim(session, host)
    return taken and taken.run_id


def free(session: Session, host: str) -> tuple[int, int]:
    (found,) = [h for h in slots.hosts(session) if h.name == host]
    return found.free("cpu"), found.free("cuda")


def test_a_run_takes_what_it_needs_and_no_more_than_there_is(session: Session) -> None:
    first = new_run(session)
    assert claim(session, "a") is None, "it has not announced itself"
    slots.announce(session, "a", cpu(1) + gpus("0", "2", "5"), TTL)
    taken = claim(session, "a")
    assert taken == (first, 1)
    assert slots.held(session, "a", first, 1) == cpu(1)
    assert claim(session, "a") is None
    large = new_run(session, device="cuda", n_devices=2)
    other = new_run(session, device="cuda", n_devices=1)
    assert claimed(session, "a") == large
    assert slots.held(session, "a", large, 1) == gpus("0", "2")
    assert claimed(session, "a") == other
    assert slots.held(session, "a", other, 1) == gpus("5")
    assert free(session, "a") == (0, 0)
    slots.free(session, "a", large, 1)
    assert free(session, "a") == (0, 2)
    assert slots.held(session, "a", other, 1) == gpus("5"), "another run's slots are untouched"


def test_higher_priority_first_then_older(session: Session) -> None:
    slots.announce(session, "a", cpu(9), TTL)
    old, new, urgent = (new_run(session, created_at=dt.datetime(2026, 1, day, tzinfo=dt.UTC)) for day in (1, 2, 3))
    runs.set_priority(session, urgent, 5)
    assert [waiting.id for waiting in leases.waiting(session)] == [urgent, old, new]
    assert [claimed(session, "a") for _ in range(4)] == [urgent, old, new, None]


def test_a_large_run_is_not_kept_waiting_by_small_ones(session: Session) -> None:
    slots.announce(session, "a", cpu(1) + gpus("0", "1"), TTL)
    small = new_run(session, device="cuda")
    assert claimed(session, "a") == small
    large = new_run(session, device="cuda", n_devices=2)
    later = new_run(session, device="cuda")
    on_cpu = new_run(session)
    assert claimed(session, "a") == on_cpu, "it needs another kind of device"
    assert claimed(session, "a") is None
    slots.announce(session, "b", gpus("0"), TTL)
    assert claimed(session, "b") == later, "a host that could never hold the large one"
    slots.free(session, "a", small, 1)
    assert claimed(session, "a") == large


@pytest.mark.parametrize("round", range(3))
def test_launchers_of_one_host_at_once_give_no_slot_twice(engine: sa.Engine, round: int) -> None:
    with Session(engine) as session, session.begin():
        slots.announce(session, "a", gpus("0", "1", "2"), TTL)
        for _ in range(6):
            new_run(session, device="cuda")
    ready, taken = threading.Barrier(6), []

    def launch() -> None:
        with Session(engine) as session, session.begin():
            session.connection()
            ready.wait(10)
            taken.append(claim(session, "a"))

    threads = [threading.Thread(target=launch) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    won = [t for t in taken if t is not None]
    assert len(taken) == 6 and len({t.run_id for t in won}) == len(won) == 3
    with Session(engine) as session:
        held = [d.name for t in won for d in slots.held(session, "a", *t)]
        states = session.scalars(sa.select(Run.state)).all()
    assert sorted(held) == ["0", "1", "2"]
    assert sorted(states) == ["queued"] * 3 + ["starting"] * 3


def test_announcing_again_keeps_holders_and_withdraws_what_is_gone(session: Session) -> None:
    slots.announce(session, "a", gpus("0", "1"), TTL)
    run_id = new_run(session, device="cuda", n_devices=2)
    assert claimed(session, "a") == run_id
    slots.announce(session, "a", gpus("0"), TTL)
    assert len(slots.held(session, "a", run_id, 1)) == 2, "a trainer works there still"
    assert [h.count("cuda") for h in slots.hosts(session)] == [1]
    slots.free(session, "a", run_id, 1)
    new_run(session, device="cuda", n_devices=2)
    assert claim(session, "a") is None, "the second GPU is free, but not offered any more"
    slots.announce(session, "a", gpus("0"), TTL)
    assert session.scalars(sa.select(Slot.device)).all() == ["0"]


def test_an_announcement_runs_out_and_a_silent_host_is_forgotten_unless_a_run_of_it_lives(session: Session) -> None:
    for name in ("gone", "busy"):
        slots.announce(session, name, cpu(1), TTL)
    run_id = new_run(session)
    assert claimed(session, "busy") == run_id
    session.execute(sa.update(Host).values(expires_at=Host.expires_at - dt.timedelta(minutes=1)))
    assert slots.hosts(session) == []
    session.execute(sa.update(Host).values(expires_at=Host.expires_at - dt.timedelta(days=2)))
    slots.announce(session, "here", cpu(1), TTL)
    assert session.scalars(sa.select(Host.name).order_by(Host.name)).all() == ["busy", "here"]
    session.execute(sa.update(Lease).values(expires_at=sa.func.now() - TTL))
    slots.announce(session, "here", cpu(1), TTL)
    assert session.scalars(sa.select(Host.name)).all() == ["here"]


def test_a_holder_whose_lease_was_taken_is_stale_until_freed(session: Session) -> None:
    slots.announce(session, "a", cpu(2), TTL)
    run_id = new_run(session)
    assert claimed(session, "a") == run_id
    assert slots.stale(session, "a") == []
    leases.release(session, run_id, 1)
    assert slots.stale(session, "a") == [(run_id, 1)]
    session.execute(sa.update(Run).values(state="queued"))
    assert claim(session, "a") == (run_id, 3), "on the other slot"
    assert free(session, "a") == (0, 0)
    slots.free(session, "a", run_id, 1)
    assert (slots.stale(session, "a"), free(session, "a")) == ([], (1, 0))
    assert slots.held(session, "a", run_id, 3) == [cpu(2)[1]]


def test_a_deleted_runs_slot_is_stale(session: Session) -> None:
    slots.announce(session, "a", cpu(1), TTL)
    run_id = new_run(session)
    assert claimed(session, "a") == run_id
    session.execute(sa.delete(Run))
    assert slots.stale(session, "a") == [(run_id, 1)]
