"""With engine.ray_address: the trainer as a job of a Ray cluster, followed from the worker's machine.

The process that the supervisor starts is then a follower. It submits the trainer through Ray's job server, copies its
log, passes a stop on, and ends as it ended, so that the supervisor sees one trainer. It speaks Ray's REST API and needs
no Ray itself, so that any worker can follow. What the trainer writes goes into the run directory, on storage that both
machines share; there, too, are its output (job.log) and the follower's word to the job (`job.py`):

    go    said anew all the time. A job whose follower fell silent kills its trainer.
    stop  the trainer is to finish its step, save and end, as on SIGTERM.

Ray's own stop is the forced one: SIGTERM to the job's processes, and SIGKILL three seconds later. Ray then ends the
job's actors; what they had started themselves, vLLM's engines above all, `sweep.py` ends on every node by the mark in
their environment. One run at a time on a cluster: TransferQueue, verl's store, has one name for all of them.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import urlsplit

import httpx

from pipeline.config import ROOT, ConfigProblems, pilot_home
from pipeline.engines.verl.job import MARK, Word, say
from pipeline.events import AttemptFinished, EventLog, events_path

ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
RUN = "pilot_run"  # metadata of our jobs
POLL_S = 1.0
PATIENCE_S = 120.0  # a job goes on without its follower for so long; storage that hangs is no reason to kill a run
AWAY_S = 300.0  # the follower goes on without the job server for so long
FORCED_S = 20.0  # what a forced stop needs: Ray's three seconds, the end of the actors, the sweep


def follow(address: str, run_dir: Path, attempt: int, trainer: Sequence[str], patience_s: float = PATIENCE_S) -> int:
    """Run the trainer's command as a job, from its submission to its end. Returns the trainer's exit status.

    Does not return when the trainer was ended by a signal, or with its cluster: the follower ends by SIGKILL then.
    """
    grace_s = float(os.environ.get("PILOT_STOP_GRACE_S") or 60.0)
    follower = Follower(address, run_dir, attempt, grace_s, patience_s)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, follower.stop)
    try:
        follower.submit(trainer)
    except (ConfigProblems, OSError, RefusedByRay) as error:
        print(error, flush=True)
        return fail(run_dir, attempt, str(error))
    end = follower.watch()
    if end < 0:
        if end != -signal.SIGKILL:
            signal.signal(-end, signal.SIG_DFL)
        os.kill(os.getpid(), -end)
    if end and not events_path(run_dir, attempt).exists():
        return fail(
            run_dir, attempt, f"the Ray job {follower.job} ended before training began: {follower.last_words()}"
        )
    return end


def fail(run_dir: Path, attempt: int, reason: str) -> int:
    """The event log of an attempt whose trainer could not write one."""
    log = EventLog(events_path(run_dir, attempt))
    log.append(AttemptFinished(outcome="failed", reason=reason, step=0))
    log.close()
    return 1


class RefusedByRay(Exception):
    """The job server, or what answers in its place, says no."""


class JobServer:
    """Ray's job server: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._http = httpx.Client(
            base_url=self.address,
            headers=authorization(),
            timeout=60.0,
            trust_env=urlsplit(address).hostname not in ("127.0.0.1", "localhost", "::1"),  # no proxy to this machine
        )

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        """Raises RefusedByRay, and ConnectionError when nobody answers."""
        try:
            answer = self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from None
        if answer.status_code in (401, 403):
            raise RefusedByRay(
                f"the cluster asks for another token ({answer.text.strip()}); give the worker the cluster's by "
                "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
            )
        try:
            if answer.is_success:
                return answer.json()
        except ValueError:
            pass
        lines = answer.text.strip().splitlines() or [""]  # often a traceback, with the reason at its end
        raise RefusedByRay(f"HTTP {answer.status_code}: {lines[-1][:500]}")

    def jobs(self) -> list[dict[str, Any]]:
        return list(self._ask("GET", "/api/jobs/"))

    def job(self, name: str) -> dict[str, Any]:
        return dict(self._ask("GET", f"/api/jobs/{name}"))

    def submit(self, name: str, command: Sequence[str], **more: Any) -> None:
        """Run the command in the application's folder, which is at the same place on every node, and so is Python."""
        entrypoint = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(command)}"
        self._ask("POST", "/api/jobs/", {"submission_id": name, "entrypoint": entrypoint, **more})

    def stop(self, name: str) -> None:
        self._ask("POST", f"/api/jobs/{name}/stop")

    def log(self, name: str) -> str:
        return str(self._ask("GET", f"/api/jobs/{name}/logs")["logs"])

    def wait(self, name: str, seconds: float) -> None:
        """Until the job has ended. Raises RefusedByRay when it has not by then."""
        deadline = time.monotonic() + seconds
        while self.job(name)["status"] not in ENDED:
            if time.monotonic() > deadline:
                raise RefusedByRay(f"the Ray job {name} does not end; end it, then resume")
            time.sleep(POLL_S / 4)

    def sweep(self, name: str) -> None:
        """Kill what processes of an ended job are left on any node, by their mark. Tells what became of it."""
        sweep = f"{name}-sweep-{time.time_ns():x}"
        try:
            self.submit(sweep, [sys.executable, "-m", "pipeline.engines.verl.sweep", name])
            self.wait(sweep, FORCED_S)
            print(self.log(sweep).strip().split("\n")[-1], flush=True)
        except (ConnectionError, RefusedByRay) as error:  # the run's own end is told all the same
            print(f"Whether processes of {name} are left could not be found out: {error}", flush=True)


