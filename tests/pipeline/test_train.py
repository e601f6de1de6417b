"""The trainer as a process: it learns, stops, resumes bit for bit, and says why it cannot start."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

from pipeline.checkpoint import load_state
from pipeline.config import load_config
from pipeline.events import (
    AttemptFinished,
    AttemptStarted,
    CheckpointSaved,
    EvaluationFinished,
    EventLog,
    MarksApplied,
    PromptsLoaded,
    SamplingStarted,
    StepFinished,
    events_path,
    read_events,
)
from pipeline.prompts import load_run_prompts
from pipeline.rundir import MARKS, checkpoints, evaluation_folder, saved

BUNDLED = "pipeline/bundled/"


@pytest.fixture
def run_dir(tmp_path):
    """A small Pilot-Commit run on the first of the bundled prompts, ready to start."""
    for kind, n in (("train", 160), ("eval", 20)):
        lines = Path(f"{BUNDLED}prompts.{kind}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"{kind}.jsonl").write_text("".join(lines[:n]), encoding="utf-8")
    (tmp_path / "mini.jsonl").write_text("".join(lines[20:26]), encoding="utf-8")
    folder = tmp_path / "run"
    folder.mkdir()
    configure(folder)
    return folder


def configure(folder, **changes):
    config = {
        "model": {"path": BUNDLED + "policy"},
        "data": {"train": str(folder.parent / "train.jsonl"), "eval": str(folder.parent / "eval.jsonl")},
        "method": {"name": "pilot_commit", "n_pilot": 4, "n_commit": 8, "max_age": 2, "p_lower": 0.25},
        "sampling": {"max_new_tokens": 8},
        "update": {"batch_prompts": 4, "mini_batches": 2, "lr": 3e-4},
        "evaluation": {
            "every": 3,
            "samples": 2,
            "top_p": 0.9,
            "benchmarks": [
                {
                    "name": "mini",
                    "data": str(folder.parent / "mini.jsonl"),
                    "samples": 4,
                    "temperature": 0.7,
                    "reward": {"name": "numeric"},
                }
            ],
        },
        "budget": {"steps": 12},
        "checkpoint": {"every": 2, "keep": 2},
        "engine": {"name": "torch", "threads": 1},
    }
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def start(folder, attempt=1, *more):
    command = [sys.executable, "-m", "pipeline", "train", str(folder), "--attempt", str(attempt), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(folder, attempt=1):
    process = start(folder, attempt)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output, events(folder, attempt)


def events(folder, attempt=1):
    return [e for e, _ in read_events(events_path(folder, attempt))]


def of(kind, found):
    return [e for e in found if isinstance(e, kind)]


def wait_for_step(folder, step, process, attempt=1):
    """Until the step is told, or the process has ended by itself."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        path = events_path(folder, attempt)
        if path.exists() and any(isinstance(e, StepFinished) and e.step >= step for e, _ in read_events(path)):
            return
        time.sleep(0.01)
    assert process.poll() is not None, f"step {step} never came"


def test_a_whole_run(run_dir):
    code, output, found = run(run_dir)
    assert code == 0, output
    assert [e.seq for e in found] == list(range(1, len(found) + 1))
    assert isinstance(found[-1], AttemptFinished) and found[-1].outcome == "succeeded"
    (started,) = of(AttemptStarted, found)
    assert (started.from_step, started.n_train, started.n_eval) == (0, 160, 20)
    assert sum(len(e.prompts) for e in of(PromptsLoaded, found)) == 160
    steps = of(StepFinished, found)
    assert [e.step for e in steps] == list(range(1, 13))
    assert [e.step for e in of(EvaluationFinished, found)] == [0, 3, 6, 9, 12]
    check_evaluations(run_dir, of(EvaluationFinished, found))
    rollouts = 0
    for e in steps:
        sampled = sum(c.rollouts for c in e.fates.values())
        rollouts += sampled
        assert e.rollouts == rollouts and sum(v.n for v in e.visits) == sampled
        assert sum(e.buckets.values()) == 160
        table = pq.read_table(run_dir / "rollouts" / f"step_{e.step:06d}.parquet").to_pylist()
        assert len(table) == sampled
        for visit in e.visits:
            rewards = [r["reward"] for r in table if (r["prompt_id"], r["stage"]) == (visit.prompt_id, visit.stage)]
            assert len(rewards) == visit.n and sum(rewards) / visit.n == pytest.approx(visit.success_rate)
    assert steps[-1].buckets["committed"] > 0
    policy = checkpoints(run_dir)[-1][1] / "policy"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    AutoModelForCausalLM.from_pretrained(policy)
    assert AutoTokenizer.from_pretrained(policy).chat_template


