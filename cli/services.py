"""Postgres and the broker, whoever runs them.

DATABASE_URL and REDIS_URL are used when set (and checked at once, so that a wrong one fails here with a clear
message and not later in three processes). Otherwise private, loopback-only servers are started under `home`.

    with services.start(home) as running:
        ...  # running.database_url, running.broker_url
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TextIO

import psutil
import psycopg
import redis

from cli import processes
from cli.servers import broker, postgres
from cli.servers.account import server_account
from cli.servers.home import ServicesError, lock_home, prepare_home

__all__ = ["SUPERVISOR", "Services", "ServicesError", "masked", "start"]

SUPERVISOR: Final = "supervisor-"
"""What the names of supervisors' process records begin with."""

_CONNECT_TIMEOUT_S: Final = 5


@dataclass
class Services:
    """The database and the broker in use, and the home's lock.

    `database_url` is what SQLAlchemy, psycopg and psql take; `broker_url` is what Celery takes. `cleaned`
    names the processes of a crashed launcher that were ended at this start.
    """

    home: Path
    database_url: str
    broker_url: str
    cleaned: list[str] = field(default_factory=list)
    _servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict, repr=False)
    _lock: TextIO | None = field(default=None, repr=False)

    def exited(self) -> list[str]:
        """Names of the private servers that have ended by themselves."""
        return [name for name, server in self._servers.items() if server.poll() is not None]

    def start_again(self, name: str) -> None:
        """Start a private server that has ended, with its data and at the address that its clients have.

        Call it from the main thread. Raises ServicesError, and OSError when its files cannot be used.
        """
        data = self.home / name / "data"
        if not data.exists():  # a new and empty one is nothing to go on with
            raise ServicesError(f"Its data, {data}, is gone. Restore it from a backup.")
        url = self._start(name)
        if url != (self.database_url if name == postgres.NAME else self.broker_url):
            raise ServicesError("Its port was taken by another program meanwhile. The next start takes another one.")

    def _start(self, name: str) -> str:
        data = _folder(self.home, name) / "data"
        if name == postgres.NAME:
            url, self._servers[name] = postgres.start(self.home, server_account(data, postgres.program()))
        else:
            url, self._servers[name] = broker.start(self.home, server_account(data, broker.program()))
        return url

    def stop(self) -> None:
        """Stop the private servers (end their clients first) and release the home. Safe to repeat."""
        while self._servers:
            name, server = self._servers.popitem()
            processes.stop(self.home, name, server, grace_s=20.0)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start(home: Path, environ: Mapping[str, str] = os.environ) -> Services:
    """Connect to, or start, the database and the broker; first ends what a crashed launcher left.

    Supervisors of runs are not ended: they need the database to write down how far the run came.

    Call it from the main thread (see `cli.processes.start`). Nothing stays running when it raises.
    Raises ServicesError: home not writable or in use, server not reachable or not startable.
    """
    home = prepare_home(home)
    running = Services(home, environ.get("DATABASE_URL", ""), environ.get("REDIS_URL", ""), _lock=lock_home(home))
    try:
        running.cleaned = _clean(home)
        # Given servers first: nothing is started when one of them cannot be used.
        if running.database_url:
            running.database_url = _checked_database(running.database_url)
        if running.broker_url:
            _check_broker(running.broker_url)
        if not running.database_url:
            running.database_url = running._start(postgres.NAME)
        if not running.broker_url:
            running.broker_url = running._start(broker.NAME)
    except PermissionError as error:
        running.stop()
        raise ServicesError(
            f"Cannot use {error.filename or home} ({error.strerror}): it belongs to another user, perhaps "
            "because the platform was started as root before. Run as that user, or set PILOT_HOME to a "
            "directory that you own."
        ) from error
    except BaseException:
        running.stop()
        raise
    return running


def masked(url: str) -> str:
    """The address with every password in it replaced by ***, also when it does not parse."""
    for secret in _secrets(url):
        url = url.replace(secret, "***")
    return url


def _secrets(url: str) -> list[str]:
    """Passwords in an address: before the @, or as a parameter `password=`. Longest first."""
    credentials, at, _ = url.rpartition("@")
    user = credentials.rpartition("://")[2]
    found = [user.partition(":")[2]] if at else []
    found += re.findall(r"password=([^&\s]+)", url)
    return sorted({secret for secret in found if secret}, key=len, reverse=True)


def _clean(home: Path) -> list[str]:
    try:
        return processes.clean_leftovers(home, spared=SUPERVISOR)
    except psutil.AccessDenied as error:
        raise ServicesError(
            f"A process of an earlier start from {home} still runs as another user (pid {error.pid}). "
            "Stop it as that user, or set PILOT_HOME to another directory."
        ) from error


def _folder(home: Path, name: str) -> Path:
    folder = home / name  # passable, not listable: the server's account must reach its data, which is private
    folder.mkdir(mode=0o711, exist_ok=True)
    return folder


def _checked_database(url: str) -> str:
    """The URL in the form that every client takes, after connecting once. Raises ServicesError."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ServicesError(
            f"DATABASE_URL must look like postgresql://user:password@host:5432/name, and is {masked(url)!r}. "
            "Correct it, or unset it to use a private Postgres."
        )
    url = f"postgresql://{rest}"
    try:
        psycopg.connect(url, connect_timeout=_CONNECT_TIMEOUT_S).close()
    except (psycopg.Error, ValueError) as error:
        raise _unreachable("DATABASE_URL", url, error, "Postgres") from None
    return url


def _check_broker(url: str) -> None:
    try:
        with redis.Redis.from_url(
            url, socket_connect_timeout=_CONNECT_TIMEOUT_S, socket_timeout=_CONNECT_TIMEOUT_S
        ) as client:
            client.ping()
    except (redis.RedisError, ValueError, OSError) as error:
        raise _unreachable("REDIS_URL", url, error, "broker") from None


def _unreachable(variable: str, url: str, error: Exception, server: str) -> ServicesError:
    words = str(error)
    for secret in _secrets(url):
        words = words.replace(secret, "***")
    return ServicesError(
        f"Cannot use {variable}={masked(url)}: {words.strip()}\n"
        f"Start that server or correct the address, or unset {variable} to use a private {server}."
    )