def authorization() -> dict[str, str]:
    """Ray's clusters ask for a token by default; it is where Ray's own clients look for it."""
    token = os.environ.get("RAY_AUTH_TOKEN", "")
    if not token:
        path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
        token = path.read_text(encoding="utf-8") if path.is_file() else ""
    return {"authorization": f"Bearer {token.strip()}"} if token.strip() else {}


class Follower:
    """One job. `job` is its submission id, the same whoever asks; `message` is what Ray said of its end."""

    def __init__(self, address: str, run_dir: Path, attempt: int, grace_s: float, patience_s: float) -> None:
        self.server, self.grace_s, self.patience_s = JobServer(address), grace_s, patience_s
        path = run_dir.resolve()
        name = re.sub(r"[^\w-]", "-", path.name)
        self.run = f"pilot-{name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        self.job = f"{self.run}-{attempt}"
        folder = path / "attempts" / str(attempt)
        self.file, self.log, self.copied = folder / "follower.json", folder / "job.log", 0
        self.word: Word = "go"
        self.message = ""
        self.stop_at: float | None = None  # when it was asked for, on the monotonic clock

    def stop(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        self.word = "stop"
        self.stop_at = self.stop_at or time.monotonic()

    def submit(self, trainer: Sequence[str]) -> None:
        """Start the job, once what earlier attempts left is gone. Raises ConfigProblems, OSError, RefusedByRay."""
        address = self.server.address
        try:
            others = self.server.jobs()
        except (ConnectionError, RefusedByRay) as error:
            message = f"no Ray job server that takes jobs answers there: {error}"
            raise ConfigProblems.one("engine.ray_address", address, message) from None
        for other in others:
            run, name, ended = (other["metadata"] or {}).get(RUN), other["submission_id"], other["status"] in ENDED
            if name == self.job:
                raise RefusedByRay(f"the Ray cluster at {address} has had a job {name} already; resume the run")
            if run == self.run and not ended:
                print(f"Ending {name}, which an earlier attempt left", flush=True)
                self.server.stop(name)
                self.server.wait(name, FORCED_S)
                self.server.sweep(name)
            elif run is not None and run != self.run and not ended:
                message = f"the Ray cluster is busy with another run ({name}); verl takes one at a time"
                raise ConfigProblems.one("engine.ray_address", address, message)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        say(self.file, self.word)
        print(f"Submitting {self.job} to the Ray cluster at {address}", flush=True)
        inside = [sys.executable, "-m", "pipeline.engines.verl.job", str(self.file), "--log", str(self.log)]
        self.server.submit(
            self.job,
            [*inside, "--patience", f"{self.patience_s}", "--", *trainer],
            metadata={RUN: self.run},
            runtime_env={"env_vars": {MARK: self.job, "PILOT_HOME": str(pilot_home())}},  # where uploaded prompts are
        )

    def watch(self) -> int:
        """Until the job has ended and nothing is left of it. Returns its exit status; minus the number of a signal."""
        seen_at, forced = time.monotonic(), 0
        while True:
            try:
                say(self.file, self.word)
                self.copy_log()
            except OSError as error:
                print(f"The run directory is away: {error}", flush=True)
            try:
                info = self.server.job(self.job)
                seen_at = time.monotonic()
                if info["status"] in ENDED:
                    break
                if not forced and (forced := self.to_force(info["status"] == "PENDING")):
                    self.server.stop(self.job)
            except (ConnectionError, RefusedByRay) as error:
                print(f"The job server at {self.server.address} does not answer: {error}", flush=True)
                if time.monotonic() > seen_at + AWAY_S:
                    return -signal.SIGKILL
            time.sleep(POLL_S)
        self.copy_log()
        self.message = str(info["message"] or "").strip()
        print(f"{self.job}: {info['status']}", flush=True)
        code: int | None = info["driver_exit_code"]
        if code != 0:
            self.server.sweep(self.job)
        if forced or code is None:
            return -(forced or signal.SIGKILL)
        return code if code <= 128 else 128 - code

    def last_words(self) -> str:
        """The end of the trainer's output; where there is none, what Ray said."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 2000))
                text = file.read().decode(errors="replace").strip()
        except FileNotFoundError:
            text = ""
        return text or self.message

    def to_force(self, pending: bool) -> int:
        """The signal that ends the job now, as far as the supervisor is concerned; 0 while it may go on."""
        if self.stop_at is None:
            return 0
        if pending:  # nobody is there to hear of the stop
            return signal.SIGTERM
        if time.monotonic() < self.stop_at + max(self.grace_s - FORCED_S, self.grace_s / 2):
            return 0
        print("The trainer did not end in time and is killed", flush=True)
        return signal.SIGKILL

    def copy_log(self) -> None:
        """What is new in the job's output, to ours."""
        try:
            with self.log.open("rb") as file:
                file.seek(self.copied)
                while data := file.read(1 << 20):
                    self.copied += len(data)
                    sys.stdout.buffer.write(data)
        except FileNotFoundError:
            return  # the job has not begun
        sys.stdout.flush()