def test_the_log_follows_the_run_and_a_reader_that_goes_does_not_end_it(run_dir, monkeypatch):
    """Its supervisor may be killed: the trainer is to end by the sweep, not as one that failed."""
    configure(run_dir, budget={"steps": 3})
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    code, output, found = run(run_dir)
    assert code == 0
    times = [datetime.fromisoformat(line.split(" ")[0]) for line in output.splitlines()]
    assert all(0 <= (datetime.now(UTC) - time).total_seconds() < 600 for time in times), "UTC, and it says so"
    lines = [line[len("2026-12-01T02:39:29Z ") :] for line in output.splitlines()]
    assert lines[0].startswith("attempt 1 begins: 160 prompts to train on, 20 held out, ")
    assert [line for line in lines if line.startswith("step ")] and lines[
        -1
    ] == "succeeded after step 3: all 3 steps done"
    for e in of(StepFinished, found):
        (line,) = (line for line in lines if line.startswith(f"step {e.step}: trained on 4 prompts (48 rollouts), "))
        assert f"loss {e.metrics['loss']:.4g}" in line and f"; {e.rollouts:,} rollouts so far; " in line
    assert [line for line in lines if line.startswith("checkpoint")] == [
        f"checkpoint of step {e.step} saved" for e in of(CheckpointSaved, found)
    ]
    (run_dir / "config.json").write_text(
        json.dumps(json.loads((run_dir / "config.json").read_text()) | {"budget": {"steps": 5}})
    )
    process = start(run_dir, 2)
    process.stdout.close()
    process.wait(120)  # 120 is how Python ends when nobody takes its last words
    assert events(run_dir, 2)[-1].outcome == "succeeded"


def check_evaluations(run_dir, found):
    """The numbers of each benchmark are those of the responses that are kept, and its spend is theirs."""
    for e in found:
        held_out, hard = e.benchmarks
        assert (held_out.name, held_out.samples, held_out.temperature, held_out.top_p) == ("held-out", 2, 1.0, 0.9)
        assert (hard.name, hard.samples, hard.temperature, hard.top_p) == ("mini", 4, 0.7, 0.9)
        assert (e.sampled_accuracy, e.greedy_accuracy) == (held_out.accuracy, held_out.greedy_accuracy)
        assert (e.mean_accuracy, e.mean_stderr) == (hard.accuracy, hard.stderr), "the held-out set is not in the mean"
        for result in e.benchmarks:
            rows = pq.read_table(evaluation_folder(run_dir, e.step) / f"{result.name}.parquet").to_pylist()
            sampled = [r for r in rows if not r["greedy"]]
            assert len(rows) == result.rollouts and sum(r["n_tokens"] for r in rows) == result.tokens
            assert sum(r["accuracy"] for r in sampled) / len(sampled) == pytest.approx(result.accuracy)
            assert len(sampled) == result.n_prompts * result.samples
            assert len({r["prompt_id"] for r in rows}) == result.n_prompts
            assert all((r["extracted"] is None or r["accuracy"] == (r["extracted"] == r["answer"])) for r in rows)
            assert result.pass_at["1"] == pytest.approx(result.accuracy)
            assert result.pass_at["1"] <= result.pass_at[str(result.samples)]
        assert e.eval_rollouts == sum(b.rollouts for b in e.benchmarks) == 20 * 3 + 6 * 4
        assert e.eval_tokens == sum(b.tokens for b in e.benchmarks) > 0
        assert hard.greedy_accuracy is None and 0 <= hard.majority <= 1


def wish(folder, wishes):
    """As a supervisor would: whole, and with wishes that were applied already as long as it has not heard of it."""
    draft = folder / "marks.new"
    draft.write_text(json.dumps({"marks": wishes}))
    draft.replace(folder / MARKS)


def wait_for_marks(folder, process, attempt):
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None:
        if of(MarksApplied, events(folder, attempt)):
            return
        time.sleep(0.003)


