"""What is away, wrong or full for a while: the database, the broker, a lease, a clock, a disk, and unruly children."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from safetensors.numpy import load_file
from sqlalchemy.orm import Session

from db import runs
from pipeline import rundir
from pipeline.checkpoint import load_state
from pipeline.config import parse_config
from pipeline.events import StepFinished, events_path, read_events
from tests.faults.conftest import PATIENCE_S, Platform, wait_until
from tests.worker.conftest import play
from worker.queue import enqueue

pytestmark = pytest.mark.timeout(900)  # on a machine that is busy with other things, too
AWAY_S = float(os.environ.get("PILOT_FAULT_DB_AWAY_S", "15"))  # the promise is made for 60, and for an hour


def steps_told(platform: Platform, run_id: uuid.UUID, attempt: int = 1) -> int:
    path = events_path(platform.settings.run_dir(run_id), attempt)
    return sum(isinstance(event, StepFinished) for event, _ in read_events(path)) if path.exists() else 0


def test_training_goes_on_while_the_database_is_away_and_ingest_catches_up(platform: Platform) -> None:
    run_ids = [platform.new_run(steps=int(AWAY_S * 4) + 40, step_s=0.2) for _ in range(3)]
    platform.start_worker()
    for run_id in run_ids:
        platform.wait_for(run_id, lambda run: run.step >= 2)
    platform.servers.kill("postgres")
    before = [steps_told(platform, run_id) for run_id in run_ids]
    time.sleep(AWAY_S)
    after = [steps_told(platform, run_id) for run_id in run_ids]
    assert all(b + AWAY_S < a for b, a in zip(before, after, strict=True)), "at least one step a second, alone"
    platform.servers.start("postgres")
    platform.wait_for(run_ids[0], lambda run: run.step >= after[0], timeout_s=60)
    platform.wait_for_end(run_ids)
    assert [platform.run(run_id).attempt for run_id in run_ids] == [1, 1, 1], "nobody took them for dead"
    platform.check(run_ids)


def test_a_flushed_broker_loses_no_queued_run(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_SLOTS", "2")
    run_ids = [platform.new_run(steps=10, step_s=0.1) for _ in range(6)]
    for run_id in run_ids:
        enqueue(run_id)
    with redis.Redis.from_url(platform.servers.urls["broker"]) as client:
        client.flushall()
        platform.start_worker()
        platform.wait_for(run_ids[0], lambda run: run.state == "running")
        enqueue(run_ids[4])
        client.flushall()
    platform.wait_for_end(run_ids)
    platform.check(run_ids)


def test_of_two_supervisors_of_a_run_the_older_one_stops_its_trainer(platform: Platform) -> None:
    run_id = platform.new_run(steps=60, step_s=0.1)
    old = platform.supervise(run_id)
    platform.wait_for(run_id, lambda run: run.step >= 3)
    (trainer,) = platform.trainers()
    fence = platform.lose_lease(run_id)
    new = platform.start("-m", "worker.supervisor", str(run_id), str(fence))
    assert old.wait(60) in (3, -9), "it noticed, or it was ended with its trainer"
    trainer.wait(10)
    assert new.wait(120) == 0
    assert (platform.run(run_id).state, platform.run(run_id).step) == ("succeeded", 60)
    platform.check([run_id])


@pytest.fixture(scope="module")
def skew(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that shifts the wall clock of whatever loads it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler, with which to make a library that shifts a process's clock")
    library = tmp_path_factory.mktemp("skew") / "skew.so"
    source = Path(__file__).parent / "skew.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True)
    return library


@pytest.mark.parametrize("ahead_s", [3600, -3600])
def test_leases_hold_when_a_workers_clock_is_an_hour_off(
    platform: Platform, skew: Path, ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers of one host, one of them in the future or the past: neither takes the other's runs for dead."""
    run_ids = [platform.new_run(steps=60, step_s=0.15) for _ in range(4)]  # longer than a lease lasts
    with monkeypatch.context() as shifted:
        shifted.setenv("LD_PRELOAD", str(skew))
        shifted.setenv("SKEW_S", str(ahead_s))
        platform.start_worker()
    enqueue(run_ids[0])
    for run_id in run_ids:
        platform.wait_for(run_id, lambda run: run.step >= 1)
    first = next(read_events(events_path(platform.settings.run_dir(run_ids[0]), 1)))[0]
    assert abs(first.time - time.time() - ahead_s) < 300, "its trainers live in that time, too"
    platform.start("-m", "worker")
    killed = platform.supervisors()[0]
    victim = uuid.UUID(killed.environ()["PILOT_SUPERVISED_RUN"].partition(":")[0])
    killed.kill()
    platform.wait_for(victim, lambda run: run.attempt == 2, timeout_s=60)
    platform.wait_for_end(run_ids)
    assert all(platform.run(run_id).attempt == 1 for run_id in run_ids if run_id != victim)
    platform.check(run_ids)


