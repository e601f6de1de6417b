"""The two fixed ports of the platform: free, or a message that tells who is in the way and how to go around."""

from __future__ import annotations

import socket
from collections.abc import Collection

import psutil

from cli.failure import Failure
from cli.place import API_PORT, LOOPBACK, UI_PORT

DEFAULTS = {"api": API_PORT, "ui": UI_PORT}


def check(wanted: dict[str, int], *, demo: bool = False, ours: Collection[int] = ()) -> None:
    """`wanted` maps "api" and "ui" to their ports. Binds each for a moment; nothing is left open.

    demo: whether the platform is started for the demo, for the commands in messages. ours: pids whose listening is
    no obstacle. Raises Failure for a port that cannot be used.
    """
    instead: dict[str, int] = {}
    problems = []
    for name, port in wanted.items():
        if list(wanted.values()).count(port) > 1:
            flags = " and ".join(f"--port-{name}" for name in wanted)
            raise Failure(f"{flags} are both {port}; give two different ports.", 2)
        with socket.socket() as probe:
            # As the servers do: old connections in TIME_WAIT leave a port free, a listener does not.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
                continue
            except PermissionError:
                instead[name] = _free_near(port + 8000, {*wanted.values(), *instead.values()})
                problems.append(f"Port {port} may not be used by an ordinary user.")
                continue
            except OSError:
                pass
        holder = _listener(port)
        if holder is not None and holder.pid in ours:
            continue
        instead[name] = _free_near(port, {*wanted.values(), *instead.values()})
        problems.append(f"Port {port} is in use{_words(holder)}.")
    if problems:
        # Every port that is not the default, so that the command can be used as it stands.
        chosen = {name: port for name, port in (wanted | instead).items() if port != DEFAULTS[name]}
        flags = " ".join(f"--port-{name} {port}" for name, port in chosen.items())
        variables = " ".join(f"PORT_{name.upper()}={port}" for name, port in chosen.items())
        problems.append(
            "Stop what is in the way, or choose other ports:\n"
            f"  ./pilot up {'--demo ' if demo else ''}{flags}\n"
            f"  make {'demo' if demo else 'up'} {variables}"
        )
        raise Failure("\n".join(problems))


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
