"""A real trainer that is killed at twenty random moments ends bit for bit where one that was never killed does."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from pipeline.checkpoint import load_state
from pipeline.events import StepFinished, events_path, read_events
from pipeline.rundir import checkpoints
from tests.faults.test_outages import real_config
from worker import host
from worker.settings import APP_ROOT

pytestmark = pytest.mark.timeout(1800)  # it starts twenty real trainers
KILLS, STEPS = 20, 24
SEED = os.environ.get("PILOT_FAULT_SEED", "1")


def start(run_dir: Path, attempt: int) -> subprocess.Popen[bytes]:
    tests = os.getpid()
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", "train", str(run_dir), "--attempt", str(attempt)],
        cwd=APP_ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: host.die_with(tests),
    )


def new_run(folder: Path) -> Path:
    run_dir = folder / "run"
    run_dir.mkdir(parents=True)
    config = real_config(folder, STEPS)
    config["checkpoint"] = {"every": 1, "keep": 2, "keep_best": 1}  # a killed attempt gets one step further
    (run_dir / "config.json").write_text(json.dumps(config))
    return run_dir


def standing(run_dir: Path, attempts: int) -> dict[int, StepFinished]:
    """Of each step the one that counts: the last that was told."""
    found = {}
    for attempt in range(1, attempts + 1):
        path = events_path(run_dir, attempt)
        for event, _ in read_events(path) if path.exists() else ():
            if isinstance(event, StepFinished):
                found[event.step] = event
    return found


def test_killed_twenty_times_and_bit_for_bit_the_same(tmp_path: Path) -> None:
    whole = new_run(tmp_path / "whole")
    reference = start(whole, 1)
    killed = new_run(tmp_path / "killed")
    rng, attempt, kills = random.Random(f"{SEED} resume"), 0, 0
    while True:
        attempt += 1
        process = start(killed, attempt)
        if kills < KILLS:
            # From its first event on, for as long as about two steps: within steps, between them, while it saves.
            # One in five is killed while it still loads.
            moment = rng.random()
            if rng.random() < 0.2:
                time.sleep(moment * 2)
            else:
                while not events_path(killed, attempt).exists() and process.poll() is None:
                    time.sleep(0.01)
                while process.poll() is None and sum(1 for _ in read_events(events_path(killed, attempt))) < 2:
                    time.sleep(0.01)
                time.sleep(moment * 0.6)
            process.kill()
        code = process.wait(300)
        assert code in (0, -signal.SIGKILL)
        kills += code == -signal.SIGKILL
        if code == 0:
            break
    assert kills == KILLS, f"it came to its end after {kills} kills: give it more steps"
    assert reference.wait(600) == 0
    mine, theirs = standing(killed, attempt), standing(whole, 1)
    assert mine.keys() == theirs.keys() == set(range(1, STEPS + 1))
    for step, event in theirs.items():
        decided = {"visits", "moves", "fates", "buckets", "epoch"}
        assert mine[step].model_dump(include=decided) == event.model_dump(include=decided), step
        for name in ("loss", "grad_norm", "reward_variance", "entropy"):
            assert mine[step].metrics[name] == event.metrics[name], (step, name)
    (_, a), (_, b) = checkpoints(killed)[-1], checkpoints(whole)[-1]
    weights, expected = (load_file(folder / "policy" / "model.safetensors") for folder in (a, b))
    assert weights.keys() == expected.keys() and all((weights[k] == expected[k]).all() for k in expected)
    assert repr(load_state(a)["allocator"]) == repr(load_state(b)["allocator"])
