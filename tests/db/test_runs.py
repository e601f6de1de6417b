"""Runs: what they wait for in words, and deletion."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import leases, run_list, runs, slots, views
from db.models import LedgerEntry, PromptMark, PromptVisit, Run

TTL = dt.timedelta(seconds=30)
REQUIRED: dict[str, object] = {"name": "r", "config": {}, "config_digest": "d", "method": "grpo", "model": "m"}


def new_run(session: Session, **values: object) -> Run:
    run = Run(**REQUIRED | {"created_at": sa.func.clock_timestamp(), **values})
    session.add(run)
    session.flush()
    session.refresh(run)
    return run


def standing(session: Session, run: Run) -> runs.Standing:
    return runs.standings(session, [run])[run.id]


def test_a_queued_run_says_what_it_waits_for(session: Session) -> None:
    large = new_run(session, device="cuda", n_devices=4)
    assert standing(session, large).reason == "no worker is running that could start it"
    assert "python -m worker" in standing(session, large).todo
    slots.announce(session, "one", [slots.Device("cpu", "0", "")], TTL)
    reason = "it needs 4 GPUs on one host, and the hosts with a worker have none"
    assert standing(session, large).reason == reason
    slots.announce(session, "two", [slots.Device("cuda", str(i), "") for i in range(2)], TTL)
    reason = "it needs 4 GPUs on one host, and the hosts with a worker have at most 2, on two"
    assert standing(session, large).reason == reason
    assert "an engine that needs less" in standing(session, large).todo

    first, second = new_run(session), new_run(session, reason="the trainer was ended by SIGKILL")
    assert standing(session, first).reason == "it waits for a CPU slot (1 of 1 free; it is next)"
    assert leases.claim_next(session, "one", "one:1:1:1", TTL) == (first.id, 1)
    session.refresh(first)
    waits = "the trainer was ended by SIGKILL; it waits for a CPU slot (0 of 1 free; it is next)"
    assert standing(session, second).reason == waits
    third = new_run(session)
    assert standing(session, third).reason == "it waits for a CPU slot (0 of 1 free; 1 before it)"
    runs.set_priority(session, third.id, 1)
    assert "it is next" in str(standing(session, third).reason)


@pytest.mark.parametrize("state", ["starting", "running", "stopping", "stopped", "succeeded", "failed"])
def test_every_state_has_its_reason_and_something_to_do(session: Session, state: str) -> None:
    run = new_run(session, state=state, reason="because")
    assert standing(session, run).reason == "because" and len(standing(session, run).todo) > 20


@pytest.mark.parametrize("state", ["queued", "starting", "running", "stopping"])
def test_only_an_ended_run_can_be_deleted(session: Session, state: str) -> None:
    run = new_run(session, state=state)
    with pytest.raises(runs.WrongState, match="stop it first"):
        runs.delete(session, run.id)
    assert runs.get(session, run.id) is run


def test_a_deleted_run_is_gone_for_everybody_and_then_for_good(session: Session) -> None:
    run, other = new_run(session, state="stopped"), new_run(session, state="stopped")
    for owner in (run, other):
        for step in range(5):
            session.add(
                PromptVisit(
                    run_id=owner.id, step=step, position=0, prompt_id="p", stage="pilot", attempt=1, n=1, n_failed=0,
                    tokens=1, bucket="ready",
                )
            )  # fmt: skip
        session.add(LedgerEntry(run_id=owner.id, attempt=1, step=1, fate="trained", rollouts=1, tokens=1))
        session.add(PromptMark(run_id=owner.id, prompt_id="p", mark="pin", wished_by="ada"))
    session.flush()
    runs.delete(session, run.id)
    for look in (runs.get, runs.request_stop, runs.request_resume, runs.delete, views.ledger):
        with pytest.raises(runs.RunNotFound):
            look(session, run.id)
    rows, _, _ = run_list.page(session, run_list.Filter(), limit=10)
    assert [r.id for r in rows] == [other.id]
    assert runs.deleted(session) == [run.id]
    rounds = 0
    while not runs.purge(session, run.id, rows=2):
        rounds += 1
        assert rounds < 20
    assert rounds == 5, "three of visits, one each of marks and the ledger"
    session.expire_all()
    assert session.scalar(sa.select(sa.func.count()).select_from(Run)) == 1
    assert session.scalar(sa.select(sa.func.count()).select_from(PromptVisit)) == 5
    assert runs.deleted(session) == []


def test_a_run_that_is_not_deleted_is_never_purged(session: Session) -> None:
    run = new_run(session, state="stopped")
    session.add(LedgerEntry(run_id=run.id, attempt=1, step=1, fate="trained", rollouts=1, tokens=1))
    session.flush()
    with pytest.raises(runs.RunNotFound):
        runs.purge(session, run.id)
    assert session.scalar(sa.select(sa.func.count()).select_from(LedgerEntry)) == 1
    assert runs.get(session, run.id)


def test_a_clone_knows_where_it_came_from(session: Session) -> None:
    source = uuid.uuid4()
    run = runs.create(
        session, name="r", config={}, config_digest="d", method="grpo", model="m", device="cuda", n_devices=2,
        priority=3, cloned_from=source,
    )  # fmt: skip
    assert (run.device, run.n_devices, run.priority, run.cloned_from) == ("cuda", 2, 3, source)
