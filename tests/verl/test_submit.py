"""A trainer as a Ray job, on a real Ray cluster of this test's own: followed, stopped, killed, nothing of it left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.config import ROOT
from pipeline.engines.verl.job import MARK, say
from pipeline.events import AttemptFinished, events_path, read_events

pytest.importorskip("ray", reason="the verl set is not installed: make test-verl sets it up")
pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 240.0  # the machine may be busy

# A trainer that hears SIGTERM, unless it is deaf: `up` once it and, in a Ray actor, a server and its engine are there.
TRAINER = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
run_dir, deaf = Path(sys.argv[1]), sys.argv[2] == "deaf"
import ray
ray.init(address="auto")

@ray.remote(num_cpus=0)
class Server:
    def start(self):
        # as an engine that got away: a session of its own, and no parent
        script = "import os, time; os.fork() and os._exit(0); print(os.getpid(), flush=True); time.sleep(600)"
        engine = subprocess.Popen([sys.executable, "-c", script], start_new_session=True, stdout=subprocess.PIPE)
        return [os.getpid(), int(engine.stdout.readline())]

server = Server.remote()
pids = [os.getpid(), *ray.get(server.start.remote())]
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
(run_dir / "pids.json").write_text(json.dumps(pids))
print("up", flush=True)
while deaf or not stopped:
    time.sleep(0.1)
print("finished the step", flush=True)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[str, str]]:
    """The address of a Ray job server, and the token that it asks for."""
    import requests

    token, port = secrets.token_hex(32), free_port()
    with tempfile.TemporaryDirectory(prefix="pr", dir="/tmp") as folder:  # Ray's sockets need a short path
        ports = {"port": free_port(), "dashboard-port": port, "dashboard-agent-listen-port": free_port()}
        ports |= {"dashboard-agent-grpc-port": free_port(), "ray-client-server-port": free_port()}
        ports |= {"metrics-export-port": free_port(), "runtime-env-agent-port": free_port()}
        options = {**ports, "temp-dir": folder, "num-cpus": 4, "num-gpus": 0, "object-store-memory": 100_000_000}
        options |= {"node-ip-address": "127.0.0.1", "dashboard-host": "127.0.0.1", "include-dashboard": "true"}
        env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        head = subprocess.Popen(
            [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
            + [f"--{name}={value}" for name, value in options.items()],
            env=env | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token, "RAY_raylet_start_wait_time_s": "120"},
            stdout=(said := Path(folder) / "head.log").open("w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

        def ready() -> bool:
            assert head.poll() is None, said.read_text()
            try:
                answer = requests.get(
                    f"http://127.0.0.1:{port}/nodes?view=summary",
                    headers={"authorization": f"Bearer {token}"},
                    timeout=5,
                    proxies={"http": ""},
                )
                nodes = answer.json()["data"]["summary"]
            except (OSError, ValueError, KeyError):
                return False
            return bool(nodes) and bool(nodes[0].get("agent") or nodes[0].get("ip"))

        try:
            until(ready, "the Ray head's job server did not come up")
            yield f"http://127.0.0.1:{port}", token
        finally:
            left = []
            if head.poll() is None:
                own = [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]
                head.terminate()
                _, left = psutil.wait_procs(own, timeout=30)
            for process in left:
                process.kill()
            head.wait()


class Follower:
    """`follow` in a process of its own, as the supervisor starts it."""

    def __init__(self, cluster: tuple[str, str], run_dir: Path, attempt: int = 1, **options: Any) -> None:
        self.run_dir, self.attempt = run_dir, attempt
        run_dir.mkdir(exist_ok=True)
        command = options.get("command") or [sys.executable, "-c", TRAINER, str(run_dir), options.get("mode", "good")]
        call = (
            "import json, sys; from pathlib import Path; from pipeline.engines.verl.submit import follow; "
            "a, d, n, c, p = json.loads(sys.argv[1]); sys.exit(follow(a, Path(d), n, c, p))"
        )
        given = json.dumps([cluster[0], str(run_dir), attempt, command, options.get("patience_s", 120.0)])
        self.log = run_dir / f"follower{attempt}.log"
        env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", call, given],
            cwd=ROOT,
            env=env | {"RAY_AUTH_TOKEN": cluster[1], "PILOT_STOP_GRACE_S": str(options.get("grace_s", 60))},
            stdout=self.log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def text(self) -> str:
        return self.log.read_text()

    def up(self) -> list[int]:
        """Wait for the trainer. Returns the processes of the job."""
        until(lambda: "\nup\n" in self.text() or self.process.poll() is not None, "the trainer did not start")
        assert self.process.poll() is None, self.text()
        return list(json.loads((self.run_dir / "pids.json").read_text()))

    def ended(self) -> int:
        return self.process.wait(PATIENCE_S)

    def reason(self) -> str:
        """Of the only event in the attempt's log."""
        ((event, _),) = read_events(events_path(self.run_dir, self.attempt))
        assert isinstance(event, AttemptFinished) and event.outcome == "failed"
        return event.reason


