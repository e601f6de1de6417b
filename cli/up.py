"""`pilot up`: database and broker, migrations, API, worker and dashboard, as one thing that starts and stops whole.

Order up: services, then migrations beside API and dashboard, then the worker. Order down: dashboard, API and
worker, then the supervisors of runs (their trainers save a checkpoint), then the services. The launcher owns no run:
supervisors live in sessions of their own, and it finds them by the records in `<home>/processes`. What ends by itself
in between is started again, and runs go on meanwhile.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from cli import ports, processes, services
from cli.failure import Failure
from cli.place import LOOPBACK, ROOT, dashboard_token_path, forget_addresses, record_addresses, token_path
from cli.servers.home import log_path, log_tail
from cli.services import ServicesError
from cli.signals import StopSignals
from worker import host

_READY_TIMEOUT_S = 90.0  # seconds; a cold, busy machine reads every package from disk first
_GRACE_S = 10.0  # for API, worker and dashboard
_KILL_S = 10.0  # a process that SIGKILL does not end in this time hangs in the kernel
_ENDS, _ENDS_WITHIN_S = 3, 60.0  # what ends so often in so many seconds is not started again
_RUN_GRACE_S = 120.0  # for a supervisor: its trainer finishes the step and saves a checkpoint
(_MARK,) = host.mark("", 0)  # the name of the variable by which a worker marks what works for a run
_TITLES = {"api": "API", "ui": "dashboard", "worker": "worker", "migrate": "migration"}


class StopAsked(Exception):
    """A signal came before the platform was ready."""


@dataclass
class _Child:
    command: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: Path
    logged: int  # bytes that the log held before

    def tail(self) -> str:
        return log_tail(self.log, since=self.logged, lines=12)


@dataclass
class Platform:
    """What was started. `api_url` and `ui_url` are the addresses to use; `seconds` is what the start took."""

    home: Path
    running: services.Services
    api_port: int
    ui_port: int
    stop: StopSignals
    seconds: float = 0.0
    _children: dict[str, _Child] = field(default_factory=dict)
    _ready: bool = False
    _ends: dict[str, list[float]] = field(default_factory=dict)  # by name: when it ended by itself

    @property
    def api_url(self) -> str:
        return f"http://{LOOPBACK}:{self.api_port}"

    @property
    def ui_url(self) -> str:
        return f"http://{LOOPBACK}:{self.ui_port}"

    def check(self) -> None:
        """Start again what has ended by itself.

        Raises Failure when that came before all was ready, or again and again, or when it cannot be started.
        """
        if self.stop.requested:
            return  # it is to end, and nothing is started for it any more
        # What the others need comes first, and answers before they are started.
        for name in self.running.exited():
            log = self.home / "logs" / f"{name}.log"
            self._may_start_again(name, f"The private {name} ended by itself", log, log_tail(log))
            self._start_server_again(name)
        for name, child in list(self._children.items()):
            code = child.process.poll()
            if code is not None:
                ended = f"The {_TITLES[name]} ended by itself ({_ending(code)})"
                self._may_start_again(name, ended, child.log, child.tail())
                self._start(name, *child.command)

    def _may_start_again(self, name: str, ended: str, log: Path, tail: str) -> None:
        now = time.monotonic()
        ends = self._ends[name] = [end for end in self._ends.get(name, []) if now - end < _ENDS_WITHIN_S] + [now]
        if not self._ready or len(ends) >= _ENDS:
            raise Failure(f"{ended}, so everything is stopped. Its log, {log}, ends:\n{tail}")
        _say(f"{ended}; it is started again.", error=True)

    def _start_server_again(self, name: str) -> None:
        self.stop.impatient = True
        try:
            self.running.start_again(name)
        except (ServicesError, OSError) as error:
            raise Failure(f"The private {name} cannot be started again, so everything is stopped. {error}") from None
        except KeyboardInterrupt:
            pass  # asked to stop, twice: whoever called looks at that next
        finally:
            self.stop.impatient = False

    def _start(self, name: str, *command: str) -> None:
        log = log_path(self.home, name)
        logged = log.stat().st_size if log.exists() else 0
        argv = [sys.executable, *command]
        child = processes.start(self.home, name, argv, env=self._environment(), cwd=ROOT, log=log)
        self._children[name] = _Child(command, child, log, logged)

    def _environment(self) -> dict[str, str]:
        path = os.environ.get("PYTHONPATH")
        given = {name: value for name, value in os.environ.items() if name != "PILOT_TOKEN"}  # no trainer's business
        return given | {
            "DATABASE_URL": self.running.database_url,
            "REDIS_URL": self.running.broker_url,
            "PILOT_HOME": str(self.home),
            "PILOT_API_URL": self.api_url,
            "PILOT_TOKEN_FILE": str(dashboard_token_path(self.home)),
            "PYTHONPATH": f"{ROOT}:{path}" if path else str(ROOT),
            "PYTHONUNBUFFERED": "1",
            "MALLOC_ARENA_MAX": "2",  # threads of a small server need no arena each; saves tens of MB
        }

    def start(self) -> None:
        """Start everything and wait until it answers. Raises Failure, and StopAsked."""
        began = time.monotonic()
        self._start("migrate", "-m", "cli.prepare")
        self._start("api", "-m", "api", "--host", LOOPBACK, "--port", str(self.api_port))
        self._start(
            "ui", "-m", "streamlit", "run", str(ROOT / "ui" / "app.py"),
            f"--server.port={self.ui_port}", f"--server.address={LOOPBACK}", "--server.headless=true",
            "--server.fileWatcherType=none", "--browser.gatherUsageStats=false",
        )  # fmt: skip
        self._migrated()
        self._start("worker", "-m", "worker")
        waiting: dict[str, Callable[[], str]] = {
            "api": lambda: _asked(self.api_port, "/readyz"),
            "ui": lambda: _asked(self.ui_port, "/_stcore/health"),
            "worker": self._worker_ready,
        }
        while waiting:
            self.check()
            answers = {name: ask() for name, ask in waiting.items()}
            waiting = {name: ask for name, ask in waiting.items() if answers[name]}
            if waiting and time.monotonic() - began > _READY_TIMEOUT_S:
                name = next(iter(waiting))
                child = self._children[name]
                raise Failure(
                    f"The {_TITLES[name]} is not ready after {_READY_TIMEOUT_S:.0f} s: {answers[name]}. "
                    f"Its log, {child.log}, ends:\n{child.tail()}"
                )
            if self.stop.pause(0.1 if waiting else 0.0):
                raise StopAsked
        self.seconds += time.monotonic() - began
        self._ready = True

    def _migrated(self) -> None:
        child = self._children["migrate"]
        while child.process.poll() is None:
            if self.stop.pause(0.05):
                raise StopAsked
        del self._children["migrate"]
        processes.forget(self.home, "migrate")
        if child.process.returncode:
            raise Failure(f"The database could not be migrated:\n{child.tail()}")

    def _worker_ready(self) -> str:
        child = self._children["worker"]
        with child.log.open("rb") as log:
            log.seek(child.logged)
            # Celery says so once it consumes; it takes no remote control that could be asked.
            return "" if b" ready." in log.read() else "it has not connected to the broker yet"

    def close(self) -> None:
        """Stop what was started, runs included, but not the services."""
        self._end(
            [psutil.Process(c.process.pid) for c in self._children.values() if c.process.poll() is None], _GRACE_S
        )
        for name, child in self._children.items():
            child.process.wait()
            processes.forget(self.home, name)
        self._children.clear()
        self.end_runs()

    def end_runs(self) -> None:
        """Ask the supervisors of this home to end. Call it when no worker can start another one."""
        if supervisors := _supervised(self.home):
            _say(f"Saving {_number(len(supervisors), 'run')} (Ctrl-C again: end without a checkpoint) ...")
            self._end(supervisors, _RUN_GRACE_S)
        self._end(_supervised(self.home), 0.0)  # what one that was killed had just started
        for entry in processes.recorded(self.home):
            if entry.name.startswith(services.SUPERVISOR) and processes.find(entry) is None:
                processes.forget(self.home, entry.name)

    def _end(self, roots: Sequence[psutil.Process], grace_s: float) -> None:
        """Ask each process to end; kill those, and their descendants, that have not after the grace, or when hurried.

        Supervisors are descendants of the worker and spared with it: their turn comes later.
        """
        spared = set(_supervised(self.home)) - set(roots)
        left = _with_descendants(roots, spared)
        for root in roots:
            _signal(root, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while left := [process for process in psutil.wait_procs(left, timeout=0.1)[1] if _runs(process)]:
            if time.monotonic() > deadline + _KILL_S:
                _say(f"These processes cannot be ended: {', '.join(str(p.pid) for p in left)}", error=True)
                return
            if self.stop.hurried or time.monotonic() > deadline:
                # Parents first: one that still lives could start another child.
                left = _with_descendants(sorted(left, key=lambda process: process.create_time()), spared)
                for process in left:
                    _signal(process, signal.SIGKILL)


@contextmanager
def platform(home: Path, api_port: int, ui_port: int, stop: StopSignals, *, demo: bool = False) -> Iterator[Platform]:
    """The platform, ready; stopped at the end, whatever happens. demo: whether `--demo` was given, for messages.

    Raises Failure when it cannot be started, and StopAsked when a signal came first; nothing runs then.
    """
    began = time.monotonic()
    wanted = {"api": api_port, "ui": ui_port}
    # Before anything is touched. What an earlier launcher recorded is either refused or cleaned next.
    ports.check(wanted, demo=demo, ours=[entry.pid for entry in processes.recorded(home) if processes.find(entry)])
    stop.impatient = True
    try:
        running = services.start(home)
    except (ServicesError, KeyboardInterrupt) as error:
        if stop.requested:
            raise StopAsked from None
        raise Failure(str(error)) from None
    finally:
        stop.impatient = False
    with running:
        if running.cleaned:
            _say(f"Ended what a launcher that was killed left running: {', '.join(running.cleaned)}.")
        if stop.requested:
            raise StopAsked
        ports.check(wanted, demo=demo)
        started = Platform(home, running, api_port, ui_port, stop, seconds=time.monotonic() - began)
        try:
            started.end_runs()  # those of a killed launcher, now that they have a database to say so
            record_addresses(running.home, api=started.api_url, ui=started.ui_url)
            started.start()
            yield started
        finally:
            started.close()
            forget_addresses(running.home)


def up(home: Path, api_port: int, ui_port: int, *, demo: bool, leave: bool) -> int:
    """Run the platform until a signal comes (or, with `leave`, until the demo is over); the exit status."""
    with StopSignals() as stop:
        _say("Starting the platform ...")
        code = 0
        try:
            with platform(home, api_port, ui_port, stop, demo=demo) as started:
                _say(_addresses(started, stays=not leave))
                try:
                    if demo:
                        from cli.demo import run_demo

                        code = run_demo(started)
                    if not leave:
                        if demo and not stop.requested:
                            _say(f"\nThe dashboard stays up at {started.ui_url} until Ctrl-C.")
                        while not stop.pause(0.5):
                            started.check()
                except Failure as failure:
                    _say(str(failure), error=True)
                    code = failure.code
                except OSError as error:
                    if error.errno not in (errno.EPIPE, errno.EIO):
                        raise
                    code = stop.exit_code if stop.requested else 1  # the terminal is gone, and with it the demo
                finally:
                    _say("Stopping ...")
        except StopAsked:
            code = stop.exit_code
        _say("Everything that was started is stopped.")
        return code


def _addresses(started: Platform, *, stays: bool) -> str:
    lines = [
        f"Ready after {started.seconds:.1f} s.",
        f"  Dashboard   {started.ui_url}",
        f"  API         {started.api_url}/docs",
        f"  Token       {token_path(started.home)}",
        f"  Data, logs  {started.home}",
    ]
    if stays:
        lines.append("Ctrl-C stops everything.")
    return "\n".join(lines)


def _asked(port: int, path: str) -> str:
    """ "" when a GET answers 200, else what is wrong."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException) as error:
        return str(error)
    finally:
        connection.close()
    return "" if response.status == 200 else _problem(response.status, body)


