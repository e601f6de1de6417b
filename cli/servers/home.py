"""What the private servers keep under one directory (`PILOT_HOME`): who may use it, passwords, ports, logs.

<home>/lock                     held by the running launcher
<home>/postgres/{data,password,port}
<home>/broker/{data,valkey.conf,password,port}
<home>/logs/<name>.log
<home>/processes/<name>.json    see `cli.processes`
"""

from __future__ import annotations

import fcntl
import os
import secrets
import socket
from pathlib import Path
from typing import Final, TextIO

LOOPBACK: Final = "127.0.0.1"
_LOG_LIMIT_BYTES: Final = 10_000_000


class ServicesError(Exception):
    """The database or the broker cannot be used. The message says what is wrong and what to do about it."""


def prepare_home(home: Path) -> Path:
    """Create the directory if it is missing and return its absolute path.

    Raises ServicesError when it cannot be created or written.
    """
    home = home.expanduser().resolve()
    try:
        home.mkdir(parents=True, exist_ok=True)
        probe = home / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ServicesError(
            f"Cannot write to {home} ({error.strerror}). The platform keeps its data there. "
            "Set PILOT_HOME to a directory that you own."
        ) from error
    return home


def lock_home(home: Path) -> TextIO:
    """Take the home's lock until the returned file is closed or this process ends, however it ends.

    Raises ServicesError when another launcher holds it.
    """
    file = (home / "lock").open("a+")  # never inherited by children: Python opens with close-on-exec
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise ServicesError(
            f"The platform is already running from {home} (launcher pid {holder}). "
            "Stop that one first. A second one needs a directory and ports of its own:\n"
            "  PILOT_HOME=~/.pilot-2 ./pilot up --port-api 8710 --port-ui 8711"
        ) from None
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def remembered_port(folder: Path) -> int:
    """The port used last time (kept in `<folder>/port`) if it is free, else one that is."""
    path = folder / "port"
    try:
        port = int(path.read_text())
    except (FileNotFoundError, ValueError):
        port = 0
    port = port if port and _is_free(port) else _free_port()
    path.write_text(f"{port}\n")
    return port


def remembered_password(folder: Path) -> str:
    """The random password in `<folder>/password` (mode 0600), made on first use."""
    path = folder / "password"
    if not path.exists():
        write_private(path, secrets.token_urlsafe(24) + "\n")
    return path.read_text().strip()


def write_private(path: Path, text: str, *, reader: int | None = None) -> None:
    """Write a file, private (0600) from the start; `reader` is the uid that owns it instead of ours."""
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        if reader is not None and reader != os.geteuid():
            os.fchown(descriptor, reader, -1)
        file.write(text)


def log_path(home: Path, name: str) -> Path:
    """Where a server logs. An overgrown log of an earlier start is moved to `<name>.log.1`."""
    path = home / "logs" / f"{name}.log"
    if path.exists() and path.stat().st_size > _LOG_LIMIT_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return path


def log_tail(path: Path, *, since: int = 0, lines: int = 8) -> str:
    """The last lines that a server logged after byte `since`, indented for an error message."""
    try:
        text = path.read_bytes()[since:].decode(errors="replace")
    except FileNotFoundError:
        return "  (it logged nothing)"
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-lines:]) or "  (it logged nothing)"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As the servers do: old connections in TIME_WAIT leave a port free, a listener does not.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
