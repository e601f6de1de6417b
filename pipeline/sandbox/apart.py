"""Files from outside are read apart: by a process in the sandbox that knows no secret, reads those files and nothing
else of ours, writes to one open file, has no network, and is bounded in memory and time. Whatever a file does to its
reader, the process that asked goes on.

Where bubblewrap may not start, as in most containers, the reader takes its rights away by itself (fence.py).
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path

from pipeline import sandbox
from pipeline.lifeline import die_with
from pipeline.sandbox import ROOT
from pipeline.sandbox.limits import Limits, enter

_MAX_REPLY = 1 << 24
_CANNOT = 76  # the exit status of a reader that can't be fenced


class NoSandbox(Exception):
    """This machine can keep readers of files neither in bubblewrap nor behind the fence."""


class ReaderFailed(Exception):
    """The reader took too long (seconds is set), or ended without a reply (seconds is None)."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        super().__init__("the reader ended without a reply" if seconds is None else f"took over {seconds:g} s")


def read_apart(
    module: str, work: str, readable: Sequence[Path], limits: Limits, seconds: float, out: Path | None = None
) -> str:
    """What the module's `inside(work, out)` replies, run apart. out: a file that it may write; unset means nowhere.
    Ends with the thread that asked. Raises NoSandbox, ReaderFailed, and OSError for `out`."""
    readable = [path.absolute() for path in readable]
    before, user, why = _sandboxed(limits, readable)
    told = {
        "module": module,
        "limits": asdict(limits),
        "user": user,
        "fence": [] if before else [str(path) for path in readable],
        # In a sandbox process ids are others, and it ends with us by itself.
        "parent": 0 if before else os.getpid(),
    }
    # -I: neither the current folder nor PYTHONPATH decide what it imports.
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.sandbox.apart import main; main()"
    with tempfile.TemporaryFile() as reply, open(out or os.devnull, "wb") as written:
        process = subprocess.Popen(
            [*before, sys.executable, "-I", "-c", start, json.dumps(told | {"out": written.fileno()})],
            stdin=subprocess.PIPE, stdout=reply, stderr=subprocess.DEVNULL, pass_fds=[written.fileno()],
            env=sandbox.clean_environment(), start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(work.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise ReaderFailed(seconds) from None
        finally:
            process.kill()
            process.wait()
        reply.seek(0)
        answer = reply.read(_MAX_REPLY)
    if process.returncode == _CANNOT:
        raise NoSandbox(f"{why}; and no fence: {answer.decode(errors='replace')}")
    if process.returncode != 0:
        raise ReaderFailed(None)
    return answer.decode(errors="replace")


def _sandboxed(limits: Limits, readable: Sequence[Path]) -> tuple[list[str], int, str]:
    """(what goes before the command line, the user inside, "") in bubblewrap; ([], 0, why not) where it can't start."""
    try:
        bubblewrap_keeps()
    except ValueError as error:
        return [], 0, str(error)
    return sandbox.command(limits, readable), sandbox.new_user(), ""


@cache
def bubblewrap_keeps() -> None:
    """Raises ValueError; that is not remembered."""
    sandbox.check()


def main() -> None:
    """The inside."""
    told = json.loads(sys.argv[1])
    limits = told["limits"]
    if told["parent"]:
        from pipeline.sandbox.fence import fence

        die_with(told["parent"])
        limits |= {"processes": None}  # it would count all processes of who we are
        try:
            fence(told["fence"])
        except OSError as error:
            sys.stdout.write(error.strerror or str(error))
            sys.stdout.flush()
            os._exit(_CANNOT)
    enter(Limits(**limits), told["user"])
    module = importlib.import_module(told["module"])
    with os.fdopen(told["out"], "wb") as out:
        sys.stdout.write(module.inside(sys.stdin.buffer.read().decode(), out))
