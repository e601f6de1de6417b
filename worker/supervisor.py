"""`python -m worker.supervisor RUN_ID FENCE`: the process that owns one run, or one evaluation that was asked for.

It starts the trainer, or what evaluates, brings its events into the database, renews the run's lease, passes a stop on,
and writes down how it ended. It ends only when the trainer's whole process tree has. The database may be away
meanwhile: training goes on and everything is caught up with later. A supervisor that lost its lease kills its trainer
and writes nothing.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import DatabaseUnavailable, create_engine, leases, marks, slots
from db import ingest as tables
from pipeline import rundir
from pipeline.config import ConfigProblems, RunConfig, parse_config
from pipeline.events import EXIT_SILENT, AttemptFinished
from worker import devices, host
from worker.budget import passed
from worker.ingest import EventLogBroken
from worker.logs import Log, Pump
from worker.outcome import Death, Outcome
from worker.settings import APP_ROOT, Settings
from worker.settle import settle
from worker.tail import Tail

log = logging.getLogger("supervisor")
T = TypeVar("T")

POLL_S: Final = 0.2
_BACK_OFF_S: Final = (0.5, 1.0, 2.0, 5.0)
_LAST_WORDS_S: Final = 30.0  # a trainer that has told its end gets so long to exit
_SHUT_DOWN_PATIENCE_S: Final = 10.0  # for a database that is away while the platform shuts down
_LAST_OUTPUT_S: Final = 10.0
OWNER: Final = "owner.json"  # in the run directory: the newest supervisor that began there

# Errors that pass: the database is away, restarting, or cancelled a statement that took too long.
PASSING = (DatabaseUnavailable, sa.exc.OperationalError)


class Keeper(threading.Thread):
    """Renews the lease on a connection of its own, and hears of a stop and of marks of prompts on the way."""

    def __init__(self, run_id: uuid.UUID, fence: int, settings: Settings) -> None:
        super().__init__(name="lease", daemon=True)
        self._run_id, self._fence = run_id, fence
        self._ttl = dt.timedelta(seconds=settings.lease_ttl_s)
        self._every_s = min(1.0, settings.lease_ttl_s / 4)
        self._engine = create_engine(application="pilot-lease", pool_size=1, statement_timeout_s=10.0)
        self._end = threading.Event()
        self._away = False
        self.lost = threading.Event()
        self.stop_asked = threading.Event()
        self.marks: list[marks.Wish] = []  # wished for and not applied yet
        self.trainer_began: float | None = None  # on the monotonic clock
        self.trainer_ended: float | None = None

    @property
    def seconds(self) -> float:
        """How long the trainer has run."""
        if self.trainer_began is None:
            return 0.0
        return (self.trainer_ended or time.monotonic()) - self.trainer_began

    def renew(self) -> None:
        """Once. Raises LeaseLost, and what a database that is away raises."""
        with Session(self._engine) as session, session.begin():
            holder = host.holder()
            if leases.renew(session, self._run_id, self._fence, self._ttl, holder=holder, seconds=self.seconds):
                self.stop_asked.set()
            self.marks = marks.pending(session, self._run_id)

    def run(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                self.renew()
                if self._away:
                    log.info("the lease is renewed again")
                self._away = False
            except leases.LeaseLost as error:
                log.error("%s", error)
                self.lost.set()
                return
            except PASSING as error:
                if not self._away:  # once: it may be away for hours
                    log.warning("the lease cannot be renewed: %s", error)
                self._away = True
            except Exception:
                log.exception("the lease could not be renewed")

    def close(self) -> None:
        self._end.set()
        self.join(timeout=15.0)
        self._engine.dispose()


class Begun(NamedTuple):
    """What an attempt starts from. seconds: what earlier ones took. evaluates: the run whose checkpoint of `step` it
    measures; None: it trains.
    """

    attempt: int
    config: RunConfig
    seconds: float
    devices: list[slots.Device]
    evaluates: uuid.UUID | None
    step: int


class Supervisor:
    """One run, from a claimed lease to a settled end. `main` gives the order of things."""

    def __init__(self, run_id: uuid.UUID, fence: int, settings: Settings) -> None:
        self.run_id, self.fence, self.settings = run_id, fence, settings
        self.run_dir = settings.run_dir(run_id)
        # Were we to hang within a transaction, our locks would be gone before the lease is.
        patience_s = settings.lease_ttl_s / 2
        self.engine = create_engine(application="pilot-supervisor", pool_size=1, idle_in_transaction_s=patience_s)
        self.keeper = Keeper(run_id, fence, settings)
        self.shut_down = threading.Event()
        self.trainer: subprocess.Popen[bytes] | None = None
        self.output: Pump | None = None
        self.who, self.again = "the trainer", "resume"  # for people; an evaluation has words of its own
        self.killed = ""  # why we killed the trainer, if we did
        self.passed: str | None = None  # the bound of the budget for which we ended it, if we did
        self.gone = True  # whether nothing is left of the run's processes
        self.handed_on: list[marks.Wish] | None = None  # what the trainer's file of marks holds
        self._failures = 0
        self._retry_at = self._hand_on_at = 0.0

    def run(self) -> None:
        """Raises LeaseLost when the run is somebody else's now; its processes are gone then, and so are ours."""
        try:
            self._persist(self.keeper.renew)
            self.keeper.start()
            try:
                end = self._attempt()
            except (EventLogBroken, ConfigProblems) as error:
                end = AttemptFinished(outcome="failed", reason=str(error), step=0)
            except OSError as error:
                words = f"the trainer could not be started in {self.run_dir}: {error}"
                end = Death(words, chance=False, hopeless=True)
            outcome = self._persist(lambda: self._settle(end))
            log.info("the run is %s: %s", outcome.run, outcome.reason)
        finally:
            # Whatever went wrong: nothing of this run may outlive its supervisor.
            self._kill_everything()
            self.keeper.close()
            self.engine.dispose()

    def _attempt(self) -> AttemptFinished | Death:
        """Run the trainer once. Returns how it ended, its processes gone and its events ingested.

        Raises LeaseLost, EventLogBroken, ConfigProblems, and OSError when the run directory cannot be used.
        """
        # An older supervisor that does not know yet that it lost the lease, and its trainer.
        if not host.kill_all_of(self.run_id, self.fence - 1):
            log.error("some processes of an earlier attempt could not be killed")
        begun = self._persist(self._begin)
        self._hand_on_marks()
        self._start_trainer(begun)
        tail = Tail(self.engine, self.run_id, begun.attempt, self.fence, self.run_dir)
        try:
            self._watch(tail, begun)
        finally:
            self._kill_everything()  # and what it forked off and left behind
        self._persist(tail.drain)
        return tail.finished or self._death(early=tail.empty)

    def _begin(self) -> Begun:
        """Bring in what the attempt before left in its log, then open a new one."""
        with Session(self.engine) as session, session.begin():
            run = leases.owned(session, self.run_id, self.fence)
            earlier, config = run.attempt, run.config
            held = slots.held(session, host.HOST, self.run_id, self.fence)
        if earlier:
            Tail(self.engine, self.run_id, earlier, self.fence, self.run_dir).drain()
        write_atomically(self.run_dir / OWNER, {"fence": self.fence, "holder": host.holder()})
        write_atomically(self.run_dir / "config.json", config)
        with Session(self.engine) as session, session.begin():
            run = leases.owned(session, self.run_id, self.fence)
            seconds = tables.seconds_before(session, run)
            attempt = tables.begin_attempt(session, run, self.fence, host.HOST)
            evaluates, step = run.evaluates, run.step
        return Begun(attempt, parse_config(config), seconds, held, evaluates, step)

    def _start_trainer(self, begun: Begun) -> None:
        given = (str(self.run_dir), "--attempt", str(begun.attempt))
        if begun.evaluates is None:
            trainer = self.settings.trainer or (sys.executable, "-m", "pipeline", "train")
            command = [*trainer, *given, "--seconds-before", f"{begun.seconds:.1f}"]
        else:
            self.who, self.again = "the evaluation", "evaluate again"
            of = ("--of", str(self.settings.run_dir(begun.evaluates)), "--step", str(begun.step))
            command = [sys.executable, "-m", "pipeline", "evaluate", *given, *of]
        output = Log(rundir.log_folder(self.run_dir, begun.attempt))
        parent = os.getpid()
        self.trainer = subprocess.Popen(
            command,
            cwd=APP_ROOT,
            # The trainer knows no database, and no credentials of it.
            env={k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")}
            | devices.environment(begun.devices)
            | {"PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # We call it from the main thread, which lives as long as we do.
            preexec_fn=lambda: host.die_with(parent),
        )
        self.keeper.trainer_began = time.monotonic()
        assert self.trainer.stdout is not None
        self.output = Pump(self.trainer.stdout.fileno(), output)
        self.output.start()

    def _watch(self, tail: Tail, begun: Begun) -> None:
        """Until the trainer has ended by itself, or its time to do so is over."""
        trainer = self.trainer
        assert trainer is not None
        kill_at: float | None = None
        while trainer.poll() is None:
            if self.keeper.lost.is_set() or self._superseded():
                raise leases.LeaseLost(self.run_id, self.fence)
            if kill_at is None and begun.evaluates is None:  # the budget is of training
                self.passed = passed(begun.config, tail.newest, begun.seconds + self.keeper.seconds)
            if kill_at is None and (self.keeper.stop_asked.is_set() or self.shut_down.is_set() or self.passed):
                log.info("asking the trainer to stop%s", f": {self.passed}" if self.passed else "")
                trainer.send_signal(signal.SIGTERM)
                kill_at = time.monotonic() + self.settings.stop_grace_s
            if kill_at is None and tail.finished is not None:
                kill_at = time.monotonic() + _LAST_WORDS_S
            if kill_at is not None and time.monotonic() > kill_at:
                log.warning("killing the trainer")
                self.killed = f"{self.who} did not end within {self.settings.stop_grace_s:g} s and was killed"
                return
            self._hand_on_marks()
            if self._try_advance(tail) == 0:
                self._pause(trainer)
            host.reap(keep=trainer.pid)

    def _hand_on_marks(self) -> None:
        """Into the trainer's file, when they are others than before. Where that fails they wait; training goes on."""
        wished = self.keeper.marks
        if wished == self.handed_on or time.monotonic() < self._hand_on_at:
            return
        try:
            write_atomically(self.run_dir / rundir.MARKS, {"marks": wished})
        except OSError as error:
            log.warning("marks of prompts wait: %s", error)
            self._hand_on_at = time.monotonic() + _BACK_OFF_S[-1]
            return
        self.handed_on = wished

    def _superseded(self) -> bool:
        """Whether a later supervisor has begun in our run directory, on whatever host: the database may be away."""
        try:
            return int(json.loads((self.run_dir / OWNER).read_text())["fence"]) > self.fence
        except (OSError, ValueError, KeyError, TypeError):
            return False  # the storage hangs or was tampered with: that tells nothing of the lease

    def _try_advance(self, tail: Tail) -> int:
        """Like tail.advance, but 0 while the database is away, which is asked again less and less often."""
        if time.monotonic() < self._retry_at:
            return 0
        try:
            n = tail.advance()
        except PASSING as error:
            wait = _BACK_OFF_S[min(self._failures, len(_BACK_OFF_S) - 1)]
            if not self._failures:  # once: it may be away for hours
                log.warning("events wait, training goes on: %s", error)
            self._failures, self._retry_at = self._failures + 1, time.monotonic() + wait
            return 0
        if self._failures:
            log.info("events are brought in again")
        self._failures = 0
        return n

    def _pause(self, trainer: subprocess.Popen[bytes]) -> None:
        try:
            trainer.wait(POLL_S)
        except subprocess.TimeoutExpired:
            pass

    def _kill_everything(self) -> None:
        if self.trainer is not None:  # first and by its own Popen, which keeps the exit status
            self.trainer.kill()
            self.trainer.wait()
            self.keeper.trainer_ended = self.keeper.trainer_ended or time.monotonic()
        self.gone = host.kill_all_of(self.run_id, self.fence)
        if not self.gone:
            log.error("some processes of the run could not be killed")
        if self.output is not None:
            self.output.join(_LAST_OUTPUT_S)  # with them gone, the pipe ends

    def _death(self, *, early: bool) -> Death:
        assert self.trainer is not None and self.output is not None
        code, details = self.trainer.returncode, self.output.last_lines()
        if self.killed:
            return Death(self.killed, chance=True, details=details)
        if code == EXIT_SILENT:
            free = shutil.disk_usage(self.run_dir).free / 2**20
            words = (
                f"{self.who} could not write into {self.run_dir} ({free:.0f} MiB are free there): make room or repair "
                f"the storage, then {self.again}"
            )
            return Death(words, chance=False, details=details, hopeless=True)
        if code < 0:
            words = f"{self.who} was ended by {signal_name(-code)}"
            return Death(words, chance=True, details=details, early=early and -code == signal.SIGTERM)
        return Death(f"{self.who} ended with status {code} without saying why", chance=False, details=details)

    def _settle(self, end: AttemptFinished | Death) -> Outcome:
        code = self.trainer.returncode if self.trainer is not None else None
        shut_down = self.shut_down.is_set()
        with Session(self.engine) as session, session.begin():
            return settle(
                session,
                self.run_id,
                self.fence,
                end,
                exit_code=code,
                shut_down=shut_down,
                gone=self.gone,
                seconds=self.keeper.seconds,
                passed=self.passed,
            )

    def _persist(self, action: Callable[[], T]) -> T:
        """Do it, again and again while the database is away; not for long once the platform shuts down."""
        failures, gave_up_at = 0, 0.0
        while True:
            if self.keeper.lost.is_set():
                raise leases.LeaseLost(self.run_id, self.fence)
            try:
                return action()
            except PASSING as error:
                if self.shut_down.is_set():
                    gave_up_at = gave_up_at or time.monotonic() + _SHUT_DOWN_PATIENCE_S
                    if time.monotonic() > gave_up_at:
                        raise
                if not failures:
                    log.warning("waiting for the database: %s", error)
                time.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
                failures += 1


def write_atomically(path: Path, content: Mapping[str, Any]) -> None:
    """Raises OSError."""
    draft = path.with_suffix(".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(arguments: list[str]) -> int:
    """0: settled; 3: the lease was lost, or the database stayed away during a shutdown (the sweep goes on)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    run_id, fence = uuid.UUID(arguments[0]), int(arguments[1])
    settings = Settings.from_environment()
    os.environ.update(host.mark(run_id, fence))
    host.adopt_orphans()
    supervisor = Supervisor(run_id, fence, settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.shut_down.set())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    supervisor.run_dir.mkdir(parents=True, exist_ok=True)
    entry: Path | None = None
    try:
        entry = host.record(settings.home, f"supervisor-{run_id}", os.getpid())
    except OSError as error:  # a full disk: what it means for the run is told where the run needs it
        log.error("the supervisor is not on record: %s", error)
    try:
        supervisor.run()
    except leases.LeaseLost as error:
        log.error("%s", error)
        return 3
    except PASSING as error:
        log.error("gave up on the database: %s", error)
        return 3
    finally:
        if entry is not None:
            entry.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
