"""Claims race on real connections; fences shut out whoever was thought dead."""

from __future__ import annotations

import datetime as dt
import threading
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import leases
from db.models import Lease, Run

TTL = dt.timedelta(seconds=30)
PAST = dt.timedelta(seconds=-1)  # a lease that has run out as soon as it is taken


def new_run(session: Session, **values: object) -> uuid.UUID:
    run = Run(**{"name": "r", "config": {}, "config_digest": "d", "method": "grpo", "model": "m", **values})
    session.add(run)
    session.flush()
    return run.id


def state(session: Session, run_id: uuid.UUID) -> str | None:
    session.expire_all()
    return session.scalar(sa.select(Run.state).where(Run.id == run_id))


def test_claim_takes_a_queued_run_once(session: Session) -> None:
    run_id = new_run(session)
    assert [waiting.id for waiting in leases.waiting(session)] == [run_id]
    assert leases.claim(session, run_id, "a:1:1", TTL) == 1
    assert state(session, run_id) == "starting"
    assert leases.claim(session, run_id, "b:1:1", TTL) is None
    assert leases.waiting(session) == []


def test_only_a_queued_run_with_a_free_lease_can_be_claimed(session: Session) -> None:
    assert leases.claim(session, uuid.uuid4(), "a:1:1", TTL) is None
    for values in ({"state": "stopped"}, {"state": "running"}, {"stop_requested_at": sa.func.now()}):
        assert leases.claim(session, new_run(session, **values), "a:1:1", TTL) is None
    run_id = new_run(session)
    assert leases.claim(session, run_id, "a:1:1", TTL) == 1
    session.execute(sa.update(Run).values(state="queued").where(Run.id == run_id))
    assert leases.claim(session, run_id, "b:1:1", TTL) is None, "queued again, but the lease is still held"
    leases.release(session, run_id, 1)
    assert leases.claim(session, run_id, "b:1:1", TTL) == 3
    with pytest.raises(leases.LeaseLost):
        leases.renew(session, run_id, 1, TTL)


@pytest.mark.parametrize("round", range(3))
def test_of_many_claims_at_once_one_wins(engine: sa.Engine, round: int) -> None:
    with Session(engine) as session, session.begin():
        run_id = new_run(session)
    ready, fences = threading.Barrier(6), []

    def claim(holder: str) -> None:
        with Session(engine) as session, session.begin():
            session.connection()
            ready.wait(10)
            fences.append(leases.claim(session, run_id, holder, TTL))

    threads = [threading.Thread(target=claim, args=(f"h{i}:1:1",)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(fences, key=lambda fence: fence or 0) == [None] * 5 + [1]


def test_renew_tells_of_a_stop_and_revives_a_lease_that_nobody_took(session: Session) -> None:
    run_id = new_run(session)
    assert leases.claim(session, run_id, "a:1:1", PAST) == 1
    assert [e.run_id for e in leases.expired(session)] == [run_id]
    assert leases.renew(session, run_id, 1, TTL, holder="a:2:2") is False
    assert leases.expired(session) == []
    assert session.scalar(sa.select(Lease.holder)) == "a:2:2"
    session.execute(sa.update(Run).values(stop_requested_at=sa.func.now()))
    assert leases.renew(session, run_id, 1, TTL) is True


def test_a_revoked_holder_can_write_no_more(session: Session) -> None:
    run_id = new_run(session)
    leases.claim(session, run_id, "a:1:1", PAST)
    (expired,) = leases.expired(session)
    assert leases.owned(session, run_id, 1).id == run_id
    run = leases.revoke(session, expired)
    assert run is not None and run.id == run_id
    assert leases.revoke(session, expired) is None, "twice"
    for write in (leases.owned, leases.release):
        with pytest.raises(leases.LeaseLost):
            write(session, run_id, 1)
    with pytest.raises(leases.LeaseLost):
        leases.renew(session, run_id, 1, TTL)
    run.state = "queued"
    session.flush()
    assert leases.claim(session, run_id, "b:1:1", TTL) == 3


def test_revoke_does_nothing_when_the_holder_was_back_in_time(session: Session) -> None:
    run_id = new_run(session)
    leases.claim(session, run_id, "a:1:1", PAST)
    (expired,) = leases.expired(session)
    leases.renew(session, run_id, 1, TTL)
    assert leases.revoke(session, expired) is None
    assert leases.owned(session, run_id, 1).id == run_id


def test_a_deleted_run_is_lost(session: Session) -> None:
    run_id = new_run(session)
    leases.claim(session, run_id, "a:1:1", TTL)
    session.execute(sa.delete(Run))
    session.expire_all()
    with pytest.raises(leases.LeaseLost):
        leases.owned(session, run_id, 1)


def test_renewing_does_not_wait_for_a_long_write_but_revoking_does(engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        run_id = new_run(session)
        leases.claim(session, run_id, "a:1:1", PAST)
        (expired,) = leases.expired(session)
    with Session(engine) as writing, writing.begin():
        leases.owned(writing, run_id, 1)
        with Session(engine) as other, other.begin():
            other.execute(sa.text("SET LOCAL lock_timeout = '300ms'"))
            with pytest.raises(sa.exc.OperationalError, match="lock timeout"):
                leases.revoke(other, expired)
            other.rollback()
        with Session(engine) as other, other.begin():
            other.execute(sa.text("SET LOCAL lock_timeout = '300ms'"))
            leases.renew(other, run_id, 1, TTL)


def test_a_stop_that_is_under_way_goes_before_a_claim(engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        run_id = new_run(session)
    fences: list[int | None] = []

    def claim() -> None:
        with Session(engine) as session, session.begin():
            fences.append(leases.claim(session, run_id, "a:1:1", TTL))

    claiming = threading.Thread(target=claim)
    with Session(engine) as stopping, stopping.begin():
        stopping.execute(sa.update(Run).values(state="stopped", stop_requested_at=sa.func.now()))
        claiming.start()
        claiming.join(0.5)
        assert claiming.is_alive(), "it waits for the stop to be decided"
    claiming.join(20)
    with Session(engine) as session:
        assert (fences, state(session, run_id)) == ([None], "stopped")
