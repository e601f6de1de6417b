"""Real supervisor processes with a scripted trainer that behaves well, badly, or not at all."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import leases, marks, runs
from db.models import Lease, PromptMark, Run
from pipeline import rundir
from tests.worker.conftest import Stage
from worker.settings import APP_ROOT
from worker.supervisor import OWNER, write_atomically

Plays = Callable[[str], None]


def test_a_run_that_goes_well(stage: Stage) -> None:
    run_id = stage.new_run()
    assert stage.supervise(run_id).wait(40) == 0
    run = stage.run(run_id)
    assert (run.state, run.reason, run.step, run.rollouts) == ("succeeded", "all steps done", 5, 40)
    assert run.started_at and run.finished_at and run.first_accuracy == 0.25
    (attempt,) = stage.attempts(run_id)
    assert (attempt.outcome, attempt.exit_code, attempt.from_step, attempt.saved_step) == ("succeeded", 0, 0, 5)
    stage.check_books(run_id)
    assert json.loads((stage.settings.run_dir(run_id) / "config.json").read_text()) == run.config
    assert stage.processes_of(run_id) == []
    assert list((stage.home / "processes").iterdir()) == []


def test_it_is_recorded_while_it_runs_and_numbers_appear_live(stage: Stage) -> None:
    run_id = stage.new_run(steps=500, step_s=0.05)
    supervisor = stage.supervise(run_id)
    first = stage.wait_for(run_id, lambda run: run.step >= 2)
    assert first.state == "running" and first.buckets["committed"] == first.step
    entry = json.loads((stage.home / "processes" / f"supervisor-{run_id}.json").read_text())
    assert entry["pid"] == supervisor.pid
    stage.wait_for(run_id, lambda run: run.step > first.step)
    stage.request_stop(run_id)
    run = stage.wait_for_state(run_id, "stopped")
    assert run.reason == f"stopped on request after step {run.step}"
    assert supervisor.wait(10) == 0
    stage.check_books(run_id)
    assert stage.processes_of(run_id) == []


def test_marks_reach_the_trainer_and_come_back_with_the_step(stage: Stage) -> None:
    """Those wished while it trains, while the database was away from its supervisor, and while the run was stopped."""
    run_id = stage.new_run(steps=500, step_s=0.05)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 2)
    first = wish(stage, run_id, ["p0", "p1"], "exclude")
    applied = wait_until_applied(stage, run_id, 2)
    assert set(applied) == {"p0", "p1"} and applied["p0"] == applied["p1"] > first
    with database_away(stage):
        time.sleep(1)
        assert supervisor.poll() is None
    second = wish(stage, run_id, ["p2"], "retest")
    assert wait_until_applied(stage, run_id, 3)["p2"] > second
    stage.request_stop(run_id)
    stopped = stage.wait_for_state(run_id, "stopped")
    assert supervisor.wait(10) == 0
    wish(stage, run_id, ["p1"], "clear")
    with Session(stage.engine) as session, session.begin():
        runs.request_resume(session, run_id)
        assert [w.prompt_id for w in marks.pending(session, run_id)] == ["p1"]
    supervisor = stage.supervise(run_id)
    assert wait_until_applied(stage, run_id, 4)["p1"] == stopped.step + 1, "before its first step"
    stage.request_stop(run_id)
    assert supervisor.wait(30) == 0
    stage.check_books(run_id)


def wish(stage: Stage, run_id: uuid.UUID, prompts: list[str], mark: marks.Mark) -> int:
    """Returns the step that the run had finished by then."""
    with Session(stage.engine) as session, session.begin():
        assert marks.wish(session, run_id, prompts, mark, "ada").keys() == set(prompts)
    return stage.run(run_id).step


def wait_until_applied(stage: Stage, run_id: uuid.UUID, n: int) -> dict[str, int]:
    """The step from which on each prompt's newest mark holds."""
    deadline = time.monotonic() + 20
    while True:
        with Session(stage.engine) as session:
            rows = session.scalars(
                sa.select(PromptMark).where(PromptMark.run_id == run_id).order_by(PromptMark.id)
            ).all()
            if sum(row.applied_step is not None for row in rows) == n:
                return {row.prompt_id: row.applied_step or 0 for row in rows}
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_sigterm_stops_the_run_and_says_why(stage: Stage) -> None:
    run_id = stage.new_run(steps=500, step_s=0.05)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 1)
    supervisor.terminate()
    assert supervisor.wait(30) == 0
    run = stage.run(run_id)
    assert run.state == "stopped"
    assert run.reason == f"the platform was shut down after step {run.step}; resume to go on"
    stage.check_books(run_id)


