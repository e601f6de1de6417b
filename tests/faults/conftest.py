"""A platform of its own for the fault tests: every part is a real process that can be killed and started again."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest
import redis
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.orm import Session

import db
from cli import processes
from cli.servers import broker, postgres
from cli.servers.account import server_account
from db import leases, slots
from db.models import Base, Lease, Run
from tests.faults import books
from tests.worker.conftest import Stage, play
from worker.settings import APP_ROOT

PATIENCE_S = 150.0


@dataclass
class Servers:
    """Postgres and the broker of all fault tests. Killed ones come back on the same address, with the same data."""

    home: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    def start(self, name: str) -> None:
        module = {"postgres": postgres, "broker": broker}[name]
        folder = self.home / name
        folder.mkdir(mode=0o711, exist_ok=True)
        url, self.running[name] = module.start(self.home, server_account(folder / "data", module.program()))
        assert self.urls.setdefault(name, url) == url, "it came back elsewhere: its port was taken meanwhile"

    def kill(self, name: str) -> None:
        self.running[name].kill()
        self.running[name].wait(10)

    def stop(self) -> None:
        for name, server in self.running.items():
            processes.stop(self.home, name, server, grace_s=20)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    home = Path(tempfile.mkdtemp(prefix="pilot-faults-"))
    home.chmod(0o711)
    servers = Servers(home)
    try:
        for name in ("postgres", "broker"):
            servers.start(name)
        db.upgrade(servers.urls["postgres"])
        yield servers
    finally:
        servers.stop()
        shutil.rmtree(home, ignore_errors=True)


class Platform(Stage):
    """The services, a worker, an API, and the runs on them. `engine` reads the database for the test."""

    def __init__(self, servers: Servers, home: Path) -> None:
        super().__init__(db.create_engine(servers.urls["postgres"]), home)
        self.servers = servers
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self.api_url = ""

    def start_worker(self) -> None:
        self.parts["worker"] = self.start("-m", "worker")

    def start_api(self) -> None:
        if not self.api_url:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.api_url = f"http://127.0.0.1:{free.getsockname()[1]}"
        port = self.api_url.rpartition(":")[2]
        self.parts["api"] = self.start("-m", "api", "--host", "127.0.0.1", "--port", port)

    def wait_for_api(self) -> None:
        def answers() -> bool:
            try:
                return httpx.get(f"{self.api_url}/healthz", timeout=5).status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, "the API answers")

    # --- faults ---------------------------------------------------------------------------------------------------

    def kill_part(self, name: str) -> None:
        self.parts[name].kill()
        self.parts[name].wait(10)

    def trainers(self) -> list[psutil.Process]:
        return [p for p in self.marked() if "worker.supervisor" not in p.cmdline()]

    def supervisors(self) -> list[psutil.Process]:
        return [p for p in self.marked() if "worker.supervisor" in p.cmdline()]

    def marked(self) -> list[psutil.Process]:
        """Every process that works for a run of this test, found without the code under test."""
        found = []
        for process in psutil.process_iter():
            try:
                run_id = process.environ().get("PILOT_SUPERVISED_RUN", "").partition(":")[0]
                mine = run_id and process.environ().get("PILOT_HOME") == str(self.home)
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    process.cmdline()
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    def kill_random(self, found: list[psutil.Process], rng: random.Random) -> bool:
        """One of these. Returns whether there was any."""
        if not found:
            return False
        try:
            rng.choice(found).kill()
        except psutil.NoSuchProcess:
            return False  # it ended by itself
        return True

    def kill_everything(self) -> None:
        """As when the machine loses power, but for what the kernel has not written yet."""
        victims = [*self.parts.values(), *self.servers.running.values()]
        for process in [*self.marked(), *[psutil.Process(p.pid) for p in victims if p.poll() is None]]:
            try:
                process.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        for victim in victims:
            victim.wait(10)

    # --- invariants -----------------------------------------------------------------------------------------------

    def wait_for_end(self, run_ids: list[uuid.UUID], state: str = "succeeded", timeout_s: float = PATIENCE_S) -> None:
        for run_id in run_ids:
            self.wait_for(run_id, lambda run: run.state in ("succeeded", "failed", "stopped"), timeout_s)
            run = self.run(run_id)
            assert run.state == state, f"{run.state} after {run.attempt} attempts: {run.reason}"

    def check(self, run_ids: list[uuid.UUID]) -> None:
        """Nothing lost, nothing doubled, nothing left behind."""
        wait_until(lambda: not self.marked(), "no process of a run is left", 30)
        with Session(self.engine) as session:
            for run_id in run_ids:
                books.check(session, run_id, self.settings.run_dir(run_id))
            held = [s for h in slots.hosts(session) for s in h.slots if s.run_id is not None]
            alive = session.scalars(sa.select(Lease.run_id).where(Lease.expires_at > sa.func.clock_timestamp())).all()
        assert not held and not alive

    def fences(self) -> list[int]:
        """Of all runs: 2 after one claim and its release."""
        with Session(self.engine) as session:
            return list(session.scalars(sa.select(Lease.fence)))

    def lose_lease(self, run_id: uuid.UUID) -> int:
        """Give a run to another supervisor although the first lives, which no sweep would do. Returns the new fence."""
        with Session(self.engine) as session, session.begin():
            past = sa.func.clock_timestamp() - dt.timedelta(hours=1)
            session.execute(sa.update(Lease).where(Lease.run_id == run_id).values(expires_at=past))
            session.execute(sa.update(Run).where(Run.id == run_id).values(state="queued"))
            fence = leases.claim(session, run_id, "test:1:1:1", dt.timedelta(seconds=self.settings.lease_ttl_s))
        assert fence is not None
        return fence


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def platform(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """Postgres and the broker run; the test starts a worker and an API if it wants them."""
    home = tmp_path / "home"
    home.mkdir()
    for name, value in {
        "DATABASE_URL": servers.urls["postgres"],
        "REDIS_URL": servers.urls["broker"],
        "PILOT_HOME": str(home),
        "PILOT_TEST_PID": str(os.getpid()),
        "PYTHONPATH": str(APP_ROOT),
        "PILOT_STOP_GRACE_S": "20",
        "PILOT_LEASE_TTL_S": "4",
        "PILOT_SWEEP_S": "0.5",
        "PILOT_SLOTS": "5",
        "PILOT_GPUS": "none",
        "OMP_NUM_THREADS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    play(monkeypatch, "good")
    platform = Platform(servers, home)
    yield platform
    for part in platform.processes:
        if part.poll() is None:
            part.kill()
        part.wait(10)
    for left in platform.marked():
        with suppress(psutil.NoSuchProcess):
            left.kill()
            left.wait(10)
    for name, server in servers.running.items():  # a test that failed may have left one dead
        if server.poll() is not None:
            servers.start(name)
    with redis.Redis.from_url(servers.urls["broker"]) as client:
        client.flushall()
    platform.engine.dispose()
    tables = sql.SQL(", ").join(sql.Identifier(table.name) for table in Base.metadata.sorted_tables)
    with psycopg.connect(servers.urls["postgres"], autocommit=True) as connection:
        connection.execute("SET lock_timeout = '20s'")
        connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(tables))
