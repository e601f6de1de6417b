"""The trainer as a process: killed between two steps and within a save, resumed, stopped; nothing of it is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid

import psutil
import pyarrow.parquet as pq
import pytest

from db.slots import Device
from pipeline.checkpoint import load_state
from pipeline.config import load_config
from pipeline.engines.verl.start import scratch_of
from pipeline.events import (
    AttemptFinished,
    AttemptStarted,
    CheckpointSaved,
    EvaluationFinished,
    MarksApplied,
    StepFinished,
    events_path,
    read_events,
)
from pipeline.prompts import load_run_prompts, prompt_id
from pipeline.rundir import MARKS, checkpoints, evaluation_folder
from worker import devices, host

pytestmark = pytest.mark.timeout(1500)

RUN = uuid.uuid4()  # marks the processes, as a supervisor does
CPU_SLOT = Device("cpu", "0", "CPU slot 0")
TESTS = os.getpid()


def start(run_dir, attempt, command="train", *more):
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", command, str(run_dir), "--attempt", str(attempt), *more],
        stdout=(run_dir / f"log{attempt}.txt").open("w"),
        stderr=subprocess.STDOUT,
        env={**os.environ, **devices.environment([CPU_SLOT]), **host.mark(RUN, 1)},
        start_new_session=True,
        preexec_fn=lambda: host.die_with(TESTS),  # also when the test run is killed
    )


def events(run_dir, attempt):
    path = events_path(run_dir, attempt)
    return [e for e, _ in read_events(path)] if path.exists() else []


def of(kind, found):
    return [e for e in found if isinstance(e, kind)]


def wait_until(condition, process, run_dir, attempt, pause=0.2):
    """Until it holds. Fails with the end of the log when the process ends before."""
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        if process.poll() is not None:
            log = (run_dir / f"log{attempt}.txt").read_text()[-3000:]
            pytest.fail(f"the trainer ended with {process.returncode}: {log}")
        time.sleep(pause)


def gone():
    return not [p for p in host.processes_of(RUN, 1) if p.status() != psutil.STATUS_ZOMBIE]


def kill(process):
    process.send_signal(signal.SIGKILL)
    assert process.wait(30) == -signal.SIGKILL
    assert host.kill_all_of(RUN, 1) and gone()


def stored(state):
    """The buffer as it was saved: prompt, step of sampling, keys of the trajectories."""
    buffer = state["allocator"]["buffer"]
    return [(entry["prompt"], entry["step"], [key for d in entry["data"] for key in d["keys"]]) for entry in buffer]


def test_killed_resumed_stopped(configure, tmp_path):
    run_dir = tmp_path / "run"
    pilot_commit = {
        "name": "pilot_commit",
        "n_pilot": 4,
        "n_commit": 4,
        "pilot_prompts": 24,
        "p_lower": 0.25,
        "max_age": 3,
    }
    shaped = [
        {"reward": {"name": "numeric"}},  # fails on two prompts whose answers have no number
        {"weight": 0.5, "reward": {"name": "overlong", "max_tokens": 8, "cache": 6}},
    ]
    configure(
        run_dir,
        seed=151,  # its first pilots have these two prompts among them
        method=pilot_commit,
        reward={"name": "sum", "parts": shaped},
        budget={"steps": 1000},
        checkpoint={"every": 1, "keep": 4},
        engine={"overrides": {}},
    )
    root = run_dir / "checkpoints"

    # 1. Killed between two steps, or within one: after a checkpoint and before the next.
    process = start(run_dir, 1)
    wait_until(lambda: any(e.step >= 2 for e in of(CheckpointSaved, events(run_dir, 1))), process, run_dir, 1)
    kill(process)
    first = events(run_dir, 1)
    step, folder = checkpoints(run_dir)[-1]
    saved = load_state(folder)
    assert step >= 2 and stored(saved), "pilots wait in the checkpoint"
    standing = {e.step: e for e in of(StepFinished, first)}

    check_rewards(run_dir, first)

    # 2. Resumed, and killed while it writes a checkpoint.
    process = start(run_dir, 2)
    wait_until(lambda: any(root.glob(f".writing_{step + 1:06d}")), process, run_dir, 2, pause=0.001)
    kill(process)
    second = events(run_dir, 2)
    check_resumed(second, step, standing, saved)
    step, folder = checkpoints(run_dir)[-1]
    saved = load_state(folder)

    # 3. Resumed again, with marks of prompts, and stopped as a user would.
    trained = next(
        v.prompt_id for e in reversed(first + second) for v in getattr(e, "visits", ()) if v.stage == "commit"
    )
    prompts = load_run_prompts(load_config(run_dir / "config.json"))[0].prompts
    waiting = [prompts[entry["prompt"]].id for entry in saved["allocator"]["buffer"]]
    shut_out = [p for p in [*waiting, *(prompt.id for prompt in prompts)] if p != trained][:30]
    wished = [[1, "pin", trained], *([2 + i, "exclude", p] for i, p in enumerate(shut_out))]
    (run_dir / MARKS).write_text(json.dumps({"marks": wished}))
    process = start(run_dir, 3)
    wait_until(lambda: any(map(pilots, marked_steps(events(run_dir, 3))[1:])), process, run_dir, 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 0, (run_dir / "log3.txt").read_text()[-3000:]
    third = events(run_dir, 3)
    standing |= {e.step: e for e in of(StepFinished, second)}
    booked = (
        of(AttemptStarted, second)[0].lost.rollouts if step not in {e.step for e in of(StepFinished, second)} else 0
    )
    check_resumed(third, step, standing, saved, booked)
    (applied,) = of(MarksApplied, third)
    assert [list(mark) for mark in applied.marks] == wished
    under_marks = marked_steps(third)
    assert not {v.prompt_id for e in under_marks for v in e.visits} & {*shut_out}, "excluded: neither pilot nor commit"
    assert next(filter(None, map(pilots, under_marks)))[0] == trained, "pinned: first, although it had its turn"
    last = third[-1]
    assert isinstance(last, AttemptFinished) and last.outcome == "stopped", last
    assert checkpoints(run_dir)[-1][0] == last.step == of(StepFinished, third)[-1].step
    assert not list(root.glob(".*")), "what the killed ones left half written is gone"
    check_nothing_left(run_dir)

    # 4. The newest checkpoint measured, as the platform does when it is asked to.
    own = tmp_path / "own"
    own.mkdir()
    (own / "config.json").write_text((run_dir / "config.json").read_text())
    process = start(own, 1, "evaluate", "--of", str(run_dir), "--step", str(last.step))
    assert process.wait(300) == 0, (own / "log1.txt").read_text()[-3000:]
    (found,) = of(EvaluationFinished, events(own, 1))
    (held_out,) = found.benchmarks
    assert (found.step, held_out.n_prompts, held_out.samples, held_out.rollouts) == (last.step, 12, 2, 36)
    rows = pq.read_table(evaluation_folder(run_dir, last.step) / "held-out.parquet").to_pylist()
    sampled = [row["accuracy"] for row in rows if not row["greedy"]]
    assert len(rows) == 36 and sum(sampled) / len(sampled) == pytest.approx(held_out.accuracy)
    check_nothing_left(own)


def marked_steps(found):
    """Those that ended under the marks."""
    return [e for mark in of(MarksApplied, found) for e in of(StepFinished, found) if e.step >= mark.step]


def pilots(step):
    return [v.prompt_id for v in step.visits if v.stage == "pilot"]


def check_nothing_left(run_dir):
    deadline = time.monotonic() + 60
    while not gone() and time.monotonic() < deadline:  # Ray's helpers notice by themselves, some seconds later
        time.sleep(0.2)
    assert gone(), "it ended Ray and vLLM itself"
    assert not scratch_of(run_dir).exists(), "and its folder in /tmp"


def check_rewards(run_dir, found):
    """Our reward manager: the sum trains, numeric judges, and what has no value is no zero."""
    rows = [
        row
        for e in of(StepFinished, found)
        for row in pq.read_table(run_dir / "rollouts" / f"step_{e.step:06d}.parquet").to_pylist()
    ]
    for row in rows:
        if row["success"] is not None:
            penalty = max(-1.0, min(0.0, (2 - row["n_tokens"]) / 6))
            assert row["reward"] == pytest.approx(row["success"] + 0.5 * penalty)
            assert json.loads(row["verdicts"])["overlong"]["value"] == pytest.approx(penalty)
    failed = [v for e in of(StepFinished, found) for v in e.visits if v.n_failed]
    assert {v.prompt_id for v in failed} == {prompt_id("1+1=", "breaks"), prompt_id("2+2=", "no value")}
    assert all(v.n_failed == v.n and v.bucket == "unseen" for v in failed)
    assert sum(row["success"] is None for row in rows) == sum(v.n_failed for v in failed)


def check_resumed(found, step, standing, saved, booked=0):
    """It went on from that checkpoint with the same buffer, evictions and ledger; the rest is booked as lost.

    booked: rollouts that an attempt in between has booked as lost already, without a checkpoint of its own.
    """
    started = of(AttemptStarted, found)[0]
    assert started.from_step == step
    told = [e for e in standing.values() if e.step > step]
    assert started.lost.rollouts >= sum(sum(c.rollouts for c in e.fates.values()) for e in told)
    at = standing.get(step)
    now = of(StepFinished, found)[0]
    assert now.step == step + 1
    pool = saved["allocator"]["pool"]
    assert pool["epoch"] <= now.epoch
    if at is not None:
        # Nobody leaves `evicted`, and the buffer's rollouts are those that the ledger has as waiting.
        assert now.buckets["evicted"] >= at.buckets["evicted"]
        assert at.metrics["buffer_size"] == len(stored(saved)) == at.buckets["ready"]
        assert now.rollouts == at.rollouts + booked + started.lost.rollouts + sum(
            c.rollouts for c in now.fates.values()
        )
    # Stored pilots were trained on: their trajectories came back with the checkpoint.
    committed = [v for v in now.visits if v.stage == "commit"]
    trained = now.fates["trained"].rollouts
    assert trained == 8 * len(committed) and now.metrics["trained_rollouts"] == trained
    if len(stored(saved)) >= len(committed):
        assert now.metrics["age_mean"] > 0