def alive(pids: list[int]) -> list[int]:
    return [p for p in pids if psutil.pid_exists(p) and psutil.Process(p).status() != psutil.STATUS_ZOMBIE]


def test_a_job_is_followed_to_its_end(cluster: tuple[str, str], tmp_path: Path) -> None:
    script = f"import os; print('mark', os.environ['{MARK}'], flush=True); print('in', os.getcwd(), flush=True)"
    follower = Follower(cluster, tmp_path / "run 7", command=[sys.executable, "-c", script])
    assert follower.ended() == 0, follower.text()
    job = follower.text().split("mark ")[1].split()[0]
    assert job.startswith("pilot-run-7-") and job.endswith("-1")
    assert f"in {ROOT}\n" in follower.text() and f"{job}: SUCCEEDED" in follower.text()


def test_a_job_that_fails_before_the_trainer_begins(cluster: tuple[str, str], tmp_path: Path) -> None:
    follower = Follower(
        cluster, tmp_path / "run", command=[sys.executable, "-c", "import sys; sys.exit('no such GPU')"]
    )
    assert follower.ended() == 1, follower.text()
    assert "ended before training began" in follower.reason() and "no such GPU" in follower.reason()


def test_a_stop_lets_the_step_finish(cluster: tuple[str, str], tmp_path: Path) -> None:
    follower = Follower(cluster, tmp_path / "run")
    pids = follower.up()
    follower.process.send_signal(signal.SIGTERM)
    assert follower.ended() == 0, follower.text()
    assert "finished the step" in follower.text()
    until(lambda: not alive(pids[:2]), "Ray did not end the actors")


def test_a_deaf_trainer_is_gone_within_the_grace_period(cluster: tuple[str, str], tmp_path: Path) -> None:
    follower = Follower(cluster, tmp_path / "run", mode="deaf", grace_s=30)
    pids = follower.up()
    follower.process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    until(lambda: not alive(pids[:2]), "the trainer or its server is left")
    assert time.monotonic() - start < 30
    assert follower.ended() == -signal.SIGKILL, "so that the supervisor sees a trainer that was killed"
    until(lambda: not alive(pids), "the engine that got away is left")
    assert "did not end in time and is killed" in follower.text()


def test_the_next_attempt_ends_what_a_killed_follower_left(cluster: tuple[str, str], tmp_path: Path) -> None:
    first = Follower(cluster, tmp_path / "run", mode="deaf")
    pids = first.up()
    first.process.kill()
    first.ended()
    (tmp_path / "run" / "pids.json").unlink()
    second = Follower(cluster, tmp_path / "run", attempt=2)
    others = second.up()
    assert "which an earlier attempt left" in second.text()
    assert not alive(pids) and len(alive(others)) == 3, "the first is gone before the second starts"
    second.process.send_signal(signal.SIGTERM)
    assert second.ended() == 0, second.text()


def test_a_job_without_a_follower_ends_by_itself(cluster: tuple[str, str], tmp_path: Path) -> None:
    follower = Follower(cluster, tmp_path / "run", mode="deaf", patience_s=5.0)
    pids = follower.up()
    follower.process.kill()
    until(lambda: not alive(pids[:2]), "the job goes on without its follower")
    busy = Follower(cluster, tmp_path / "run", attempt=2, command=[sys.executable, "-c", "print('free')"])
    assert busy.ended() == 0, busy.text()


def test_a_cluster_takes_one_run_at_a_time(cluster: tuple[str, str], tmp_path: Path) -> None:
    first = Follower(cluster, tmp_path / "one")
    first.up()
    second = Follower(cluster, tmp_path / "two")
    assert second.ended() == 1
    assert "engine.ray_address: the Ray cluster is busy with another run (pilot-one-" in second.reason()
    first.process.send_signal(signal.SIGTERM)
    assert first.ended() == 0, first.text()


