"""Evaluations on demand by real workers: the slot, a worker that is lost, a stop, a checkpoint that is gone. What
measures is the real thing, on a checkpoint of the bundled policy.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import evaluations, runs
from db.models import Evaluation, Lease, Run, StepMetrics
from pipeline.asked import asked_config
from pipeline.checkpoint import save_checkpoint
from pipeline.config import RunConfig, TorchEngine, parse_config
from pipeline.engines.torch import Engine
from tests.worker.conftest import Stage

BUNDLED = "pipeline/bundled/"
STEP = 3
SLOW_S = 120.0  # a busy machine needs half a minute to load torch


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    rows = Path(f"{BUNDLED}prompts.eval.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, lines in (("eval", rows[:10]), ("mini", rows[40:45])):
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    return parse_config(
        {
            "model": {"path": BUNDLED + "policy"},
            "data": {"train": BUNDLED + "prompts.train.jsonl", "eval": str(tmp_path / "eval.jsonl")},
            "sampling": {"max_new_tokens": 8},
            "evaluation": {
                "samples": 2,
                "benchmarks": [{"name": "mini", "data": str(tmp_path / "mini.jsonl"), "samples": 4}],
            },
            "engine": {"name": "torch", "threads": 1},
        }
    )


@pytest.fixture
def trained(stage: Stage, config: RunConfig) -> uuid.UUID:
    """A run that has succeeded at step 3, with a checkpoint, and was not evaluated there."""
    with Session(stage.engine) as session, session.begin():
        run = runs.create(
            session, name="r", config=config.model_dump(mode="json"), config_digest="d", method="grpo", model="m"
        )
        run.state, run.reason, run.step, run.attempt = "succeeded", "all 3 steps done", STEP, 1
        run.finished_at = sa.func.now()
        session.add(
            StepMetrics(
                run_id=run.id, step=STEP, attempt=1, epoch=0, rollouts=96, tokens=960, metrics={}, buckets={},
                finished_at=sa.func.now(),
            )
        )  # fmt: skip
        run_id = run.id
    assert isinstance(config.engine, TorchEngine)
    save_checkpoint(stage.settings.run_dir(run_id), STEP, {}, Engine(config, config.engine, ()).save, keep=1)
    return run_id


def ask(
    stage: Stage, run_id: uuid.UUID, config: RunConfig, names: Sequence[str] | None = None, **changes: Any
) -> uuid.UUID:
    asked = asked_config(config, names, None, changes)
    with Session(stage.engine) as session, session.begin():
        return evaluations.create(
            session, run_id, step=STEP, config=asked.model_dump(mode="json"), config_digest="d", created_by="t"
        ).id


def evaluation_of(stage: Stage, run_id: uuid.UUID) -> Evaluation | None:
    with Session(stage.engine, expire_on_commit=False) as session:
        return session.get(Evaluation, (run_id, STEP))


def measuring_now(stage: Stage, evaluation_id: uuid.UUID) -> list[psutil.Process]:
    return [p for p in stage.processes_of(evaluation_id) if "evaluate" in p.cmdline()]


def measuring(stage: Stage, evaluation_id: uuid.UUID) -> psutil.Process:
    """The process that evaluates, as soon as there is one."""
    deadline = time.monotonic() + SLOW_S
    while not (found := measuring_now(stage, evaluation_id)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found[0]


def test_two_at_once_on_one_slot_while_the_worker_is_lost(
    stage: Stage, trained: uuid.UUID, config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOT_SLOTS", "1")
    before = stage.run(trained)
    first = ask(stage, trained, config)
    second = ask(stage, trained, config, ["mini"], samples=2)
    worker = stage.start("-m", "worker")
    measuring(stage, first).suspend()
    with Session(stage.engine) as session:
        holder = session.scalar(sa.select(Lease.holder).where(Lease.run_id == first)) or ""
        waits = runs.standings(session, [session.get_one(Run, second)])[second].reason
    assert waits == "it waits for a CPU slot (0 of 1 free; it is next)"
    worker.kill()
    psutil.Process(int(holder.split(":")[1])).kill()
    stage.start("-m", "worker")
    stage.wait_for_state(first, "succeeded", timeout_s=SLOW_S)
    stage.wait_for_state(second, "succeeded", timeout_s=SLOW_S)

    lost, again = stage.attempts(first)
    assert (lost.outcome, lost.reason) == ("lost", "its supervisor was gone; it begins again")
    (only,) = stage.attempts(second)
    assert again.finished_at is not None and again.finished_at <= only.started_at, "one slot, one after the other"
    assert again.seconds > 0 and stage.free_slots()["cpu"] == 1
    assert measuring_now(stage, first) + measuring_now(stage, second) == []

    run, found = stage.run(trained), evaluation_of(stage, trained)
    assert (run.state, run.reason, run.finished_at, run.attempt, run.rollouts) == (
        before.state, before.reason, before.finished_at, before.attempt, before.rollouts,
    )  # fmt: skip
    assert stage.attempts(trained) == []
    assert found is not None and found.rollouts_spent == 96 and run.accuracy == found.sampled_accuracy
    by_name = {b["name"]: b for b in found.benchmarks}
    assert list(by_name) == ["held-out", "mini", "mini.k2"]
    assert found.mean_accuracy == by_name["mini"]["accuracy"], "of the run's own benchmarks"
    # Twice 10 prompts with 2 samples and a greedy answer; 5 prompts with 4 and with 2. The lost one had not begun.
    assert {name: spend["rollouts"] for name, spend in run.eval_spend.items()} == {
        "held-out": 60, "mini": 20, "mini.k2": 10,
    }  # fmt: skip
    assert run.eval_rollouts == 90
    kept = stage.settings.run_dir(trained) / "evaluations" / "step_000003"
    assert {p.stem: pq.read_metadata(p).num_rows for p in kept.iterdir()} == {
        "held-out": 30, "mini": 20, "mini.k2": 10,
    }  # fmt: skip
    assert not list(stage.settings.run_dir(first).rglob("*.parquet"))


def test_a_stop_leaves_nothing_and_a_deleted_run_takes_its_evaluations_along(
    stage: Stage, trained: uuid.UUID, config: RunConfig
) -> None:
    long = ask(stage, trained, config, ["held-out"], samples=20_000)
    stage.start("-m", "worker")
    stage.wait_for_state(long, "running", SLOW_S)
    deadline = time.monotonic() + SLOW_S
    while len(most := stage.attempts(long)[-1].open_evaluation) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    with Session(stage.engine) as session, pytest.raises(runs.WrongState, match=f"is being evaluated \\({long}\\)"):
        runs.delete(session, trained)
    stage.request_stop(long)
    stopped = stage.wait_for_state(long, "stopped", SLOW_S)
    assert stopped.reason == "the evaluation was stopped on request" and measuring_now(stage, long) == []
    assert evaluation_of(stage, trained) is None
    assert most["held-out"]["rollouts"] == 30 and most["held-out.k20000"]["rollouts"] >= 200_000
    for spender in (trained, long):
        assert stage.run(spender).eval_spend == most, "nobody can tell how far it came with the second"

    folder = stage.settings.run_dir(trained)
    (checkpoint,) = (folder / "checkpoints").iterdir()
    checkpoint.rename(folder / "elsewhere")
    gone = ask(stage, trained, config)
    reason = stage.wait_for_state(gone, "failed", SLOW_S).reason or ""
    assert reason == f"the evaluation failed: {folder} has no checkpoint of step 3; there are: none"

    with Session(stage.engine) as session, session.begin():
        runs.delete(session, trained)
    deadline = time.monotonic() + SLOW_S
    with Session(stage.engine) as session:
        while session.scalar(sa.select(sa.func.count()).select_from(Run)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert not any(stage.settings.run_dir(i).exists() for i in (trained, long, gone))