def test_killed_at_any_moment_and_resumed_is_bit_for_bit_the_same(run_dir, tmp_path):
    """kill -9 at random moments, again and again, until the run ends: same decisions, weights and allocator state as
    those of a run that was never killed and had the same marks before the same steps."""
    rng = random.Random(7)
    killed = tmp_path / "killed"
    killed.mkdir()
    configure(killed)
    ids = [p.id for p in load_run_prompts(load_config(killed / "config.json"))[0].prompts]
    wishes = []
    attempt, total, standing, unfinished, applied, told_again = 1, 0, {}, 0, {}, 0
    while True:
        process = start(killed, attempt)
        if attempt <= 4:
            # Within a step, between two, or while a checkpoint is being written.
            wait_for_step(killed, max(standing, default=0) + rng.randrange(1, 3), process, attempt)
            marks = ("exclude", "pin", "retest", "exclude", "retest", "clear")
            wishes += [(len(wishes) + i, mark, rng.choice(ids)) for i, mark in enumerate(marks, 1)]
            wish(killed, wishes)
            if attempt % 2:
                wait_for_marks(killed, process, attempt)
            else:
                time.sleep(rng.random() * 0.1)
            process.kill()
        code = process.wait(timeout=120)
        assert code in ((0, -signal.SIGKILL) if attempt <= 4 else (0,)), process.stdout.read()
        found = events(killed, attempt)
        for e in of(MarksApplied, found):
            told_again += e.step in applied
            before = applied.get(e.step, [])
            assert e.marks[: len(before)] == before, "again before the same step"
            applied[e.step] = e.marks  # others may join when it was killed before the step began
        (started,) = of(AttemptStarted, found)
        lost = unfinished + sum(n for step, n in standing.items() if step > started.from_step)
        assert started.lost.rollouts == lost, "what is sampled again is booked as lost"
        standing = {step: n for step, n in standing.items() if step <= started.from_step}
        total, unfinished = total + unfinished, 0
        for e in found:
            if isinstance(e, SamplingStarted):
                unfinished += e.rollouts
            if isinstance(e, StepFinished):
                standing[e.step] = sum(c.rollouts for c in e.fates.values())
                total += standing[e.step]
                assert e.rollouts == total
                assert standing[e.step] <= unfinished
                unfinished = 0
        if code == 0:
            break
        attempt += 1
    assert attempt > 2, "it was to be killed at least twice"
    assert told_again, "a mark was to be lost with a step at least once"
    given = [mark.id for marks in applied.values() for mark in marks]
    assert given == list(range(1, len(given) + 1)) and len(given) >= 12, "each wish once, in order"
    # The run that was never killed gets its marks as if an attempt before it had come nowhere but told of them.
    journal = EventLog(events_path(run_dir, 1))
    for step, marks in applied.items():
        journal.append(MarksApplied(step=step, marks=marks))
    journal.close()
    code, output, whole = run(run_dir, 2)
    assert code == 0, output
    assert {e.step: e.marks for e in of(MarksApplied, whole)} == applied
    expected = {e.step: e for e in of(StepFinished, whole)}
    told = [e for a in range(1, attempt + 1) for e in of(StepFinished, events(killed, a))]
    assert {e.step for e in told} == expected.keys() and len(told) > len(expected)
    for e in told:  # those that were lost and made again, too
        same = {"visits", "moves", "fates", "buckets", "epoch"}
        assert e.model_dump(include=same) == expected[e.step].model_dump(include=same)
        for name in ("loss", "grad_norm", "reward_variance", "entropy"):
            assert e.metrics[name] == expected[e.step].metrics[name]
    check_marks(whole)
    (_, mine), (_, theirs) = checkpoints(killed)[-1], checkpoints(run_dir)[-1]
    a, b = load_file(mine / "policy" / "model.safetensors"), load_file(theirs / "policy" / "model.safetensors")
    assert all((a[k] == b[k]).all() for k in a) and a.keys() == b.keys()
    assert repr(load_state(mine)["allocator"]) == repr(load_state(theirs)["allocator"])


def check_marks(found):
    """Excluded prompts are not visited while they are; those to be tested again are, in the very step."""
    excluded, retests = set(), set()
    for e in found:
        if isinstance(e, MarksApplied):
            for record in e.marks:
                if record.mark == "retest":
                    retests |= {record.prompt_id} - excluded
                    continue
                retests -= {record.prompt_id}
                excluded = excluded - {record.prompt_id} | ({record.prompt_id} if record.mark == "exclude" else set())
        elif isinstance(e, StepFinished):
            pilots = [v.prompt_id for v in e.visits if v.stage == "pilot"]
            assert not excluded & {v.prompt_id for v in e.visits}
            assert {*pilots[: len(retests)]} == retests
            retests = set()
    assert excluded


