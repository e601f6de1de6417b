"""The whole path on the real services: REST -> Postgres -> broker -> Celery worker -> supervisor -> trainer -> buckets.

`pilot up` runs as a user would run it; only its database and broker are the tests' own, so that what arrived can be
read in the tables themselves.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pyarrow.parquet as pq
import pytest

from api.client import ApiError, Client
from api.schemas import RunDetail
from pipeline.config import ROOT
from pipeline.events import StepFinished, events_path, read_events
from worker import host

BUNDLED = "pipeline/bundled/"
MARK = "PILOT_E2E"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def stack(database_url: str, broker_url: str, home: Path) -> Iterator[Client]:
    """`pilot up` on free ports; afterwards Ctrl-C must leave nothing behind."""
    api, ui = free_port(), free_port()
    command = [sys.executable, "-m", "cli", "up", "--port-api", str(api), "--port-ui", str(ui)]
    log = (home / "up.log").open("w+")
    parent = os.getpid()
    up = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=log,
        stderr=log,
        env={**os.environ, MARK: str(home)},
        preexec_fn=lambda: host.die_with(parent),  # when the tests are killed
    )
    try:
        deadline = time.monotonic() + 90
        while "Ready" not in (home / "up.log").read_text():
            assert up.poll() is None and time.monotonic() < deadline, (home / "up.log").read_text()
            time.sleep(0.1)
        with Client(f"http://127.0.0.1:{api}", (home / "token").read_text().strip()) as client:
            yield client
    finally:
        up.send_signal(signal.SIGINT)
        code = up.wait(timeout=60)
        log.close()
    assert code in (0, 130), (home / "up.log").read_text()
    assert marked(home) == []


def marked(home: Path) -> list[str]:
    """Processes that descend from our `pilot up`, however they detached."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == str(home):
                found.append(" ".join(process.cmdline()))
        except (psutil.Error, OSError):
            continue
    return found


def config(name: str, steps: int) -> dict[str, object]:
    return {
        "name": name,
        "model": {"path": BUNDLED + "policy"},
        "data": {"train": BUNDLED + "prompts.train.jsonl", "eval": BUNDLED + "prompts.eval.jsonl"},
        "method": {"name": "pilot_commit", "n_pilot": 4, "n_commit": 8},
        "sampling": {"max_new_tokens": 8},
        "update": {"batch_prompts": 8, "mini_batches": 2, "lr": 1e-4},
        "evaluation": {"every": 1000, "samples": 1},
        "budget": {"steps": steps},
        "engine": {"name": "torch", "threads": 1},
    }


def follow(client: Client, run_id: object, until: set[str], seconds: float = 120) -> list[dict[str, int]]:
    """The different bucket counts seen on the way."""
    seen: list[dict[str, int]] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        run = client.get_run(run_id)  # type: ignore[arg-type]
        counts = client.buckets(run.id).counts
        if counts and (not seen or counts != seen[-1]):
            seen.append(counts)
        if run.state in until:
            return seen
        time.sleep(0.1)
    raise AssertionError(f"the run is {run.state} ({run.reason}) after {seconds} s")


def test_start_watch_stop_finish(stack: Client, database_url: str, home: Path) -> None:
    endless = stack.create_run(config("endless", 100_000))
    short = stack.create_run(config("short", 12))
    assert {endless.state, short.state} <= {"queued", "starting", "running"}

    seen = follow(stack, short.id, {"succeeded"})
    assert len(seen) >= 3, "the buckets change while it runs"
    finished = stack.get_run(short.id)
    assert finished.step == 12 and finished.reason == "all 12 steps done"
    assert finished.first_accuracy is not None and finished.accuracy is not None
    assert sum(finished.buckets.values()) == sum(1 for _ in (ROOT / BUNDLED / "prompts.train.jsonl").open())

    follow(stack, endless.id, {"running"})
    while stack.get_run(endless.id).step < 3:
        time.sleep(0.1)
    out, again, *_ = (row.id for row in stack.prompts(endless.id, sort="-step", limit=2).prompts)
    stack.mark_prompts(endless.id, "exclude", [out])
    stack.mark_prompts(endless.id, "retest", [again])
    excluded, tested = wait_until_applied(stack, endless.id, out), wait_until_applied(stack, endless.id, again)
    stack.stop_run(endless.id)
    follow(stack, endless.id, {"stopped"})
    stopped = stack.get_run(endless.id)
    (fresh,) = stack.prompts(endless.id, bucket="unseen", limit=1).prompts
    stack.mark_prompts(endless.id, "pin", [fresh.id])
    assert stopped.step >= 3 and stopped.reason == f"stopped on request after step {stopped.step}"
    assert [a.outcome for a in stopped.attempts] == ["stopped"]

    resumed = stack.resume_run(endless.id)
    assert resumed.state in ("queued", "starting", "running")
    while stack.get_run(endless.id).step < stopped.step + 2:
        time.sleep(0.1)
    stack.stop_run(endless.id)
    follow(stack, endless.id, {"stopped"})
    resumed = stack.get_run(endless.id)
    assert [a.from_step for a in resumed.attempts] == [0, stopped.step]
    assert wait_until_applied(stack, endless.id, fresh.id) == stopped.step + 1
    assert stack.prompt(endless.id, fresh.id).visits[0].step == stopped.step + 1
    assert tested in {visit.step for visit in stack.prompt(endless.id, again).visits if visit.stage == "pilot"}
    assert all(visit.step < excluded for visit in stack.prompt(endless.id, out).visits)

    for run in (finished, resumed):
        check_books(stack, run.id, database_url, home)
    evaluate_on_demand(stack, finished)


