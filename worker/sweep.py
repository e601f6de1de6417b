"""The sweep: every few seconds a worker announces its host, picks up runs whose supervisor is gone, gives back slots
whose processes are gone, starts queued runs that no message told of, and removes deleted ones.

It needs the database only: a broker that is away or lost everything costs these few seconds, nothing else.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
import uuid
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import DatabaseUnavailable, leases, runs, slots
from worker import host, tasks
from worker.ingest import EventLogBroken
from worker.metrics import SWEEPS, SWEPT_AT
from worker.outcome import Death
from worker.settings import Settings
from worker.settle import settle
from worker.tail import Tail

log = logging.getLogger(__name__)

_OTHER_HOST_PATIENCE_S: Final = 120.0
_START_PATIENCE_S: Final = 60.0  # several that start at once on a busy machine import for longer than a lease may last
_PURGES_PER_SWEEP: Final = (
    20  # transactions; the next sweep goes on, so that no run waits for a large one to be removed
)


class Sweep:
    """Remembers since when it has seen a lease expired: right after the database was away, all of them are."""

    def __init__(self, engine: sa.Engine, settings: Settings) -> None:
        self._engine, self._settings = engine, settings
        self._expired_since: dict[tuple[uuid.UUID, int], float] = {}

    def once(self) -> None:
        """Raises DatabaseUnavailable and other SQLAlchemy errors; what was done until then stays done."""
        tasks.collect()
        with Session(self._engine) as session, session.begin():
            expired = leases.expired(session)
        now = time.monotonic()
        self._expired_since = {(e.run_id, e.fence): self._expired_since.get((e.run_id, e.fence), now) for e in expired}
        for lease in expired:
            if now - self._expired_since[lease.run_id, lease.fence] >= self._patience_s(lease):
                try:
                    self._recover(lease)
                except sa.exc.OperationalError as error:  # a lock that is held: the other runs need not wait
                    log.warning("run %s could not be recovered yet: %s", lease.run_id, error)
        self._free_slots()
        tasks.launch_waiting(self._settings)
        self._purge()

    def _patience_s(self, lease: leases.Expired) -> float:
        if not host.is_here(lease.holder):
            return _OTHER_HOST_PATIENCE_S  # the sweep of that host can do better: it can see the processes
        if lease.holder == host.holder():  # from us it passes to the supervisor, when that first renews it
            return _START_PATIENCE_S if (lease.run_id, lease.fence) in tasks.supervisors else 0.0
        # A supervisor that lives renews its lease as soon as the database is back; one that hangs does not.
        return self._settings.lease_ttl_s if host.is_alive(lease.holder) else 0.0

    def _recover(self, lease: leases.Expired) -> None:
        """Shut the old supervisor out, end what it left, bring in what its trainer told, and let the run go on."""
        with Session(self._engine) as session, session.begin():
            run = leases.revoke(session, lease)
            if run is None:
                return
            attempt = run.attempt
        log.warning("run %s lost its supervisor (%s)", lease.run_id, lease.holder)
        fence = lease.fence + 1
        if host.is_here(lease.holder) and not host.kill_all_of(lease.run_id, lease.fence):
            log.error("processes of run %s cannot be killed; it stays as it is", lease.run_id)
            return
        end = Death("its supervisor was gone", chance=True)
        tail = Tail(self._engine, lease.run_id, attempt, fence, self._settings.run_dir(lease.run_id))
        if attempt:
            try:
                tail.drain()
            except EventLogBroken as error:
                end = Death(str(error), chance=False)
        with Session(self._engine) as session, session.begin():
            # A trainer that stopped although no user asked was stopped with its supervisor, by a shutdown during which
            # the database was away. One that died has to go on.
            shut_down = tail.finished is not None
            outcome = settle(session, lease.run_id, fence, tail.finished or end, shut_down=shut_down)
        log.warning("run %s is %s: %s", lease.run_id, outcome.run, outcome.reason)

    def _free_slots(self) -> None:
        """Of holders whose lease is not theirs any more: nobody else makes sure that their processes are gone."""
        with Session(self._engine) as session, session.begin():
            stale = slots.stale(session, host.HOST)
        for run_id, fence in stale:
            if not host.kill_all_of(run_id, fence):
                log.error("processes of run %s cannot be killed; its slots stay held", run_id)
                continue
            with Session(self._engine) as session, session.begin():
                slots.free(session, host.HOST, run_id, fence)

    def _purge(self) -> None:
        """Files first, and rows in small transactions: whatever is cut short is gone on with by the next sweep."""
        with Session(self._engine) as session, session.begin():
            deleted = runs.deleted(session)
        for run_id in deleted:
            try:
                shutil.rmtree(self._settings.run_dir(run_id))
            except FileNotFoundError:
                pass  # it never started, or another worker was faster
            except OSError as error:
                log.warning("the files of the deleted run %s cannot be removed: %s", run_id, error)
                continue
            for _ in range(_PURGES_PER_SWEEP):
                with Session(self._engine) as session, session.begin():
                    if runs.purge(session, run_id):
                        break


class SweepThread(threading.Thread):
    """Sweeps until it is told to end."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(name="sweep", daemon=True)
        self._settings = settings
        self._end = threading.Event()

    def run(self) -> None:
        sweep = Sweep(tasks.engine(), self._settings)
        away = False
        while True:
            try:
                sweep.once()
                SWEEPS.labels("done").inc()
                SWEPT_AT.set_to_current_time()
                away = False
            except DatabaseUnavailable as error:
                SWEEPS.labels("failed").inc()
                if not away:  # once: it may be away for hours
                    log.warning("no sweep until the database is back: %s", error)
                away = True
            except Exception:  # whatever it is, the next sweep is due
                SWEEPS.labels("failed").inc()
                log.exception("the sweep failed")
            if self._end.wait(self._settings.sweep_s):
                return

    def stop(self) -> None:
        self._end.set()