def test_a_token_that_the_cluster_does_not_know(cluster: tuple[str, str], tmp_path: Path) -> None:
    follower = Follower((cluster[0], "0" * 64), tmp_path / "run")
    assert follower.ended() == 1
    assert "engine.ray_address: no Ray job server that takes jobs answers there" in follower.reason()
    assert "the cluster asks for another token" in follower.reason()


def test_no_cluster_is_told_by_the_trainer_itself(tmp_path: Path) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    config = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}}
    config["engine"] = {"name": "verl", "ray_address": address}
    (tmp_path / "config.json").write_text(json.dumps(config))
    trainer = [sys.executable, "-m", "pipeline", "train", str(tmp_path)]
    assert subprocess.run(trainer, cwd=ROOT, timeout=PATIENCE_S, check=False).returncode == 1
    ((event, _),) = read_events(events_path(tmp_path, 1))
    assert isinstance(event, AttemptFinished)
    assert "no Ray job server that takes jobs answers there: ConnectError" in event.reason and address in event.reason


def test_the_real_trainer_is_told_what_the_cluster_lacks(
    cluster: tuple[str, str], configure: Callable[..., Any], tmp_path: Path
) -> None:
    """As the supervisor starts it: submitted, verl composed in the job, and the cluster asked for its GPUs."""
    run_dir = tmp_path / "run"
    configure(run_dir, engine={"ray_address": cluster[0]})
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    command = [sys.executable, "-m", "pipeline", "train", str(run_dir), "--attempt", "1"]
    done = subprocess.run(
        command, cwd=ROOT, env=env | {"RAY_AUTH_TOKEN": cluster[1]}, capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 1, done.stdout
    ((event, _),) = read_events(events_path(run_dir, 1))
    assert isinstance(event, AttemptFinished)
    assert event.reason.startswith("engine.gpus_per_node: the Ray cluster has 0 GPUs, fewer than nodes=1 x")
    assert "actor_rollout_ref:" in (run_dir / "verl_config.yaml").read_text()


def inside(file: Path, patience_s: float, script: str) -> subprocess.Popen[str]:
    """job.py, as Ray starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline.engines.verl.job", str(file), "--log", str(file.with_name("log"))]
        + ["--patience", str(patience_s), "--", sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


DEAF = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"


def test_a_job_ends_as_its_trainer_did(tmp_path: Path) -> None:
    say(tmp_path / "word", "go")
    assert inside(tmp_path / "word", 60, "import sys; sys.exit(3)").wait(PATIENCE_S) == 3
    assert inside(tmp_path / "word", 60, "import os; os.kill(os.getpid(), 11)").wait(PATIENCE_S) == 128 + 11


def first_line(file: Path) -> str:
    return str(until(lambda: file.exists() and file.read_text().partition("\n")[0], "the trainer says nothing"))


def test_a_job_listens_to_its_follower(tmp_path: Path) -> None:
    say(tmp_path / "word", "go")
    job = inside(tmp_path / "word", 60, "import time; print('up', flush=True); time.sleep(600)")
    assert first_line(tmp_path / "log") == "up"
    say(tmp_path / "word", "stop")
    assert job.wait(PATIENCE_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("said", [True, False])
def test_silence_ends_a_job(said: bool, tmp_path: Path) -> None:
    if said:
        say(tmp_path / "word", "go")
    job = inside(tmp_path / "word", 2, DEAF)
    assert job.wait(PATIENCE_S) == 128 + signal.SIGKILL
    assert job.stdout is not None and "Nobody has followed this job for 2 s" in job.stdout.read()


def test_a_run_directory_that_is_not_shared(tmp_path: Path) -> None:
    job = inside(tmp_path / "elsewhere" / "word", 60, DEAF)
    assert job.wait(PATIENCE_S) == 2
    assert job.stdout is not None and "must be on storage that the cluster's nodes share" in job.stdout.read()


def test_a_trainer_does_not_outlive_its_job(tmp_path: Path) -> None:
    say(tmp_path / "word", "go")
    job = inside(tmp_path / "word", 60, DEAF)
    trainer = int(first_line(tmp_path / "log"))
    job.kill()
    until(lambda: not alive([trainer]), "the trainer is left")
