"""kill -9 of each part, and of all at once, at random moments: every run ends right, its books balance.

35 runs in all. PILOT_FAULT_SEED=7 tries other moments.
"""

from __future__ import annotations

import os
import random
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from sqlalchemy.orm import Session

from db import tokens
from tests.faults.conftest import PATIENCE_S, Platform
from tests.worker.conftest import CONFIG

pytestmark = pytest.mark.timeout(900)  # on a machine that is busy with other things, too
SEED = os.environ.get("PILOT_FAULT_SEED", "1")
RUNS, STEPS, STEP_S, KILLS = 5, 40, 0.15, 3


def kill_trainer(platform: Platform, rng: random.Random) -> bool:
    return platform.kill_random(platform.trainers(), rng)


def kill_supervisor(platform: Platform, rng: random.Random) -> bool:
    return platform.kill_random(platform.supervisors(), rng)


def kill_worker(platform: Platform, rng: random.Random) -> bool:
    platform.kill_part("worker")
    time.sleep(rng.random() * 2)
    platform.start_worker()
    return True


def kill_postgres(platform: Platform, rng: random.Random) -> bool:
    platform.servers.kill("postgres")
    time.sleep(rng.random() * 3)
    platform.servers.start("postgres")
    return True


def kill_broker(platform: Platform, rng: random.Random) -> bool:
    platform.servers.kill("broker")
    time.sleep(rng.random() * 3)
    platform.servers.start("broker")
    return True


def kill_everything(platform: Platform, rng: random.Random) -> bool:
    platform.kill_everything()
    for name in ("postgres", "broker"):
        platform.servers.start(name)
    platform.start_worker()
    return True


Kill = Callable[[Platform, random.Random], bool]


@pytest.mark.parametrize(
    "kill", [kill_trainer, kill_supervisor, kill_worker, kill_postgres, kill_broker, kill_everything]
)
def test_killed_at_random_moments(platform: Platform, kill: Kill) -> None:
    rng = random.Random(f"{SEED} {kill.__name__}")
    run_ids = [platform.new_run(steps=STEPS, step_s=STEP_S) for _ in range(RUNS)]
    platform.start_worker()
    platform.wait_for(run_ids[0], lambda run: run.state != "queued")
    kills, deadline = 0, time.monotonic() + PATIENCE_S
    while kills < KILLS:
        time.sleep(rng.random() * 2.5)
        kills += kill(platform, rng)
        assert time.monotonic() < deadline
    platform.wait_for_end(run_ids)
    assert all(platform.run(run_id).step == STEPS for run_id in run_ids)
    if kill in (kill_trainer, kill_supervisor, kill_everything):
        assert max(platform.fences()) > 2, "a run was claimed more than once: it hit something that was alive"
    platform.check(run_ids)


def test_the_api_is_killed_while_runs_are_started_and_watched(platform: Platform) -> None:
    """A client that repeats its request with the same key has started one run, not none and not two."""
    rng = random.Random(f"{SEED} api")
    with Session(platform.engine) as session, session.begin():
        _, secret = tokens.create(session, name="ci", scope="run")
    headers = {"authorization": f"Bearer {secret}"}
    platform.start_worker()
    platform.start_api()
    ended = threading.Event()

    def keep_killing() -> None:
        while not ended.wait(rng.random() * 0.8):
            platform.kill_part("api")
            platform.start_api()
            platform.wait_for_api()

    started: list[uuid.UUID] = []
    platform.wait_for_api()
    killer = threading.Thread(target=keep_killing)
    killer.start()
    try:
        for i in range(RUNS):
            config: dict[str, Any] = CONFIG | {"name": f"step {STEP_S}", "seed": i, "budget": {"steps": STEPS}}
            answer = insist(
                lambda i=i, config=config: httpx.post(  # type: ignore[misc]
                    f"{platform.api_url}/api/v1/runs",
                    json={"config": config},
                    headers=headers | {"idempotency-key": f"run-{i}"},
                    timeout=10,
                )
            )
            assert answer.status_code == 201, answer.text
            started.append(uuid.UUID(answer.json()["id"]))
            ended.wait(rng.random())
    finally:
        ended.set()
        killer.join(PATIENCE_S)
    platform.kill_part("api")  # it would end with the thread that started it
    platform.start_api()
    platform.wait_for_api()
    listed = insist(lambda: httpx.get(f"{platform.api_url}/api/v1/runs", headers=headers, timeout=10)).json()["runs"]
    assert sorted(run["id"] for run in listed) == sorted(map(str, started)) and len(set(started)) == RUNS
    platform.wait_for_end(started)
    platform.check(started)


def insist(ask: Callable[[], httpx.Response]) -> httpx.Response:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
