"""Reward processes: where a verdict may take long, take all memory or crash, and still harms nobody else.

Each process answers one question at a time over a pipe, a line of JSON each way. An answer that takes too long or
crashes ends the fork of the process that looks for it, and nothing else. Processes start with an environment of a few
harmless names, so no reward ever sees a password or key of ours; they limit their own memory, and end with the process
that started them.

This is not pebble's or concurrent.futures' pool: their workers inherit our environment (which /proc shows for good),
cannot run inside a sandbox, and share one queue whose lock a killed worker may hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from queue import LifoQueue
from typing import Any

from pipeline.rewards.types import Question, Reward, Verdict, failed, shown
from pipeline.sandbox import ROOT, clean_environment
from pipeline.sandbox.limits import Limits

_START_S = 120.0  # importing sympy on a busy machine
_MAX_REPLY = 1 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """What a reward process is started for. sandbox: the command line that puts it into one, and the user that it
    becomes there, for each process anew; None starts it as an ordinary child of ours."""

    reward: Reward
    limit_s: float
    limits: Limits
    sandbox: Callable[[], tuple[list[str], int]] | None = None

    def command(self) -> list[str]:
        """Raises ValueError when the sandbox can't be had."""
        before, user = self.sandbox() if self.sandbox is not None else ([], 0)
        # -I: neither the current folder nor PYTHONPATH decide what it imports.
        start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.rewards.child import main; main()"
        told = {
            "settings": self.reward.model_dump(mode="json"),
            "limits": asdict(self.limits),
            "user": user,
            # A sandbox has process ids of its own, and ends with us by itself.
            "parent": 0 if self.sandbox is not None else os.getpid(),
        }
        return [*before, sys.executable, "-I", "-c", start, json.dumps(told)]


class Process:
    """One reward process. Not thread-safe: whoever has it has it alone."""

    def __init__(self, job: Job) -> None:
        """Raises ValueError, saying why, when it does not come up."""
        self._job = job
        self._killed = False
        try:
            self._process = subprocess.Popen(
                job.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=clean_environment(),
                start_new_session=True,  # Ctrl-C is for the trainer, which then ends us
            )
        except OSError as error:
            raise ValueError(f"reward {job.reward.name!r}: its process cannot be started: {error}") from None
        reply = self._reply(_START_S)
        if reply is None or "error" in reply:
            self.kill()
            assert self._process.stderr is not None
            told = reply["error"] if reply else self._process.stderr.read(4096).decode(errors="replace").strip()
            raise ValueError(f"reward {job.reward.name!r} cannot start: {told or f'it took over {_START_S:g} s'}")

    @property
    def usable(self) -> bool:
        return not self._killed and self._process.poll() is None

    def ask(self, question: Question, limit_s: float) -> Verdict:
        # It keeps the limit itself; ours is for a process that has lost its alarm.
        reply = self._reply(limit_s + 1, json.dumps([limit_s, question]).encode() + b"\n")
        if reply is not None:
            return failed(f"no verdict within {limit_s:g} s") if "late" in reply else Verdict(**reply)
        why = f"no verdict within {limit_s + 1:g} s" if self._killed else "the reward process died"
        self.kill()
        return failed(why)

    def _reply(self, limit_s: float, line: bytes = b"") -> dict[str, Any] | None:
        """Send the line, if any, and wait for the answer. None when it was killed for taking too long, or died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        timer = threading.Timer(limit_s, self.kill)
        timer.daemon = True
        timer.start()
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            reply = self._process.stdout.readline(_MAX_REPLY)
            return dict(json.loads(reply)) if reply.endswith(b"\n") else None
        except (OSError, ValueError):
            return None
        finally:
            timer.cancel()
            timer.join()  # whether it has killed us is settled from here on

    def kill(self) -> None:
        self._killed = True
        self._process.kill()
        self._process.wait()


class Processes:
    """`workers` reward processes of one reward, started when first needed."""

    def __init__(self, job: Job, workers: int) -> None:
        self.workers = workers
        self._job = job
        self._limit_s = job.limit_s
        self._idle: LifoQueue[Process | None] = LifoQueue()
        for _ in range(workers):
            self._idle.put(None)
        self._all: set[Process] = set()
        self._closed = False

    def start_one(self) -> None:
        """Raises ValueError when the reward can't start: rather now than at the first answer."""
        process = self._idle.get()
        try:
            process = process or self._start()
        finally:
            self._idle.put(process)

    def hurry(self, limit_s: float) -> None:
        """From now on a question may take no longer than this, nor than the reward's own time limit."""
        self._limit_s = min(limit_s, self._job.limit_s)

    def answer(self, question: Question) -> Verdict:
        verdict = self._answer(question)
        if verdict.failed and verdict.extracted is None:
            extracted, expected = self._job.reward.known(question)
            return replace(verdict, extracted=extracted, expected=verdict.expected or expected)
        return verdict

    def _answer(self, question: Question) -> Verdict:
        process = self._idle.get()
        try:
            process = process if process is not None and process.usable else self._start()
            start = time.monotonic()
            return replace(process.ask(question, self._limit_s), seconds=time.monotonic() - start)
        except ValueError as error:
            return failed(shown(str(error)))
        finally:
            if process is not None and not process.usable:
                self._all.discard(process)
                process = None
            self._idle.put(process)

    def _start(self) -> Process:
        if self._closed:
            raise ValueError("the reward is closed")
        process = Process(self._job)
        self._all.add(process)
        return process

    def close(self) -> None:
        self._closed = True
        for process in list(self._all):
            process.kill()
        self._all.clear()