def test_unruly_children_die_with_their_run(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer and a twice forked child in a session of its own, both deaf to SIGTERM; the supervisor is killed."""
    play(monkeypatch, "stubborn")
    monkeypatch.setenv("PILOT_STOP_GRACE_S", "1")
    run_ids = [platform.new_run(steps=10_000, step_s=0.1) for _ in range(3)]
    platform.start_worker()
    for run_id in run_ids:
        platform.wait_for(run_id, lambda run: run.step >= 1)
    first = platform.marked()
    assert len(first) == 9, "a supervisor, a trainer and its child each"
    for supervisor in platform.supervisors():
        supervisor.kill()
    for run_id in run_ids:
        platform.wait_for(run_id, lambda run: run.attempt == 2 and run.step >= 1, timeout_s=60)
    assert not [p for p in first if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    for run_id in run_ids:
        platform.request_stop(run_id)
    platform.wait_for_end(run_ids, "stopped")
    platform.check(run_ids)


@pytest.fixture
def small_disk(platform: Platform) -> Iterator[Path]:
    """Where runs are: a file system of its own with room for little."""
    folder = platform.home / "runs"
    folder.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder]).returncode:
        pytest.skip("only root can mount a small file system")
    yield folder
    for process in platform.marked():
        process.kill()
        process.wait(10)
    subprocess.run(["umount", "-l", folder], check=True)


def real_config(folder: Path, steps: int) -> dict[str, object]:
    """A real trainer on the first of the bundled prompts."""
    for kind, n in (("train", 60), ("eval", 10)):
        lines = Path(f"pipeline/bundled/prompts.{kind}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"{kind}.jsonl").write_text("".join(lines[:n]), encoding="utf-8")
    config = {
        "model": {"path": "pipeline/bundled/policy"},
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "eval.jsonl")},
        "method": {"name": "pilot_commit", "n_pilot": 4, "n_commit": 8, "p_lower": 0.25},
        "sampling": {"max_new_tokens": 8},
        "update": {"batch_prompts": 4, "mini_batches": 2, "lr": 3e-4},
        "evaluation": {"every": 10, "samples": 2},
        "checkpoint": {"every": 2, "keep": 2, "keep_best": 0},
        "budget": {"steps": steps},
        "engine": {"name": "torch", "threads": 1},
    }
    return parse_config(config).model_dump(mode="json")


def test_a_full_disk_stops_the_run_with_its_reason_and_the_last_checkpoint_intact(
    platform: Platform, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PILOT_TRAINER")
    with Session(platform.engine) as session, session.begin():
        config = real_config(tmp_path, steps=100)
        run_id = runs.create(session, name="r", config=config, config_digest="d", method="pilot_commit", model="m").id
    run_dir = platform.settings.run_dir(run_id)
    platform.start_worker()
    wait_until(lambda: len(rundir.checkpoints(run_dir)) >= 2, "two checkpoints")
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65_536))
        except OSError:
            pass
    run = platform.wait_for(run_id, lambda run: run.state not in ("starting", "running"), timeout_s=150)
    reason = run.reason or ""
    assert run.state == "failed" and ("is full: free some space" in reason or "make room" in reason), reason
    step, folder = rundir.checkpoints(run_dir)[-1]
    assert load_state(folder)["allocator"] and load_file(folder / "policy" / "model.safetensors")
    assert platform.attempts(run_id)[0].saved_step == step
    platform.check([run_id])

    filler.unlink()
    with Session(platform.engine) as session, session.begin():
        runs.request_resume(session, run_id)
    platform.wait_for(run_id, lambda run: (run.attempt, run.state) == (2, "running") and run.step > step, PATIENCE_S)
    platform.request_stop(run_id)
    platform.wait_for_end([run_id], "stopped")
    assert platform.attempts(run_id)[1].from_step == step
    platform.check([run_id])
