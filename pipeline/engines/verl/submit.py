"""With engine.ray_address: the trainer as a job of a Ray cluster, followed from the worker's machine.

The process that the supervisor starts is then a follower. It submits the trainer through Ray's job server, copies its
log, passes a stop on, and ends as it ended, so that the supervisor sees one trainer. What the trainer writes goes into
the run directory, on storage that both machines share; there, too, is the follower's word to the job (`job.py`):

    go    said anew all the time. A job whose follower fell silent kills its trainer.
    stop  the trainer is to finish its step, save and end, as on SIGTERM.

Ray's own stop is the forced one: SIGTERM to the job's processes, and SIGKILL three seconds later. Ray then ends the
job's actors; what they had started themselves, vLLM's engines above all, `sweep.py` ends on every node by the mark in
their environment. One run at a time on a cluster: TransferQueue, verl's store, has one name for all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from pipeline.config import ROOT, ConfigProblems, FieldProblem
from pipeline.engines.verl.job import MARK, Word, say
from pipeline.events import AttemptFinished, EventLog, events_path

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

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
    except (ConfigProblems, OSError, RuntimeError, ValueError) as error:
        print(error, flush=True)
        return fail(run_dir, attempt, str(error))
    end = follower.watch()
    if end < 0:
        if end != -signal.SIGKILL:
            signal.signal(-end, signal.SIG_DFL)
        os.kill(os.getpid(), -end)
    if end and not events_path(run_dir, attempt).exists():
        return fail(run_dir, attempt, f"the Ray job {follower.job} ended before the trainer began: {follower.message}")
    return end


def fail(run_dir: Path, attempt: int, reason: str) -> int:
    """The event log of an attempt whose trainer could not write one."""
    log = EventLog(events_path(run_dir, attempt))
    log.append(AttemptFinished(outcome="failed", reason=reason, step=0))
    log.close()
    return 1


class Follower:
    """One job. `job` is its submission id, the same whoever asks; `message` is what Ray said of its end."""

    def __init__(self, address: str, run_dir: Path, attempt: int, grace_s: float, patience_s: float) -> None:
        self.address, self.grace_s, self.patience_s = address.rstrip("/"), grace_s, patience_s
        path = run_dir.resolve()
        name = re.sub(r"[^\w-]", "-", path.name)
        self.run = f"pilot-{name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
        self.job = f"{self.run}-{attempt}"
        self.file = path / "attempts" / str(attempt) / "follower.json"
        self.word: Word = "go"
        self.message = ""
        self.stop_at: float | None = None  # when it was asked for, on the monotonic clock
        self.client: JobSubmissionClient

    def stop(self, _signum: int = 0, _frame: FrameType | None = None) -> None:
        self.word = "stop"
        self.stop_at = self.stop_at or time.monotonic()

    def submit(self, trainer: Sequence[str]) -> None:
        """Start the job, once what earlier attempts left is gone. Raises ConfigProblems, OSError, RuntimeError."""
        self.client = connect(self.address)
        for other in self.client.list_jobs():
            run = (other.metadata or {}).get(RUN)
            if run == self.run and other.submission_id != self.job:
                self.end_earlier(other)
            elif run is not None and run != self.run and not other.status.is_terminal():
                message = f"the Ray cluster is busy with another run ({other.submission_id}); verl takes one at a time"
                raise ConfigProblems([FieldProblem(field="engine.ray_address", value=self.address, message=message)])
        self.file.parent.mkdir(parents=True, exist_ok=True)
        say(self.file, self.word)
        inside = [sys.executable, "-m", "pipeline.engines.verl.job", str(self.file), "--patience", f"{self.patience_s}"]
        # The same application at the same place on every node, and the same Python: an image or shared storage.
        command = f"cd {shlex.quote(str(ROOT))} && exec {shlex.join([*inside, '--', *trainer])}"
        print(f"Submitting {self.job} to the Ray cluster at {self.address}", flush=True)
        self.client.submit_job(
            entrypoint=command,
            submission_id=self.job,
            metadata={RUN: self.run},
            runtime_env={"env_vars": {MARK: self.job}},
        )

    def end_earlier(self, job: JobDetails) -> None:
        """A job of an earlier attempt, whose follower is no more. Raises RuntimeError when it cannot be ended."""
        assert job.submission_id is not None
        if not job.status.is_terminal():
            print(f"Ending {job.submission_id}, which an earlier attempt left", flush=True)
            self.client.stop_job(job.submission_id)
            wait(self.client, job.submission_id, FORCED_S)
            sweep(self.client, job.submission_id)

    def watch(self) -> int:
        """Until the job has ended and nothing is left of it. Returns its exit status; minus the number of a signal."""
        log = threading.Thread(target=copy_log, args=(self.client, self.job), daemon=True)
        log.start()
        seen_at, forced = time.monotonic(), 0
        while True:
            try:
                say(self.file, self.word)
            except OSError as error:
                print(f"{self.file} cannot be written: {error}", flush=True)
            try:
                info = self.client.get_job_info(self.job)
                seen_at = time.monotonic()
                if info.status.is_terminal():
                    break
                if not forced and (forced := self.to_force(info.status == "PENDING")):
                    self.client.stop_job(self.job)
            except Exception as error:  # whatever a job server that is away makes of it
                print(f"The job server at {self.address} does not answer: {error}", flush=True)
                if time.monotonic() > seen_at + AWAY_S:
                    return -signal.SIGKILL
            time.sleep(POLL_S)
        log.join(timeout=5.0)
        self.message = (info.message or "").strip()
        print(f"{self.job}: {info.status}", flush=True)
        code: int | None = info.driver_exit_code
        if code != 0:
            sweep(self.client, self.job)
        if forced or code is None:
            return -(forced or signal.SIGKILL)
        return code if code <= 128 else 128 - code

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


def connect(address: str) -> JobSubmissionClient:
    """Raises ConfigProblems when no Ray job server answers there, or not to us."""
    # Clusters ask for a token by default. Ray's client sends one only when told to; where Ray looks for it: its docs.
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    if os.environ.get("RAY_AUTH_TOKEN") or token.is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    from ray.exceptions import RayError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, RayError) as error:
        message = f"no Ray job server answers there: {' '.join(str(error).split())}"
        raise ConfigProblems([FieldProblem(field="engine.ray_address", value=address, message=message)]) from None


def wait(client: JobSubmissionClient, job: str, seconds: float) -> None:
    """Until the job has ended. Raises RuntimeError when it has not by then."""
    deadline = time.monotonic() + seconds
    while not client.get_job_status(job).is_terminal():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the Ray job {job} does not end; end it, then resume")
        time.sleep(POLL_S / 4)


def sweep(client: JobSubmissionClient, job: str) -> None:
    """Kill what processes of the job are left on any node of the cluster, by their mark. Tells what became of it."""
    name = f"{job}-sweep-{time.time_ns():x}"
    inside = [sys.executable, "-m", "pipeline.engines.verl.sweep", job]
    try:
        client.submit_job(entrypoint=f"cd {shlex.quote(str(ROOT))} && exec {shlex.join(inside)}", submission_id=name)
        wait(client, name, FORCED_S)
        print(client.get_job_logs(name).strip().split("\n")[-1], flush=True)
    except Exception as error:  # the run's own end is told all the same
        print(f"Whether processes of {job} are left could not be found out: {error}", flush=True)


def copy_log(client: JobSubmissionClient, job: str) -> None:
    """The job's log to our output, until the job has ended. A connection that breaks is made anew."""
    copied = 0  # characters

    async def copy() -> None:
        nonlocal copied
        skip = copied
        async for text in client.tail_job_logs(job):
            fresh = text[skip:]
            skip -= len(text) - len(fresh)
            copied += len(fresh)
            sys.stdout.write(fresh)
            sys.stdout.flush()

    while True:
        try:
            asyncio.run(copy())
            if client.get_job_status(job).is_terminal():
                return
        except Exception:  # it is the main thread's to say so, and to give up
            pass
        time.sleep(POLL_S)
