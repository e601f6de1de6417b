"""`pilot up` for real: everything starts, everything stops, and nothing of it is left behind, however it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cli import ports, processes
from cli.failure import Failure
from worker import host

CHECKOUT = Path(__file__).resolve().parents[2]
READY_S = 120.0  # seconds; far more than it takes, for a busy machine


def die_with_us(tests: int = os.getpid()) -> None:
    """For a child before exec: nothing is left of a test run that is killed."""
    host.die_with(tests)


class Launcher:
    """A `pilot up` of its own, in a new session, whose whole offspring carries a mark in its environment."""

    def __init__(self, home: Path, *arguments: str, **environ: str) -> None:
        self.home, self.mark = home, uuid.uuid4().hex
        self.ports = free_port(), free_port()
        given = {k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL", "EXIT")}
        self.log = home.parent / f"{self.mark}.out"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli", "up", *self._ports(arguments), *arguments],
                cwd=CHECKOUT,
                env=given | {"PILOT_HOME": str(home), "PILOT_TEST_MARK": self.mark} | environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=die_with_us,
            )

    def _ports(self, arguments: tuple[str, ...]) -> list[str]:
        flags = zip(("--port-api", "--port-ui"), self.ports, strict=True)
        return [word for flag, port in flags if flag not in arguments for word in (flag, str(port))]

    @property
    def text(self) -> str:
        return self.log.read_text()

    def ready(self) -> Launcher:
        settled = processes.wait_until(
            lambda: "Ready after" in self.text or self.process.poll() is not None, timeout_s=READY_S
        )
        assert settled and self.process.poll() is None, self.text
        return self

    def ended(self, code: int) -> str:
        """What it said, once it has ended with this status and left no process behind."""
        assert self.process.wait(timeout=90) == code, self.text
        assert self.offspring() == []
        return self.text

    def offspring(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                marked = process.environ().get("PILOT_TEST_MARK") == self.mark
                if marked and process.pid != self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid} {' '.join(process.cmdline())}")
            except (psutil.Error, OSError):
                continue  # ended meanwhile
        return found

    def child(self, name: str) -> psutil.Process:
        found = processes.find(next(entry for entry in processes.recorded(self.home) if entry.name == name))
        assert found is not None
        return found

    def pilot(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return pilot(*arguments, PILOT_HOME=str(self.home))


def pilot(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        cwd=CHECKOUT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def supervised(launcher: Launcher, script: str) -> subprocess.Popen[bytes]:
    """A process with the marks of a supervisor in this launcher's home."""
    marks = host.mark(uuid.uuid4(), 1) | {"PILOT_HOME": str(launcher.home), "PILOT_TEST_MARK": launcher.mark}
    return subprocess.Popen(
        ["bash", "-c", script], env=os.environ | marks, start_new_session=True, preexec_fn=die_with_us
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """One home for all: the first start creates the database, the others find it."""
    folder = Path(tempfile.mkdtemp(prefix="pilot-up-"))
    folder.chmod(0o755)
    yield folder / "home"
    processes.clean_leftovers(folder / "home")
    shutil.rmtree(folder)


@pytest.fixture
def started(home: Path) -> Iterator[list[Launcher]]:
    """Launchers of this test; those that a failed test left are ended."""
    launchers: list[Launcher] = []
    yield launchers
    for launcher in launchers:
        if launcher.process.poll() is None:
            launcher.process.terminate()
            launcher.process.wait(timeout=90)


def test_life(home: Path, started: list[Launcher]) -> None:
    """Ready, usable, alone in its home, and gone after Ctrl-C."""
    first = Launcher(home)
    started.append(first.ready())
    api, ui = first.ports
    for url in (f"http://127.0.0.1:{api}/readyz", f"http://127.0.0.1:{ui}/_stcore/health"):
        assert urllib.request.urlopen(url).status == 200
    for name in ("api", "ui", "worker"):
        listening = {c.laddr.ip for c in first.child(name).net_connections() if c.status == psutil.CONN_LISTEN}
        assert listening <= {"127.0.0.1"}

    second = Launcher(home)
    started.append(second)
    said = second.ended(1)
    assert f"already running from {home} (launcher pid {first.process.pid})" in said
    assert "directory and ports of its own" in said

    # Without an address, the command line asks the platform of its home.
    assert pilot("run", "list", PILOT_HOME=str(home), PILOT_API_URL="").stdout.startswith("There are no runs yet.")

    assert first.pilot("run", "list").stdout.startswith("There are no runs yet.")
    assert json.loads(first.pilot("run", "list", "--json").stdout)["runs"] == []
    preset = "pipeline/presets/demo.yaml"
    refused = first.pilot("run", "start", preset, "--set", "method.p_lower=0.9", "--set", "updates.lr=1e-4")
    assert refused.returncode == 2
    assert {line.split(":")[0].strip() for line in refused.stderr.splitlines()[1:]} == {"method", "updates"}
    nobody = first.pilot("run", "show", str(uuid.uuid4()))
    assert nobody.returncode == 2 and "There is no such run" in nobody.stderr

    check_tokens(first)

    first.process.send_signal(signal.SIGINT)
    assert "Everything that was started is stopped." in first.ended(0)
    assert processes.recorded(home) == []
    assert not (home / "addresses.json").exists()


def check_tokens(launcher: Launcher) -> None:
    """Nothing goes without a token, the launcher's own are private, and more can be made and revoked."""
    home, url = launcher.home, f"http://127.0.0.1:{launcher.ports[0]}"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/api/v1/runs")
    secrets = [(home / name).read_text().strip() for name in ("token", "dashboard.token")]
    assert {(home / name).stat().st_mode & 0o777 for name in ("token", "dashboard.token")} == {0o600}
    told = launcher.text + "".join(path.read_text(errors="replace") for path in (home / "logs").iterdir())
    assert not any(secret in told for secret in secrets)
    # Another address, which this home's platform did not record, gets no token of it.
    assert "A token is needed" in pilot("run", "list", PILOT_HOME=str(home), PILOT_API_URL=f"{url}/").stderr

    made = launcher.pilot("token", "create", "ci", "--scope", "run", "--days", "7")
    secret = made.stdout.strip()
    assert re.fullmatch(r"pilot_[A-Za-z0-9_-]{43}", secret) and "shown this once" in made.stderr
    assert pilot("run", "list", PILOT_API_URL=url, PILOT_TOKEN=secret).returncode == 0
    refused = pilot("token", "list", PILOT_API_URL=url, PILOT_TOKEN=secret)
    assert refused.returncode == 1 and "needs a token with the scope 'admin'" in refused.stderr
    (line,) = [line for line in launcher.pilot("token", "list").stdout.splitlines() if " ci " in line]
    assert launcher.pilot("token", "revoke", line[:8]).stdout == "The token 'ci' is revoked.\n"
    gone = pilot("run", "list", PILOT_API_URL=url, PILOT_TOKEN=secret)
    assert gone.returncode == 1 and "was revoked" in gone.stderr and "Set PILOT_TOKEN" in gone.stderr


def test_killed_launcher(home: Path, started: list[Launcher]) -> None:
    """The next start ends what it left, here an API and a supervisor that do not notice its death, and no more."""
    first = Launcher(home)
    started.append(first.ready())
    first.child("api").suspend()
    supervisor = supervised(first, "sleep 1000")
    processes.record(home, "supervisor-of-a-run", supervisor.pid)
    bystander = subprocess.Popen(["sleep", "1000"], preexec_fn=die_with_us)
    try:
        first.process.kill()
        first.process.wait()
        assert processes.wait_until(lambda: len(first.offspring()) == 2, timeout_s=20), first.offspring()

        kept = (home / "token").read_text()
        second = Launcher(home)
        started.append(second.ready())
        assert (home / "token").read_text() == kept, "a token that works is kept"
        assert "that was killed left running: api." in second.text
        assert "Saving 1 run " in second.text, "with the database up, and the grace of any other stop"
        assert supervisor.wait(timeout=5) == -signal.SIGTERM
        assert "supervisor-of-a-run" not in [entry.name for entry in processes.recorded(home)]
        assert first.offspring() == []

        stubborn = supervised(second, "trap '' TERM; while :; do sleep 1; done")
        second.process.terminate()
        assert processes.wait_until(lambda: "Saving 1 run" in second.text, timeout_s=30)
        time.sleep(0.5)
        assert stubborn.poll() is None
        second.process.terminate()  # the second signal hurries
        assert stubborn.wait(timeout=10) == -signal.SIGKILL
        second.ended(0)
        assert bystander.poll() is None
    finally:
        for process in (supervisor, bystander):
            process.kill()
            process.wait()


def test_part_that_ends_by_itself_is_started_again(home: Path, started: list[Launcher]) -> None:
    """At the same address, while a run trains on in the same attempt; a signal meanwhile ends all as ever."""
    launcher = Launcher(home)
    started.append(launcher.ready())
    run_id = launcher.pilot("run", "start", "demo", "--set", "budget.steps=100000").stdout.split()[-1]
    before = trains_on(launcher, run_id, 0)
    titles = {"api": "API", "ui": "dashboard", "worker": "worker"}
    for name, title in (titles | {"postgres": "private postgres", "broker": "private broker"}).items():
        kill_and_wait(launcher, name)
        assert re.search(f"^The {title} ended by itself.*; it is started again", launcher.text, re.M), launcher.text
        before = trains_on(launcher, run_id, before)
    assert urllib.request.urlopen(f"http://127.0.0.1:{launcher.ports[1]}/_stcore/health").status == 200

    launcher.child("api").kill()
    launcher.process.send_signal(signal.SIGINT)
    said = launcher.ended(0)
    assert "so everything is stopped" not in said and "Saving 1 run" in said


def kill_and_wait(launcher: Launcher, name: str) -> None:
    """Until another process is recorded in its place."""
    ended = launcher.child(name)
    ended.kill()

    def replaced() -> bool:
        found = [processes.find(entry) for entry in processes.recorded(launcher.home) if entry.name == name]
        return any(process not in (None, ended) for process in found)

    assert processes.wait_until(replaced, timeout_s=60), launcher.text


def trains_on(launcher: Launcher, run_id: str, before: int) -> int:
    """The step that the run has come to, after `before` and in its first attempt. It answers at the same port."""
    run: dict[str, Any] = {}

    def further() -> bool:
        shown = launcher.pilot("run", "show", run_id, "--json")
        run.update(json.loads(shown.stdout) if shown.returncode == 0 else {})
        return bool(run) and run["step"] > before

    assert processes.wait_until(further, timeout_s=90, every_s=0.5), (run, launcher.text)
    assert run["state"] == "running" and run["attempt"] == 1
    return int(run["step"])


def test_part_that_ends_again_and_again(home: Path, started: list[Launcher]) -> None:
    """The third end within a minute is told with the tail of its log, and the rest is stopped."""
    launcher = Launcher(home)
    started.append(launcher.ready())
    for _ in range(2):
        kill_and_wait(launcher, "worker")
    launcher.child("worker").kill()
    said = launcher.ended(1)
    assert said.count("The worker ended by itself (signal SIGKILL); it is started again.") == 2
    assert "The worker ended by itself (signal SIGKILL), so everything is stopped. Its log" in said


def test_part_that_ends_before_it_was_ready(home: Path, started: list[Launcher]) -> None:
    launcher = Launcher(home)
    started.append(launcher)
    assert processes.wait_until(lambda: (home / "processes/api.json").exists(), timeout_s=READY_S)
    launcher.child("api").kill()
    said = launcher.ended(1)
    assert "The API ended by itself (signal SIGKILL), so everything is stopped. Its log" in said
    assert "started again" not in said


def test_signal_while_it_starts(home: Path, started: list[Launcher]) -> None:
    launcher = Launcher(home)
    started.append(launcher)
    assert processes.wait_until(lambda: (home / "processes/api.json").exists(), timeout_s=READY_S)
    launcher.process.send_signal(signal.SIGHUP)
    assert "Ready" not in launcher.ended(128 + signal.SIGHUP)


def test_ports_in_use_are_all_told_with_commands_that_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one, socket.socket() as two:
        for taken in (one, two):
            taken.bind(("127.0.0.1", 0))
            taken.listen()
        busy = {"api": one.getsockname()[1], "ui": two.getsockname()[1]}
        with pytest.raises(Failure) as caught:
            ports.check(busy, demo=True)
    said = str(caught.value)
    assert f"Port {busy['api']} is in use" in said and f"Port {busy['ui']} is in use" in said
    command = re.search(
        r"\./pilot up --demo --port-api (\d+) --port-ui (\d+)\n  make demo PORT_API=(\d+) PORT_UI=(\d+)", said
    )
    assert command is not None
    api, ui = int(command[1]), int(command[2])
    assert command.groups()[2:] == (str(api), str(ui))
    ports.check({"api": api, "ui": ui})

    monkeypatch.setattr(ports, "DEFAULTS", {"api": busy["api"], "ui": ui})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", busy["api"]))
        taken.listen()
        with pytest.raises(Failure, match=r"make up PORT_API=\d+$"):
            ports.check({"api": busy["api"], "ui": ui})


def test_port_in_use(home: Path, tmp_path: Path, started: list[Launcher]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        launcher = Launcher(tmp_path / "home", "--port-ui", port)
        started.append(launcher)
        said = launcher.ended(1)
        assert f"Port {port} is in use by" in said and f"(pid {os.getpid()})" in said
        api = launcher.ports[0]
        assert f"  ./pilot up --port-api {api} --port-ui " in said and f"  make up PORT_API={api} PORT_UI=" in said
        assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("DATABASE_URL", "postgresql://me:sesame@127.0.0.1:{port}/x"),
        ("REDIS_URL", "redis://:sesame@127.0.0.1:{port}/0"),
    ],
)
def test_given_server_that_is_away(variable: str, url: str, tmp_path: Path, started: list[Launcher]) -> None:
    launcher = Launcher(tmp_path / "home", **{variable: url.format(port=free_port())})
    started.append(launcher)
    said = launcher.ended(1)
    assert f"Cannot use {variable}=" in said and f"unset {variable}" in said
    assert "sesame" not in said and "Traceback" not in said


def test_launcher_loads_no_torch() -> None:
    script = "import sys, cli.__main__, cli.up, cli.demo, cli.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