def test_sigterm_finishes_the_step_and_a_new_attempt_goes_on(run_dir):
    configure(run_dir, budget={"steps": 10_000})
    process = start(run_dir)
    wait_for_step(run_dir, 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    found = events(run_dir)
    stopped = found[-1]
    assert stopped.outcome == "stopped" and stopped.step == of(StepFinished, found)[-1].step
    assert checkpoints(run_dir)[-1][0] == stopped.step
    configure(run_dir, budget={"steps": stopped.step + 1})
    pool = load_run_prompts(load_config(run_dir / "config.json"))[0].prompts
    wishes = [(i, "exclude", prompt.id) for i, prompt in enumerate(pool, 1)]
    wish(run_dir, wishes)
    code, output, nothing = run(run_dir, 2)
    assert code == 0 and not of(StepFinished, nothing), output
    assert nothing[-1].outcome == "stopped" and "excluded, the others solved: include some" in nothing[-1].reason
    wish(run_dir, [*wishes, *((1000 + i, "clear", prompt.id) for i, prompt in enumerate(pool[:40]))])
    code, output, again = run(run_dir, 3)
    assert code == 0, output
    assert of(AttemptStarted, again)[0].from_step == stopped.step and of(AttemptStarted, again)[0].lost.rollouts == 0
    assert [e.step for e in of(StepFinished, again)] == [stopped.step + 1]
    (step,) = of(StepFinished, again)
    assert step.visits and {v.prompt_id for v in step.visits} <= {prompt.id for prompt in pool[:40]}


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        ({"rollouts": 200}, "rollout budget: "),
        ({"tokens": 1500}, "token budget: "),
        ({"wall_clock_s": 0.01}, "time budget: "),
        ({"gpu_hours": 1e-6}, "GPU budget: "),
    ],
)
def test_budgets_are_hard(run_dir, budget, reason):
    configure(run_dir, budget={"steps": 50, **budget})
    code, output, found = run(run_dir)
    assert code == 0, output
    assert found[-1].outcome == "succeeded" and found[-1].reason.startswith(reason)
    steps = of(StepFinished, found)
    assert len(steps) < 50
    if not steps:
        assert budget.keys() <= {"wall_clock_s", "gpu_hours"}, "loading alone takes longer"
        return
    assert steps[-1].rollouts <= budget.get("rollouts", 10**9) and steps[-1].tokens <= budget.get("tokens", 10**9)


def test_time_of_earlier_attempts_counts(run_dir):
    configure(run_dir, budget={"steps": 50, "wall_clock_s": 1000})
    process = start(run_dir, 1, "--seconds-before", "999.9")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert events(run_dir)[-1].reason.startswith("time budget: 10")


def test_the_best_checkpoint_is_kept_beside_the_newest(run_dir):
    configure(run_dir, evaluation={"every": 2, "samples": 2}, checkpoint={"every": 2, "keep": 1, "keep_best": 1})
    code, output, found = run(run_dir)
    assert code == 0, output
    accuracy = {e.step: e.sampled_accuracy for e in of(EvaluationFinished, found)}
    best = max((a, step) for step, a in accuracy.items() if step)[1]
    assert [c.step for c in saved(run_dir)] == sorted({best, 12})
    assert all(c.accuracy == accuracy[c.step] and c.n_bytes > 100_000 for c in saved(run_dir))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"path": "nowhere"}}, "nowhere"),
        ({"data": {"train": "none.jsonl", "eval": BUNDLED + "prompts.eval.jsonl"}}, "data.train: no such file"),
        ({"update": {"lrr": 1}}, "update.lrr: unknown field 'lrr'"),
    ],
)
def test_a_run_that_cannot_start_says_why(run_dir, changes, reason):
    configure(run_dir, **changes)
    code, _, found = run(run_dir)
    assert code == 1 and found[-1].outcome == "failed" and reason in found[-1].reason
    assert not (run_dir / "checkpoints").exists()


def test_resuming_with_other_settings_or_prompts_is_refused(run_dir):
    configure(run_dir, budget={"steps": 2})
    assert run(run_dir)[0] == 0
    configure(run_dir, budget={"steps": 4}, method={"name": "grpo", "n": 4})
    code, _, found = run(run_dir, 2)
    assert code == 1 and "name was 'pilot_commit', is now 'grpo'" in found[-1].reason
    configure(run_dir, budget={"steps": 4})
    train = run_dir.parent / "train.jsonl"
    train.write_text("".join(train.read_text().splitlines(keepends=True)[:100]))
    code, _, found = run(run_dir, 3)
    assert code == 1 and "the training prompts have changed" in found[-1].reason