@pytest.mark.parametrize("asked", [True, False])
def test_a_stop_before_the_trainer_listens_is_no_death(stage: Stage, trainer_plays: Plays, asked: bool) -> None:
    trainer_plays("slow_import")
    run_id = stage.new_run()
    supervisor = stage.supervise(run_id)
    stage.trainer(run_id)
    if asked:
        stage.request_stop(run_id)
    else:
        supervisor.terminate()
    assert supervisor.wait(30) == 0
    run = stage.run(run_id)
    what = "stopped" if asked else "the platform was shut down"
    assert (run.state, run.reason) == ("stopped", f"{what} before the first step; resume to go on")
    assert stage.attempts(run_id)[0].outcome == "stopped"
    with Session(stage.engine) as session, session.begin():
        runs.request_resume(session, run_id)
    trainer_plays("good")
    assert stage.supervise(run_id).wait(40) == 0
    assert stage.run(run_id).state == "succeeded"
    stage.check_books(run_id)


def test_a_stubborn_tree_is_killed_after_the_grace(
    stage: Stage, trainer_plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer_plays("stubborn")
    monkeypatch.setenv("PILOT_STOP_GRACE_S", "1")
    bystander = stage.start("-c", "import time; time.sleep(600)")
    run_id = stage.new_run(steps=10_000, step_s=0.05)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 1)
    assert len(stage.processes_of(run_id)) == 2, "the trainer and its detached child"
    stage.request_stop(run_id)
    run = stage.wait_for_state(run_id, "stopped")
    assert "did not end within 1 s and was killed" in (run.reason or "")
    supervisor.wait(10)
    assert stage.processes_of(run_id) == []
    assert bystander.poll() is None
    assert stage.attempts(run_id)[0].exit_code == -9
    stage.check_books(run_id)


