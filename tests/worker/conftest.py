"""Runs for real supervisors with a scripted trainer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import runs, slots
from db.models import Attempt, LedgerEntry, PromptVisit, Run, StepMetrics
from pipeline.config import parse_config
from worker import host
from worker.settings import APP_ROOT, Settings

# What the scripted trainer takes of it are the seconds that a step takes, from its name, and the budget's steps.
CONFIG = {
    "model": {"path": "pipeline/bundled/policy"},
    "data": {"train": "pipeline/bundled/prompts.train.jsonl", "eval": "pipeline/bundled/prompts.eval.jsonl"},
}


@dataclass
class Stage:
    """The database, the home and the processes of one test."""

    engine: sa.Engine
    home: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings.from_environment()

    def new_run(
        self,
        *,
        steps: int = 5,
        step_s: float = 0.02,
        gpus: int = 0,
        budget: dict[str, Any] | None = None,
        **values: Any,
    ) -> uuid.UUID:
        """gpus: how many it needs; 0 is a CPU slot. budget: more of it. values: of `runs.create`."""
        needs = {"device": "cuda", "n_devices": gpus} if gpus else {}
        config = CONFIG | {"name": f"step {step_s}", "budget": {"steps": steps, **(budget or {})}}
        config = parse_config(config).model_dump(mode="json")
        with Session(self.engine) as session, session.begin():
            run = runs.create(
                session, name="r", config=config, config_digest="d", method="grpo", model="m", **needs, **values
            )
            return run.id

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        tests = os.getpid()
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=APP_ROOT,
            start_new_session=True,
            preexec_fn=lambda: host.die_with(tests),  # also when the test run is killed
        )
        self.processes.append(process)
        return process

    def supervise(self, run_id: uuid.UUID) -> subprocess.Popen[bytes]:
        """Claim the run as a launcher would, and start its supervisor."""
        import datetime as dt

        from db import leases

        with Session(self.engine) as session, session.begin():
            ttl = dt.timedelta(seconds=self.settings.lease_ttl_s)
            fence = leases.claim(session, run_id, "test:1:1:1", ttl)
        assert fence is not None
        return self.start("-m", "worker.supervisor", str(run_id), str(fence))

    def request_stop(self, run_id: uuid.UUID) -> None:
        with Session(self.engine) as session, session.begin():
            runs.request_stop(session, run_id)

    def run(self, run_id: uuid.UUID) -> Run:
        with Session(self.engine, expire_on_commit=False) as session:
            return session.get_one(Run, run_id)

    def attempts(self, run_id: uuid.UUID) -> list[Attempt]:
        with Session(self.engine, expire_on_commit=False) as session:
            return list(session.scalars(sa.select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.attempt)))

    def wait_for(self, run_id: uuid.UUID, condition: Callable[[Run], bool], timeout_s: float = 40.0) -> Run:
        deadline = time.monotonic() + timeout_s
        while not condition(run := self.run(run_id)):
            assert time.monotonic() < deadline, f"{run.state}, step {run.step}: {run.reason}"
            time.sleep(0.05)
        return run

    def wait_for_state(self, run_id: uuid.UUID, state: str, timeout_s: float = 40.0) -> Run:
        return self.wait_for(run_id, lambda run: run.state == state, timeout_s)

    def check_books(self, run_id: uuid.UUID) -> None:
        """Every step and visit once, and fates that add up to what was sampled."""
        run = self.run(run_id)
        with Session(self.engine) as session:
            steps = session.scalars(sa.select(StepMetrics.step).where(StepMetrics.run_id == run_id)).all()
            visits = session.scalar(sa.select(sa.func.count()).where(PromptVisit.run_id == run_id))
            spent = session.scalar(sa.select(sa.func.sum(LedgerEntry.rollouts)).where(LedgerEntry.run_id == run_id))
        assert sorted(steps) == list(range(1, run.step + 1))
        assert visits == 2 * run.step
        assert int(spent or 0) == run.rollouts

    def free_slots(self) -> dict[str, int]:
        """Free slots of this host, by kind."""
        with Session(self.engine) as session:
            (here,) = slots.hosts(session)
            return {kind: here.free(kind) for kind in ("cpu", "cuda")}

    def processes_of(self, run_id: uuid.UUID) -> list[psutil.Process]:
        """Everything that works for the run, found without the code under test."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(run_id) in process.environ().get("PILOT_SUPERVISED_RUN", ""):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return [p for p in found if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def trainer(self, run_id: uuid.UUID) -> psutil.Process:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for process in self.processes_of(run_id):
                if "fake_trainer.py" in " ".join(process.cmdline()):
                    return process
            time.sleep(0.05)
        raise AssertionError("no trainer started")


@pytest.fixture
def stage(engine: sa.Engine, broker_url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setenv("PILOT_TEST_PID", str(os.getpid()))
    monkeypatch.setenv("PYTHONPATH", str(APP_ROOT))
    monkeypatch.setenv("PILOT_STOP_GRACE_S", "20")
    monkeypatch.setenv("PILOT_LEASE_TTL_S", "4")
    monkeypatch.setenv("PILOT_SWEEP_S", "0.5")
    play(monkeypatch, "good")
    stage = Stage(engine, home)
    yield stage
    with Session(engine) as session:
        run_ids = list(session.scalars(sa.select(Run.id)))
    for process in stage.processes:
        if process.poll() is None:
            process.kill()
        process.wait(10)
    for run_id in run_ids:
        for left in stage.processes_of(run_id):
            with suppress(psutil.NoSuchProcess):  # it ended with its supervisor meanwhile
                left.send_signal(signal.SIGKILL)
                left.wait(10)


def play(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """Which part the scripted trainer plays from now on."""
    script = Path(__file__).parent / "fake_trainer.py"
    monkeypatch.setenv("PILOT_TRAINER", f"{sys.executable} {script} {mode}")


@pytest.fixture
def trainer_plays(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda mode: play(monkeypatch, mode)
