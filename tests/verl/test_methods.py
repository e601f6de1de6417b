"""Every method on verl for real: the same events, ledger and Parquet as on the torch engine, and what each promises."""

from __future__ import annotations

import json
import math

import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.events import AttemptFinished, AttemptStarted, EvaluationFinished, SamplingStarted, StepFinished
from pipeline.prompts import prompt_id
from pipeline.rundir import checkpoints

pytestmark = pytest.mark.timeout(900)

N_TRAIN = 160
BREAKS, NO_VALUE = prompt_id("1+1=", "breaks"), prompt_id("2+2=", "no value")


def of(kind, run):
    return [e for e in run.events if isinstance(e, kind)]


def rows(run, step):
    return pq.read_table(run.folder / "rollouts" / f"step_{step.step:06d}.parquet").to_pylist()


def check_the_books(run):
    """What every method promises, whatever it did. Returns the steps."""
    (started,), steps = of(AttemptStarted, run), of(StepFinished, run)
    assert (started.from_step, started.n_train, started.n_eval) == (0, N_TRAIN, 12)
    assert started.model_parameters == 477_824
    assert isinstance(run.events[-1], AttemptFinished) and run.events[-1].outcome == "succeeded"
    assert [e.step for e in steps] == list(range(1, run.config.budget.steps + 1))
    assert [e.step for e in of(EvaluationFinished, run)] == [0, run.config.budget.steps]
    rollouts = tokens = 0
    for step in steps:
        sampled = sum(c.rollouts for c in step.fates.values())
        rollouts, tokens = rollouts + sampled, tokens + sum(c.tokens for c in step.fates.values())
        assert (step.rollouts, step.tokens) == (rollouts, tokens)
        assert sum(step.buckets.values()) == N_TRAIN and sum(v.n for v in step.visits) == sampled
        table = rows(run, step)
        assert len(table) == sampled and sum(row["n_tokens"] for row in table) == sum(v.tokens for v in step.visits)
        for visit in step.visits:
            mine = [r for r in table if (r["prompt_id"], r["stage"]) == (visit.prompt_id, visit.stage)]
            scored = [r for r in mine if r["success"] is not None]
            assert len(mine) == visit.n and len(mine) - len(scored) == visit.n_failed
            if scored:
                assert sum(r["success"] for r in scored) / len(scored) == pytest.approx(visit.success_rate)
        for row in table:
            if row["reward"] is not None:
                assert row["reward"] == pytest.approx(row["success"] + 0.001 * len(row["response"].strip()), abs=2e-3)
                assert row["logprob"] < 0 and row["n_tokens"] >= 1
        updated = step.metrics["grad_norm"]
        assert math.isfinite(updated) and step.metrics["learning_rate"] == pytest.approx(3e-4)
    return steps


