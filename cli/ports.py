"""The two fixed ports of the platform: free, or a message that tells who is in the way and how to go around."""

from __future__ import annotations

import socket
from collections.abc import Collection

import psutil

from cli.failure import Failure
from cli.place import LOOPBACK


def check(wanted: dict[str, int], *, ours: Collection[int] = ()) -> None:
    """`wanted` maps a flag (`--port-api`) to its port. Binds each for a moment; nothing is left open.

    ours: pids whose listening is no obstacle. Raises Failure for a port that cannot be used.
    """
    for flag, port in wanted.items():
        if list(wanted.values()).count(port) > 1:
            raise Failure(f"{' and '.join(wanted)} are both {port}; give two different ports.", 2)
        with socket.socket() as probe:
            # As the servers do: old connections in TIME_WAIT leave a port free, a listener does not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
                continue
            except PermissionError:
                raise Failure(
                    f"Port {port} may not be used by an ordinary user. Choose another: {flag} {port + 8000}"
                ) from None
            except OSError:
                pass
        holder = _listener(port)
        if holder is not None and holder.pid in ours:
            continue
        raise Failure(
            f"Port {port} is in use{_words(holder)}. Stop that program, or choose another port: "
            f"pilot up {flag} {_free_near(port, set(wanted.values()))}"
        )


def _listener(port: int) -> psutil.Process | None:
    """Who listens on the port; None when that is another user's to know."""
    try:
        for connection in psutil.net_connections("tcp"):
            listening = connection.status == psutil.CONN_LISTEN and connection.laddr[1:2] == (port,)
            if listening and connection.pid:
                return psutil.Process(connection.pid)
    except psutil.Error:
        pass  # the message then does without the name
    return None


def _words(holder: psutil.Process | None) -> str:
    if holder is None:
        return " by a program that this user may not look at"
    try:
        command = " ".join(holder.cmdline()) or holder.name()
    except psutil.Error:
        command = "a program"
    return f" by {command[:80]!r} (pid {holder.pid})"


def _free_near(port: int, taken: set[int]) -> int:
    for candidate in range(port + 2, min(port + 200, 65536)):
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, candidate))
            except OSError:
                continue
        if candidate not in taken:
            return candidate
    return 18700
