"""Who the private servers run as. An ordinary user runs them as himself. Postgres refuses to run as root, so
root runs them under a bare numeric uid that no account has: nothing is added to the system and nothing is
left behind.

Two things stand in the way of a bare uid:

- `initdb` wants a name for its uid. For root it runs as `nobody` and the result is handed over. An ordinary
  user without a name (a container's arbitrary uid) gets one inside a user namespace, for `initdb` alone.
- Root's checkout may lie under a private folder such as /root (mode 700). Then the servers keep one ambient
  capability to pass through it: CAP_DAC_READ_SEARCH, or CAP_DAC_OVERRIDE where a container withholds that.
"""

from __future__ import annotations

import ctypes
import os
import pwd
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cli.servers.home import ServicesError

# systemd's uid registry leaves this range unused: neither people, packages nor dynamic users live here.
_UNUSED_UIDS: Final = range(60600, 60700)

_CAP_DAC_OVERRIDE: Final = 1
_CAP_DAC_READ_SEARCH: Final = 2
_PR_SET_SECUREBITS: Final = 28
_SECBIT_NO_SETUID_FIXUP: Final = 4
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_RAISE: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_CLONE_NEWUSER: Final = 0x10000000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Account:
    """A uid and gid to run a server as, with at most one capability (None: no privileges at all)."""

    uid: int
    gid: int
    capability: int | None = None

    def enter(self) -> None:
        """Become this account; for a forked child before exec. Does nothing when it is who we are.

        Raises OSError when the system refuses.
        """
        if self.uid == os.geteuid():
            return
        if self.capability is not None:
            # Keeps capabilities through the change of uid, and counts them in access(2), by which Postgres checks
            # its own program.
            _check(_libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0), "prctl")
        os.setgroups([])
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(self.uid, self.uid, self.uid)
        if self.capability is not None:
            _keep_capability(self.capability)

    def own(self, path: Path) -> None:
        """Give `path` and everything in it to this account, if it is not already its own.

        Raises ServicesError when the system refuses.
        """
        if path.stat().st_uid == self.uid:
            return
        try:
            os.chown(path, self.uid, self.gid)
            for folder, names, files in os.walk(path):
                for name in [*names, *files]:
                    os.chown(os.path.join(folder, name), self.uid, self.gid, follow_symlinks=False)
        except OSError as error:
            raise ServicesError(
                f"Cannot hand {path} to uid {self.uid} ({error.strerror}). Postgres refuses to run as root, "
                "and this system lets root use no other uid. Run as an ordinary user, or set DATABASE_URL "
                "and REDIS_URL."
            ) from error


def server_account(data: Path, program: Path) -> Account:
    """The account for the private servers: the user himself or, for root, an unused uid.

    data: a server's data directory, whose owner is kept when it exists. program: what that server runs.
    Raises ServicesError when no account can run it.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid())
    uid = (data.stat().st_uid if data.exists() else 0) or _unused_uid()
    for capability in (None, _CAP_DAC_READ_SEARCH, _CAP_DAC_OVERRIDE):
        account = Account(uid, uid, capability)
        if _can_use(account, data.parent, program):
            return account
    raise ServicesError(
        f"Postgres refuses to run as root, and uid {uid} cannot reach {data.parent} or {program}. "
        "Move the checkout and PILOT_HOME out of private folders (such as /root), run as an ordinary user, "
        "or set DATABASE_URL and REDIS_URL."
    )


def naming(account: Account) -> tuple[Account, Callable[[], None]]:
    """A uid with a name, for `initdb`: which account owns the files meanwhile, and how a child becomes it.

    Raises ServicesError when this system knows no user but root.
    """
    if _has_name(account.uid):
        return account, account.enter
    names = {entry.pw_name: entry for entry in pwd.getpwall() if entry.pw_uid != 0}
    if not names:
        raise ServicesError("This system has no user but root. Set DATABASE_URL and REDIS_URL.")
    entry = names.get("nobody") or next(iter(names.values()))
    if os.geteuid() == 0:
        named = Account(entry.pw_uid, entry.pw_gid, account.capability)
        return named, named.enter
    return account, lambda: _rename_in_namespace(entry.pw_uid, entry.pw_gid)


def _rename_in_namespace(uid: int, gid: int) -> None:
    """Stay who we are, but be called `uid` in a user namespace of our own."""
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    _check(_libc.unshare(_CLONE_NEWUSER), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outside_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outside_gid} 1")


def _has_name(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _unused_uid() -> int:
    for uid in _UNUSED_UIDS:
        if not _has_name(uid):
            return uid
    raise ServicesError(
        f"Every uid from {_UNUSED_UIDS[0]} to {_UNUSED_UIDS[-1]} belongs to a user. Run as an ordinary user, "
        "or set DATABASE_URL and REDIS_URL."
    )


def _can_use(account: Account, folder: Path, program: Path) -> bool:
    """Whether the account can enter `folder`, and read and run `program`: tried for real."""

    def prepare() -> None:
        account.enter()
        os.chdir(folder)
        if not os.access(program, os.R_OK | os.X_OK):
            raise PermissionError(program)

    try:
        subprocess.run([program, "--version"], preexec_fn=prepare, capture_output=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    ]


def _keep_capability(number: int) -> None:
    """Drop all capabilities but `number` (below 32: in the first word); let that one pass through exec."""
    mask = 1 << number
    words = (_Data * 2)(_Data(mask, mask, mask), _Data(0, 0, 0))
    _check(_libc.capset(ctypes.byref(_Header(_CAPABILITY_VERSION_3, 0)), words), "capset")
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number, 0, 0), "prctl")


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
