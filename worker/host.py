"""The processes of this host: naming one for good, finding those of a run, ending exactly these.

A process is named by its pid *and* when it started (clock ticks since boot, and which boot), so a pid that the
system gave to somebody else is never touched. Everything that works for a run carries its id and fence in the
environment, whatever it forks and wherever it is re-parented to, so even the orphans of a killed supervisor are found.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import time
from pathlib import Path
from typing import Final

import psutil

HOST: Final = socket.gethostname()
_MARK: Final = "PILOT_SUPERVISED_RUN"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)


def holder(pid: int | None = None) -> str:
    """host:pid:start:boot of a running process (default: this one)."""
    pid = os.getpid() if pid is None else pid
    return f"{HOST}:{pid}:{_start_ticks(pid)}:{_boot_id()}"


def is_here(name: str) -> bool:
    """Whether the holder is, or was, a process of this host."""
    return name.partition(":")[0] == HOST


def is_alive(name: str) -> bool:
    """Whether the holder, a process of this host, still runs."""
    try:
        _, pid, start, boot = name.split(":")
        alive = boot == _boot_id() and int(start) == _start_ticks(int(pid))
        return alive and psutil.Process(int(pid)).status() != psutil.STATUS_ZOMBIE
    except (ValueError, OSError, psutil.NoSuchProcess):
        return False


def mark(run_id: object, fence: int) -> dict[str, str]:
    """The environment of whatever works for the run under this fence."""
    return {_MARK: f"{run_id}:{fence}"}


def processes_of(run_id: object, fence: int) -> list[psutil.Process]:
    """Every process of this host that works for the run under `fence` or an older one, except the caller."""
    found = []
    for process in psutil.process_iter():
        try:
            run, _, its_fence = process.environ().get(_MARK, "").partition(":")
            if run == str(run_id) and int(its_fence) <= fence and process.pid != os.getpid():
                found.append(process)
        except (psutil.Error, OSError, ValueError):
            continue  # ended meanwhile, or somebody else's: not ours
    return found


def kill_all_of(run_id: object, fence: int, *, timeout_s: float = 10.0) -> bool:
    """Kill what `processes_of` finds and all descendants, until nothing is left. Returns whether nothing is.

    A supervisor ends its own descendants with it: as a sub-reaper it has inherited all orphans.
    """
    deadline = time.monotonic() + timeout_s
    while left := _left(run_id, fence):
        if time.monotonic() > deadline:
            return False
        for process in left:
            try:
                process.kill()
            except psutil.Error:
                pass  # ended by itself, which is what was wanted
        psutil.wait_procs(left, timeout=0.5)
    return True


def _left(run_id: object, fence: int) -> list[psutil.Process]:
    roots = processes_of(run_id, fence)
    own = os.environ.get(_MARK, "") == f"{run_id}:{fence}"
    left: dict[int, psutil.Process] = {}
    for root in [psutil.Process(), *roots] if own else roots:
        try:
            left |= {p.pid: p for p in (root, *root.children(recursive=True))}
        except psutil.NoSuchProcess:
            continue
    left.pop(os.getpid(), None)
    return [p for p in left.values() if p.is_running() and _status(p) != psutil.STATUS_ZOMBIE]


def _status(process: psutil.Process) -> str:
    try:
        return process.status()
    except psutil.NoSuchProcess:
        return psutil.STATUS_ZOMBIE


def adopt_orphans() -> None:
    """Become the parent of whatever descendant loses its own (Linux; elsewhere nothing happens)."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """For a child before exec: be killed when the parent's thread that forked it ends (Linux)."""
    if hasattr(_libc, "prctl"):
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it ended between fork and here: nobody would ever tell us
        os._exit(1)


def reap(keep: int) -> None:
    """Collect adopted children that have ended; not `keep`, which its own Popen waits for."""
    try:
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid == keep:
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
    except ChildProcessError:
        pass  # there is none


def record(home: Path, name: str, pid: int) -> Path:
    """Write `home/processes/<name>.json`, from which `pilot up` finds a process to end. Returns the path."""
    path = home / "processes" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    entry = {
        "name": name,
        "pid": pid,
        "create_time": psutil.Process(pid).create_time(),
        "start_ticks": _start_ticks(pid),
        "boot_id": _boot_id(),
        "stop_signal": int(signal.SIGTERM),
    }
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps(entry) + "\n")
    draft.replace(path)
    return path


def _start_ticks(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat: untouched by changes of the clock."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