def wait_until_applied(client: Client, run_id: object, prompt_id: str) -> int:
    """The step from which on the prompt's newest mark holds."""
    deadline = time.monotonic() + 60
    while (step := client.prompt(run_id, prompt_id).marks[0].applied_step) is None:  # type: ignore[arg-type]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return step


def evaluate_on_demand(client: Client, run: RunDetail) -> None:
    """A worker measures the finished run's checkpoint, as the run did and with more samples."""
    before = client.ledger(run.id)
    asked = client.evaluate(run.id, {"step": 12, "benchmarks": ["held-out"], "samples": 2})
    deadline = time.monotonic() + 120
    while (found := client.get_evaluation(asked.id)).state not in ("succeeded", "stopped", "failed"):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    assert found.state == "succeeded", found.reason
    own, more = found.results
    assert (own.name, more.name, more.samples) == ("held-out", "held-out.k2", 2)
    assert own.accuracy == run.accuracy, "the same step, the same draws"
    (kept,) = (e for e in client.metrics(run.id).evaluations if e.step == 12)
    assert [b.name for b in kept.benchmarks] == ["held-out", "held-out.k2"] and kept.rollouts_spent == run.rollouts
    responses = pq.read_table(io.BytesIO(client.download_evaluation(run.id, 12, "held-out.k2")))
    assert responses.num_rows == more.rollouts == 2 * more.n_prompts + more.n_prompts
    after = client.ledger(run.id)
    spent = sum(e.rollouts for e in after.evaluation) - sum(e.rollouts for e in before.evaluation)
    assert spent == found.rollouts == own.rollouts + more.rollouts and found.seconds > 0
    assert after.fates == before.fates and after.sampled == before.sampled
    now = client.get_run(run.id)
    assert now.model_dump(exclude={"eval_rollouts", "eval_tokens"}) == run.model_dump(
        exclude={"eval_rollouts", "eval_tokens"}
    )
    assert "evaluated" not in client.log(run.id).text and client.evaluation_log(asked.id).attempt == 1


def check_books(client: Client, run_id: object, database_url: str, home: Path) -> None:
    """The fates add up to what was sampled, and every visit that the trainer told is in Postgres exactly once."""
    run = client.get_run(run_id)  # type: ignore[arg-type]
    ledger = client.ledger(run.id)
    assert sum(f.rollouts for f in ledger.fates) == ledger.sampled.rollouts == run.rollouts > 0
    assert sum(f.tokens for f in ledger.fates) == ledger.sampled.tokens == run.tokens > 0

    told: Counter[tuple[int, str, str]] = Counter()
    rollouts = 0
    for attempt in run.attempts:
        for event, _ in read_events(events_path(home / "runs" / str(run.id), attempt.attempt)):
            if isinstance(event, StepFinished):
                told.update((event.step, v.prompt_id, v.stage) for v in event.visits)
                rollouts += sum(v.n for v in event.visits)
    assert rollouts == run.rollouts
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT step, prompt_id, stage, n FROM prompt_visits WHERE run_id = %s", (run.id,)
        ).fetchall()
        steps = connection.execute("SELECT step FROM step_metrics WHERE run_id = %s", (run.id,)).fetchall()
    assert Counter((s, p, g) for s, p, g, _ in rows) == told and max(told.values()) == 1
    assert sum(n for *_, n in rows) == run.rollouts
    assert sorted(s for (s,) in steps) == list(range(1, run.step + 1))

    page = client.prompts(run.id, bucket="committed", sort="-visits", limit=5)
    history = client.prompt(run.id, page.prompts[0].id)
    mine = [(v.step, v.stage) for v in history.visits]
    assert sorted(mine) == sorted((s, g) for s, p, g in told if p == history.prompt.id)
    assert {"pilot", "commit"} <= {g for _, g in mine}


def test_what_cannot_start_is_refused_before_anything_exists(stack: Client, tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    twice = tmp_path / "twice.jsonl"
    twice.write_text('{"prompt": "1+1=", "answer": "2"}\n' * 2)
    good = config("bad", 1)
    data = good["data"]
    assert isinstance(data, dict)
    for changes, field, message in [
        ({"seeed": 1}, "seeed", "unknown field"),
        ({"method": {"name": "pilot_commit", "p_lower": 0.9}}, "method", "p_lower=0.9 is above p_upper=0.75"),
        ({"data": {**data, "train": str(empty)}}, "data.train", "has no prompts"),
        ({"data": {**data, "train": str(twice)}}, "data.train", "rows 1, 2"),
        ({"model": {"path": "/nowhere"}}, "model.path", "no such folder"),
    ]:
        with pytest.raises(ApiError) as caught:
            stack.create_run({**good, **changes})
        assert caught.value.problem.status == 422
        (error,) = caught.value.problem.errors
        assert error.field == field and message in error.message
    assert stack.list_runs().runs == []
