"""What a worker does with a message: claim what can start here, start the supervisors, be free again within seconds."""

from __future__ import annotations

import datetime as dt
import logging
import os
import subprocess
import sys
import uuid
from functools import cache

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import DatabaseUnavailable, create_engine, leases, slots
from worker import host
from worker.app import LAUNCH, app
from worker.devices import devices
from worker.metrics import LAUNCHES
from worker.settings import APP_ROOT, Settings
from worker.use import Sampler

log = logging.getLogger(__name__)

# Ours until we collect them, by run and fence; they outlive us.
supervisors: dict[tuple[uuid.UUID, int], subprocess.Popen[bytes]] = {}
_sampler = Sampler()


@cache
def engine() -> sa.Engine:
    """One engine for the worker's process."""
    return create_engine(application="pilot-worker", pool_size=2)


@app.task(name=LAUNCH)  # type: ignore[untyped-decorator]
def launch(run_id: str) -> None:
    """There is a new run in the queue: start what can start now, which need not be that one."""
    try:
        launch_waiting(Settings.from_environment())
    except DatabaseUnavailable as error:
        log.warning("run %s was not launched, the sweep tries again: %s", run_id, error)


def launch_waiting(settings: Settings) -> None:
    """Start runs in the order of the queue until nothing more fits into this host. Raises DatabaseUnavailable."""
    ttl = dt.timedelta(seconds=settings.lease_ttl_s)
    while True:
        with Session(engine()) as session, session.begin():
            slots.announce(session, host.HOST, devices(settings), ttl, _sampler.use())
            claim = leases.claim_next(session, host.HOST, host.holder(), ttl)
        if claim is None:
            return
        start_supervisor(claim.run_id, claim.fence, settings)


def start_supervisor(run_id: uuid.UUID, fence: int, settings: Settings) -> None:
    """In a session of its own, so that neither our end nor a terminal's Ctrl-C reaches it. Raises OSError."""
    run_dir = settings.run_dir(run_id)
    run_dir.mkdir(parents=True, exist_ok=True)
    with (run_dir / "supervisor.log").open("ab") as output:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "worker.supervisor", str(run_id), str(fence)],
            cwd=APP_ROOT,
            env=os.environ | host.mark(run_id, fence),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    supervisors[run_id, fence] = supervisor
    LAUNCHES.inc()
    log.info("run %s is supervised by process %s (fence %s)", run_id, supervisor.pid, fence)


def collect() -> None:
    """Take note of supervisors that have ended, so that none stays a zombie."""
    for key, supervisor in list(supervisors.items()):  # messages may add some meanwhile
        if supervisor.poll() is not None:
            del supervisors[key]