def _problem(status: int, body: bytes) -> str:
    try:
        return str(json.loads(body)["checks"])
    except (ValueError, KeyError, TypeError):
        return f"it answers {status}"


def _supervised(home: Path) -> list[psutil.Process]:
    """The supervisors of this home's runs, and whatever of a run has lost its own.

    Found by the mark that a worker gives them, as a supervisor takes a second to record itself.
    """
    marked: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        try:
            environ = process.environ()
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's: then not of this home
        if _MARK in environ and environ.get("PILOT_HOME") == str(home):
            marked[process.pid] = process
    return [process for process in marked.values() if _parent(process) not in marked]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # in a container, perhaps nobody collects the dead
    except psutil.NoSuchProcess:
        return False


def _parent(process: psutil.Process) -> int:
    try:
        return process.ppid()
    except psutil.NoSuchProcess:
        return 0


def _with_descendants(roots: Sequence[psutil.Process], spared: Collection[psutil.Process]) -> list[psutil.Process]:
    """The processes and their descendants, without `spared` ones and theirs."""
    found: list[psutil.Process] = []
    for root in roots:
        if root in spared or root in found:
            continue
        found.append(root)
        try:
            children = root.children()
        except psutil.NoSuchProcess:
            continue
        found += [child for child in _with_descendants(children, spared) if child not in found]
    return found


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it ended by itself, which is what was wanted


def _ending(code: int) -> str:
    return f"exit status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _number(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def _say(text: str, *, error: bool = False) -> None:
    try:
        print(text, file=sys.stderr if error else sys.stdout, flush=True)
    except OSError:
        # The terminal is gone (SIGHUP). What was started still has to be stopped, and nothing is said any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if error else sys.stdout).fileno())