def test_what_a_finished_trainer_leaves_behind_is_ended(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("silent_child")
    run_id = stage.new_run()
    assert stage.supervise(run_id).wait(40) == 0
    assert stage.run(run_id).state == "succeeded"
    assert stage.processes_of(run_id) == []


def test_a_crash_goes_on_from_the_checkpoint_and_books_what_was_lost(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("crash")
    run_id = stage.new_run()
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "queued"
    assert run.reason == "the trainer ended with status 3 without saying why; it goes on from the checkpoint of step 2"
    assert stage.attempts(run_id)[0].outcome == "lost"
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert (run.state, run.step, run.rollouts) == ("succeeded", 5, 56), "steps 3 and 4 were paid for twice"
    assert [a.from_step for a in stage.attempts(run_id)] == [0, 2]
    stage.check_books(run_id)


def test_dead_on_start_fails_with_the_end_of_its_log(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("dead_on_start")
    run_id = stage.new_run()
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "failed"
    assert "status 1" in (run.reason or "") and "the model folder is missing" in (run.reason or "")


def test_a_trainer_that_spends_more_than_its_budget_is_stopped(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("greedy")
    run_id = stage.new_run(steps=1000, step_s=0.05, budget={"rollouts": 40})
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "succeeded" and run.rollouts > 40
    assert (run.reason or "").startswith("rollout budget: ") and f"of 40 spent; it was ended after step {run.step}" in (
        run.reason or ""
    )
    stage.check_books(run_id)


@pytest.mark.parametrize("budget", [{"wall_clock_s": 2}, {"gpu_hours": 2 / 3600}])
def test_a_trainer_that_hangs_within_a_step_is_ended_when_its_time_is_over(
    stage: Stage, trainer_plays: Plays, monkeypatch: pytest.MonkeyPatch, budget: dict[str, float]
) -> None:
    monkeypatch.setenv("PILOT_STOP_GRACE_S", "1")
    trainer_plays("hangs")
    run_id = stage.new_run(budget=budget)
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "failed" and run.step == 1
    assert "used, and the trainer did not end within 1 s and was killed" in (run.reason or "")
    assert 2 < stage.attempts(run_id)[0].seconds < 30
    stage.check_books(run_id)
    assert run.rollouts == 16, "the step that it hung in may have sampled all that it announced"


def test_time_counts_over_all_attempts(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("greedy")
    run_id = stage.new_run(steps=10_000, step_s=0.05, budget={"wall_clock_s": 6})
    stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 20)
    stage.request_stop(run_id)
    stage.wait_for_state(run_id, "stopped")
    with Session(stage.engine) as session, session.begin():
        runs.request_resume(session, run_id)
    stage.supervise(run_id).wait(40)
    first, second = stage.attempts(run_id)
    assert first.seconds > 1 and second.seconds > 0 and 6 < first.seconds + second.seconds < 9
    assert "time budget" in (stage.run(run_id).reason or "")


def test_everything_that_the_trainer_printed_can_be_read(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("chatty")
    run_id = stage.new_run(steps=12, step_s=0)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 2)
    part = rundir.read_log(stage.settings.run_dir(run_id), 1, 0)
    assert part.data.startswith(b"attempt 1 goes on from step 0\n"), "while it trains"
    assert supervisor.wait(60) == 0
    text, offset = b"", 0
    while (part := rundir.read_log(stage.settings.run_dir(run_id), 1, offset, 1 << 20)).data:
        text, offset = text + part.data, part.end
    printed = [f"{step} {i:>45}" for step in range(1, 13) for i in range(20_000)]
    assert text.decode().splitlines() == ["attempt 1 goes on from step 0", *printed]
    assert len(list(rundir.log_folder(stage.settings.run_dir(run_id), 1).iterdir())) == 2


def test_a_trainer_that_cannot_write_fails_the_run_at_once(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("silent_end")
    run_id = stage.new_run()
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "failed", "although there is a checkpoint to go on from"
    assert "could not write into" in (run.reason or "") and "MiB are free there): make room" in (run.reason or "")


def test_a_later_supervisor_elsewhere_is_noticed_without_the_database(stage: Stage) -> None:
    run_id = stage.new_run(steps=10_000, step_s=0.05)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 1)
    with database_away(stage):
        time.sleep(2)
        assert supervisor.poll() is None
        write_atomically(stage.settings.run_dir(run_id) / OWNER, {"fence": 2, "holder": "other:1:1:1"})
        assert supervisor.wait(20) == 3
        assert stage.processes_of(run_id) == []


def test_of_two_supervisors_the_older_one_stops_its_trainer(stage: Stage) -> None:
    run_id = stage.new_run(steps=60, step_s=0.1)
    old = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 3)
    trainer = stage.trainer(run_id)
    with Session(stage.engine) as session, session.begin():
        # What no sweep would do: the run is given to another one although the first supervisor and its trainer live.
        session.execute(sa.update(Lease).values(expires_at=sa.func.now() - sa.text("interval '1 hour'")))
        session.execute(sa.update(Run).values(state="queued"))
        fence = leases.claim(session, run_id, "test:1:1:1", dt.timedelta(seconds=4))
    assert fence == 2
    new = stage.start("-m", "worker.supervisor", str(run_id), "2")
    assert old.wait(20) in (3, -9), "it noticed, or it was ended with its trainer"
    trainer.wait(10)
    assert new.wait(60) == 0
    run = stage.run(run_id)
    assert (run.state, run.step) == ("succeeded", 60)
    stage.check_books(run_id)


def test_a_log_that_is_not_events_stops_the_trainer_and_fails_the_run(stage: Stage, trainer_plays: Plays) -> None:
    trainer_plays("garbage")
    run_id = stage.new_run(steps=10_000, step_s=0.05)
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "failed" and "not an event" in (run.reason or "")
    assert stage.processes_of(run_id) == []


def test_a_run_directory_that_cannot_be_used_fails_the_run(stage: Stage) -> None:
    run_id = stage.new_run()
    folder = stage.settings.run_dir(run_id)
    folder.mkdir(parents=True)
    (folder / "attempts").write_text("in the way")
    stage.supervise(run_id).wait(40)
    run = stage.run(run_id)
    assert run.state == "failed" and "attempts" in (run.reason or "")


def test_training_goes_on_while_the_database_is_away(stage: Stage) -> None:
    run_id = stage.new_run(steps=60, step_s=0.05)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 1)
    with database_away(stage):
        log = stage.settings.run_dir(run_id) / "attempts" / "1" / "events.jsonl"
        deadline = time.monotonic() + 30
        while '"attempt_finished"' not in log.read_text():  # longer than a lease lasts
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(2)  # the trainer is gone, its supervisor waits
        assert supervisor.poll() is None and stage.processes_of(run_id) == []
    run = stage.wait_for_state(run_id, "succeeded")
    assert run.step == 60
    stage.check_books(run_id)
    assert supervisor.wait(20) == 0


def test_a_shutdown_that_the_database_did_not_hear_of_says_why(stage: Stage) -> None:
    """As after kill -9 of the launcher: the database went with it, and the next start ends the supervisor."""
    run_id = stage.new_run(steps=10_000, step_s=0.05)
    supervisor = stage.supervise(run_id)
    stage.wait_for(run_id, lambda run: run.step >= 1)
    with database_away(stage):
        supervisor.terminate()
        assert supervisor.wait(40) == 3
    assert stage.run(run_id).state == "running"
    stage.start("-m", "worker")
    run = stage.wait_for_state(run_id, "stopped")
    assert run.reason == f"the platform was shut down after step {run.step}; resume to go on"
    stage.check_books(run_id)


@contextmanager
def database_away(stage: Stage) -> Iterator[None]:
    name = stage.engine.url.database
    admin = sa.create_engine(stage.engine.url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    stage.engine.dispose()
    with admin.connect() as connection:
        connection.execute(sa.text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false"))
        connection.execute(
            sa.text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :d"), {"d": name}
        )
    try:
        yield
    finally:
        with admin.connect() as connection:
            connection.execute(sa.text(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true"))
        admin.dispose()


def test_a_supervisor_that_lost_its_lease_kills_its_trainer_and_writes_nothing(stage: Stage) -> None:
    run_id = stage.new_run(step_s=600)  # nothing to write that would tell it
    supervisor = stage.supervise(run_id)
    stage.wait_for_state(run_id, "running")
    with Session(stage.engine) as session, session.begin():
        session.execute(sa.update(Lease).values(fence=Lease.fence + 1))
    assert supervisor.wait(20) == 3
    assert stage.processes_of(run_id) == []
    run = stage.run(run_id)
    assert run.state == "running" and stage.attempts(run_id)[0].finished_at is None


def test_no_trainer_outlives_a_killed_supervisor(stage: Stage) -> None:
    run_id = stage.new_run(steps=10_000, step_s=0.05)
    supervisor = stage.supervise(run_id)
    trainer = stage.trainer(run_id)
    supervisor.kill()
    trainer.wait(10)


def test_no_torch_in_the_workers_processes() -> None:
    """The supervisor's modules bring in neither Celery nor Alembic, nobody torch or NumPy."""
    script = """
import sys, worker.supervisor
print(*sorted({"celery", "alembic"} & set(sys.modules)))
import worker.__main__, worker.tasks, worker.queue
print(*sorted({"torch", "transformers", "numpy", "alembic"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=APP_ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
