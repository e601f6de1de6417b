"""The real Celery worker process: messages launch supervisors, the sweep makes good what was missed or killed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import psutil
import pytest
import redis
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import runs
from db.models import Lease, Run
from tests.worker.conftest import Stage
from worker.queue import BrokerUnavailable, enqueue

Plays = Callable[[str], None]


def test_a_message_launches_a_run_and_the_worker_may_go(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_SWEEP_S", "600")  # the message alone
    worker = stage.start("-m", "worker")
    run_id = stage.new_run(steps=60, step_s=0.05)
    enqueue(run_id)
    enqueue(run_id)  # a doubled message
    stage.wait_for(run_id, lambda run: run.step >= 1)
    worker.terminate()
    assert worker.wait(20) == 0
    run = stage.wait_for_state(run_id, "succeeded")
    assert (run.attempt, run.step) == (1, 60)
    stage.check_books(run_id)


def test_the_sweep_finds_what_no_message_told(stage: Stage) -> None:
    run_id = stage.new_run()
    stage.start("-m", "worker")
    stage.wait_for_state(run_id, "succeeded")


def test_runs_wait_for_a_free_slot(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_SLOTS", "1")
    first, second = stage.new_run(steps=20, step_s=0.05), stage.new_run()
    enqueue(first)
    enqueue(second)
    stage.start("-m", "worker")
    assert stage.wait_for(first, lambda run: run.step >= 1).state == "running"
    assert stage.run(second).state == "queued"
    stage.wait_for_state(first, "succeeded")
    stage.wait_for_state(second, "succeeded")


def test_each_trainer_sees_the_gpus_that_its_run_holds_and_no_other(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOT_SLOTS", "1")
    monkeypatch.setenv("PILOT_GPUS", "0,2,MIG-7")
    gpus = [stage.new_run(gpus=n, steps=40, step_s=0.05, priority=-i) for i, n in enumerate((2, 1, 2))]
    cpu, too_large = stage.new_run(), stage.new_run(gpus=4, priority=9)
    stage.start("-m", "worker")
    for run_id in gpus[:2]:
        stage.wait_for(run_id, lambda run: run.step >= 1)
    assert stage.free_slots()["cuda"] == 0
    assert stage.run(gpus[2]).state == "queued"
    with Session(stage.engine) as session:
        standing = runs.standings(session, [session.get_one(Run, too_large)])[too_large]
    assert "needs 4 GPUs on one host, and the hosts with a worker have " in (standing.reason or "")
    for run_id in (*gpus, cpu):
        stage.wait_for_state(run_id, "succeeded")
    seen = [(stage.settings.run_dir(run_id) / "devices").read_text() for run_id in (*gpus, cpu)]
    assert seen == ["0,2", "MIG-7", "0,2", ""]
    assert stage.free_slots() == {"cpu": 1, "cuda": 3}


def test_runs_start_without_any_broker(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = stage.start("-m", "worker")  # whose sweep begins once it has reached the broker
    first = stage.new_run(steps=2)
    stage.wait_for_state(first, "succeeded")
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    second = stage.new_run(steps=2)
    with pytest.raises(BrokerUnavailable):
        enqueue(second)
    stage.wait_for_state(second, "succeeded")
    assert worker.poll() is None


def test_a_deleted_runs_files_and_rows_go(stage: Stage) -> None:
    run_id = stage.new_run()
    stage.start("-m", "worker")
    stage.wait_for_state(run_id, "succeeded")
    folder = stage.settings.run_dir(run_id)
    assert folder.is_dir()
    with Session(stage.engine) as session, session.begin():
        runs.delete(session, run_id)
    deadline = time.monotonic() + 30
    with Session(stage.engine) as session:
        while session.scalar(sa.select(sa.func.count()).select_from(Run)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert not folder.exists()


def test_a_run_whose_supervisor_was_killed_goes_on(stage: Stage) -> None:
    run_id = stage.new_run(steps=120, step_s=0.05)
    stage.start("-m", "worker")
    stage.wait_for(run_id, lambda run: run.step >= 4)
    with Session(stage.engine) as session:
        holder = session.scalar(sa.select(Lease.holder).where(Lease.run_id == run_id))
    psutil.Process(int((holder or "").split(":")[1])).kill()
    run = stage.wait_for(run_id, lambda run: run.attempt == 2)
    run = stage.wait_for_state(run_id, "succeeded")
    first, second = stage.attempts(run_id)
    assert first.outcome == "lost"
    assert first.reason == f"its supervisor was gone; it goes on from the checkpoint of step {first.saved_step}"
    # The trainer may have died between a checkpoint, which it saves every second step, and its event.
    assert first.saved_step is not None and second.from_step in (first.saved_step, first.saved_step + 2)
    assert run.step == 120
    stage.check_books(run_id)
    assert stage.free_slots()["cpu"] == stage.settings.slots


def test_a_supervisor_that_starts_slowly_keeps_its_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many that start at once on a busy machine do: the lease runs out before they can renew it."""
    monkeypatch.setenv("PILOT_LEASE_TTL_S", "2")
    run_id = stage.new_run()
    stage.start("-m", "worker")
    deadline = time.monotonic() + 30
    while not (found := stage.processes_of(run_id)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    found[0].suspend()
    time.sleep(6.0)
    assert stage.run(run_id).state == "starting"
    found[0].resume()
    stage.wait_for_state(run_id, "succeeded")
    with Session(stage.engine) as session:
        assert session.scalar(sa.select(Lease.fence)) == 2, "it was claimed once, and released"


def test_a_hanging_supervisor_is_replaced_and_its_trainer_with_it(
    stage: Stage, trainer_plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer_plays("stubborn")
    monkeypatch.setenv("PILOT_STOP_GRACE_S", "1")
    run_id = stage.new_run(steps=10_000, step_s=0.05)
    stage.start("-m", "worker")
    stage.wait_for(run_id, lambda run: run.step >= 1)
    old = stage.processes_of(run_id)
    with Session(stage.engine) as session:
        holder = session.scalar(sa.select(Lease.holder).where(Lease.run_id == run_id))
    psutil.Process(int((holder or "").split(":")[1])).suspend()
    stage.wait_for(run_id, lambda run: run.attempt == 2)
    assert len(old) == 3 and not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in old)
    stage.request_stop(run_id)
    stage.wait_for_state(run_id, "stopped", timeout_s=60)
    stage.check_books(run_id)


def test_attempts_without_progress_come_to_an_end(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("always_crash")
    run_id = stage.new_run()
    (stage.settings.run_dir(run_id)).mkdir(parents=True)
    stage.start("-m", "worker")
    run = stage.wait_for_state(run_id, "failed")
    assert run.attempt == 1, "it never saved anything"
    assert "out of luck" in (run.reason or "")


def test_a_broker_that_is_away_is_told_of_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://:s3cret-word@127.0.0.1:1/0")
    began = time.monotonic()
    with pytest.raises(BrokerUnavailable, match=r"127\.0\.0\.1.*Check that it runs") as caught:
        enqueue(uuid.uuid4())
    assert "s3cret-word" not in str(caught.value)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("url", ["", "nonsense", "redis://h:port/0"])
def test_an_unusable_broker_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_URL", url)
    with pytest.raises(BrokerUnavailable, match="REDIS_URL"):
        enqueue(uuid.uuid4())


def test_messages_wait_in_one_list_and_expire(broker_url: str) -> None:
    enqueue(uuid.uuid4())
    with redis.Redis.from_url(broker_url) as client:
        (message,) = client.lrange("pilot", 0, -1)
    assert b'"expires": "2' in message


@pytest.mark.parametrize("missing", ["DATABASE_URL", "REDIS_URL"])
def test_a_worker_without_services_says_what_to_do(missing: str, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(missing)
    assert stage.start("-m", "worker").wait(30) == 2
