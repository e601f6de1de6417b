"""The processes that `pilot up` starts: they die with it, and the next one cleans up those that did not.

Each child gets its own session (Ctrl-C reaches the launcher only, which then stops children in order) and a
parent death signal. Whatever outlives a killed launcher anyway is found again from
`<home>/processes/<name>.json`. A record names a process by pid *and* start time, so a pid that the system
gave to somebody else is never touched.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import psutil

_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ProcessRecord:
    """One process of ours, as written to disk.

    `start_ticks` (clock ticks since boot, from /proc) and `boot_id` identify it exactly; `create_time` (Unix
    seconds) is the same instant for people and moves when the clock is set. `stop_signal` asks it to end
    gracefully.
    """

    name: str
    pid: int
    create_time: float
    start_ticks: int
    boot_id: str
    stop_signal: int = signal.SIGTERM


def start(
    home: Path,
    name: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    log: Path | None = None,
    stop_signal: int = signal.SIGTERM,
    before_exec: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in its own session, output appended to `log`, and record it as `name`.

    Call it from the launcher's main thread: the kernel sends the parent death signal when the *thread* that
    started the child ends. `before_exec` runs in the child first (privilege changes reset the death signal).

    Raises OSError when the program or a folder cannot be used.
    """
    launcher = os.getpid()

    def prepare() -> None:
        if before_exec is not None:
            before_exec()
        _libc.prctl(_PR_SET_PDEATHSIG, int(stop_signal), 0, 0, 0)
        if os.getppid() != launcher:  # the launcher died between fork and prctl: nobody would ever signal us
            os._exit(1)

    output: int = subprocess.DEVNULL
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=prepare,
        )
    finally:
        if log is not None:
            os.close(output)
    record(home, name, child.pid, stop_signal=stop_signal)
    return child


def record(home: Path, name: str, pid: int, *, stop_signal: int = signal.SIGTERM) -> None:
    """Write `<home>/processes/<name>.json` for a running process; nothing when it has already ended.

    Raises OSError when the folder cannot be written.
    """
    try:
        entry = ProcessRecord(
            name, pid, psutil.Process(pid).create_time(), _start_ticks(pid), _boot_id(), int(stop_signal)
        )
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return
    path = _record_path(home, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps(asdict(entry)) + "\n")
    draft.replace(path)


def forget(home: Path, name: str) -> None:
    """Remove the record of a process that has ended."""
    _record_path(home, name).unlink(missing_ok=True)


def recorded(home: Path) -> list[ProcessRecord]:
    """Every readable record under `home`, dead or alive; a torn or foreign file is skipped."""
    records = []
    for path in sorted((home / "processes").glob("*.json")):
        try:
            records.append(ProcessRecord(**json.loads(path.read_text())))
        except (ValueError, TypeError):
            continue  # not ours, or cut off by a crash: it names no process to clean
    return records


def find(entry: ProcessRecord) -> psutil.Process | None:
    """The running process that `entry` describes; None when it has ended, even if its pid is in use again."""
    try:
        process = psutil.Process(entry.pid)
        same = entry.boot_id == _boot_id() and entry.start_ticks == _start_ticks(entry.pid)
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


def terminate(process: psutil.Process, *, stop_signal: int = signal.SIGTERM, grace_s: float = 10.0) -> bool:
    """End a process and all of its descendants: ask the root, wait `grace_s` seconds, then kill what is left.

    Returns True when everything ended without being killed. Only members of this tree are signalled; psutil
    checks each one's start time first. Raises psutil.AccessDenied when the process belongs to another user.
    """
    # The tree is read before the root ends: afterwards its children are somebody else's.
    tree = _tree(process)
    _signal(process, stop_signal)
    _, alive = psutil.wait_procs(tree, timeout=grace_s)
    # Descendants that the root started meanwhile, or that ignored its end.
    leftovers = {member.pid: member for parent in alive for member in _tree(parent)}
    for member in leftovers.values():
        _signal(member, signal.SIGKILL)
    psutil.wait_procs(list(leftovers.values()), timeout=5.0)
    return not leftovers


def stop(home: Path, name: str, child: subprocess.Popen[bytes], *, grace_s: float = 10.0) -> bool:
    """Terminate a child of `start` with its recorded signal and forget it. Returns what `terminate` does."""
    signals = {entry.pid: entry.stop_signal for entry in recorded(home) if entry.name == name}
    clean = True
    if child.poll() is None:
        stop_signal = signals.get(child.pid, signal.SIGTERM)
        clean = terminate(psutil.Process(child.pid), stop_signal=stop_signal, grace_s=grace_s)
        child.wait(timeout=5.0)
    forget(home, name)
    return clean


def clean_leftovers(home: Path, *, grace_s: float = 10.0, spared: str = "") -> list[str]:
    """End what a crashed launcher left running and remove its records. Returns the names of those ended.

    spared: what the names begin with of those that are left alone, with their records; empty: none.

    Call it only while holding the home's lock (see `cli.services`), or it would end a live launcher's
    children. Raises psutil.AccessDenied when a leftover belongs to another user.
    """
    ended = []
    for entry in recorded(home):
        process = find(entry)
        if process is not None and not _spared(entry.name, spared):
            terminate(process, stop_signal=entry.stop_signal, grace_s=grace_s)
            ended.append(entry.name)
    for path in (home / "processes").glob("*.json*"):
        if not _spared(path.name, spared):
            path.unlink(missing_ok=True)
    return ended


def wait_until(ready: Callable[[], bool], *, timeout_s: float, every_s: float = 0.05) -> bool:
    """Poll `ready` until it is true or `timeout_s` seconds have passed; returns its last answer."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() >= deadline:
            return False
        time.sleep(every_s)
    return True


def _spared(name: str, prefix: str) -> bool:
    return bool(prefix) and name.startswith(prefix)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        pass  # it ended by itself, which is what was wanted


def _record_path(home: Path, name: str) -> Path:
    return home / "processes" / f"{name}.json"


def _start_ticks(pid: int) -> int:
    """Start time in clock ticks since boot (field 22 of /proc/<pid>/stat), whatever the clock does."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