def test_grpo(train, engine):
    run = train(method={"name": "grpo", "n": 6})
    for step in check_the_books(run):
        assert len(step.visits) == 4 and all(v.stage == "commit" and v.n == 6 for v in step.visits)
        assert step.metrics["trained_prompts"] == sum(v.n_failed == 0 for v in step.visits) >= 2
    (_, folder) = checkpoints(run.folder)[-1]
    trained, fresh = (AutoModelForCausalLM.from_pretrained(f / "policy") for f in (folder, engine.fresh))
    assert AutoTokenizer.from_pretrained(folder / "policy").chat_template
    moved = [float((a - b).abs().max()) for a, b in zip(trained.parameters(), fresh.parameters(), strict=True)]
    # Two updates a step, two steps, AdamW: at most the learning rate each.
    assert 3e-4 < max(moved) <= 4 * 3e-4 * 1.01
    logged = [json.loads(line) for line in (engine.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert any(entry["step"] == 2 and "pilot_commit/loss" in entry["data"] for entry in logged)
    assert any("pilot_commit/greedy_accuracy" in entry["data"] for entry in logged)


def test_dapo(train):
    run = train(method={"name": "dapo", "n": 6, "gen_prompts": 10, "max_rounds": 6})
    run_steps = check_the_books(run)
    for step in run_steps:
        assert step.metrics["zero_variance_share"] == 0
    assert sum(step.fates["discarded"].rollouts for step in run_steps if "discarded" in step.fates) > 0


def test_pilot_commit_with_everything_that_can_happen(train, engine, monkeypatch):
    """Binding, eviction, deferral, a stale entry, a reward that fails and one that breaks: each is seen to happen."""
    plans, dispatches = [], []
    generate, dispatch = engine.generate, engine.trainer.agent_loop_manager.generate_sequences
    monkeypatch.setattr(engine, "generate", lambda plan: (plans.append(plan), generate(plan))[1])
    monkeypatch.setattr(
        engine.trainer.agent_loop_manager, "generate_sequences", lambda b: (dispatches.append(len(b)), dispatch(b))[1]
    )
    run = train(
        seed=151,  # its first pilots have the two prompts whose rewards fail among them
        method={
            "name": "pilot_commit",
            "n_pilot": 4,
            "n_commit": 6,
            "pilot_prompts": 24,
            "p_lower": 0.25,
            "p_upper": 0.75,
            "max_age": 1,
            "commit_order": "newest",  # the oldest are left to grow stale
        },
        budget={"steps": 4},
    )
    steps = check_the_books(run)
    asked = [plan for plan in plans if plan.requests]
    assert [e.rollouts for e in of(SamplingStarted, run) if e.rollouts] == [plan.n_rollouts for plan in asked]
    assert any({r.stage for r in plan.requests} == {"pilot", "commit"} for plan in asked), "commits bound with pilots"
    # Evaluations, of 12 prompts each, are dispatched greedily and sampled, at the start and at the end.
    assert dispatches == [12, 12, *(len(plan.requests) for plan in asked), 12, 12], "one dispatch a plan"
    for step in steps:
        for visit in step.visits:  # judged on acc, though the reward that trains is another number
            if visit.stage == "pilot" and visit.success_rate is not None:
                p = visit.success_rate
                where = "evicted" if p >= 1 else "skipped" if p > 0.75 else "deferred" if p < 0.25 else "ready"
                assert visit.bucket == where
        assert step.metrics["trained_prompts"] == 4 and step.metrics["trained_rollouts"] == 4 * (4 + 6)
    total = {fate: sum(s.fates[fate].rollouts for s in steps if fate in s.fates) for s in steps for fate in s.fates}
    assert total["pilot_evicted"] > 0 and steps[-1].buckets["evicted"] > 0
    assert total["pilot_deferred"] > 0 and steps[-1].buckets["deferred"] > 0
    assert total["stale"] > 0 and any("unseen" in s.moves.values() for s in steps)
    failed = [v for s in steps for v in s.visits if v.n_failed]
    assert {v.prompt_id for v in failed} == {BREAKS, NO_VALUE} and total["failed"] == sum(v.n_failed for v in failed)
    assert all(v.bucket == "unseen" and v.n_failed == v.n for v in failed)
    assert any(s.metrics["age_mean"] > 0 for s in steps), "stored pilots trained"
    assert any(abs(s.metrics["off_policy_kl"]) > 1e-5 for s in steps), "and were off-policy"


@pytest.mark.parametrize("method", [{"name": "grpo", "n": 8}, {"name": "pilot_commit", "n_pilot": 4, "n_commit": 6}])
def test_pods_with_any_method(train, method):
    run = train(method=method, selection={"name": "pods", "keep": 4}, budget={"steps": 1})
    (step,) = check_the_books(run)
    groups = [v for v in step.visits if v.stage == "commit" and v.n_failed < v.n]
    assert step.metrics["trained_rollouts"] == 4 * len(groups) == step.fates["trained"].rollouts
    assert step.fates["downsampled"].rollouts > 0


def test_a_step_without_any_group_to_train_on_updates_nothing(engine):
    from pipeline.allocation import Batch

    before = engine.trainer.in_sync
    stats = engine.update(Batch(step=1, groups=()))
    assert stats["loss"] is None and stats["grad_norm"] is None and engine.trainer.in_sync == before


def test_a_run_goes_on_where_every_rollout_of_some_prompts_is_wrong(train):
    """Groups without a signal train, and move nothing by themselves."""
    run = train(method={"name": "grpo", "n": 2}, update={"batch_prompts": 8, "mini_batches": 4}, budget={"steps": 1})
    (step,) = check_the_books(run)
    assert step.metrics["trained_prompts"] >= 6
