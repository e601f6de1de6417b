"""Each alert is raised by what it is for, and by nothing else."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from api.alerts import RECENT, Facts, alerts
from api.schemas import EvaluationOut, StepOut
from db.models import LedgerEntry, PromptVisit, Run
from tests.api.rows import add, add_run, step

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
METRICS = {"entropy": 1.0, "response_tokens": 100.0, "grad_norm": 0.5, "short_by": 0.0}


def steps(n: int = 60, seconds: float = 4.0, attempt: int = 1, **last: float) -> list[StepOut]:
    """Even steps; `last` changes the metrics of the last RECENT ones."""
    return [
        StepOut(
            step=i, attempt=attempt, epoch=0, rollouts=100 * i, tokens=1000 * i,
            metrics=METRICS | (last if i > n - RECENT else {}), finished_at=NOW + dt.timedelta(seconds=seconds * i),
        )
        for i in range(1, n + 1)
    ]  # fmt: skip


def facts(**changes: Any) -> Facts:
    """A run that is well."""
    given: dict[str, Any] = {
        "state": "running", "attempt": 1, "buckets": {"unseen": 50, "evicted": 50}, "evaluations": [], "failed": 0,
        "config": {"update": {"batch_prompts": 32}, "sampling": {"max_new_tokens": 128}},
        "judged": {"skipped": 20, "ready": 60, "deferred": 20}, "steps": steps(),
    }  # fmt: skip
    given |= changes
    last = given["steps"][-1].finished_at if given["steps"] else NOW
    return Facts(**{"clock": last + dt.timedelta(seconds=2)} | given)


def kinds(given: Facts) -> list[str]:
    found = alerts(given)
    assert all(a.title and a.suggestion and (a.evidence or a.kind == "stall") for a in found)
    return [a.kind for a in found]


def evaluation(number: int, accuracy: float) -> EvaluationOut:
    return EvaluationOut(
        step=number, greedy_accuracy=accuracy, sampled_accuracy=accuracy, stderr=0.01, samples=4, n_prompts=64,
        rollouts_spent=1, seconds=1, finished_at=NOW,
    )  # fmt: skip


def slow_end() -> list[StepOut]:
    found = steps()
    for i in range(-RECENT, 0):
        found[i] = found[i].model_copy(update={"finished_at": found[i - 1].finished_at + dt.timedelta(seconds=12)})
    return found


def spike() -> list[StepOut]:
    found = steps()
    found[-4] = found[-4].model_copy(update={"metrics": METRICS | {"grad_norm": 7.0}})
    return found


def test_one_prompt_is_told_as_one() -> None:
    for short_by, words in ((0.4, "1 prompt short per step:"), (1, "1 prompt short"), (3, "3 prompts short")):
        (found,) = alerts(facts(steps=steps(short_by=short_by)))
        assert found.evidence.startswith(words)


LATE = NOW + dt.timedelta(seconds=240)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"steps": []}, []),
        ({"steps": steps(1)}, []),
        ({"clock": LATE + dt.timedelta(seconds=59)}, []),
        ({"clock": LATE + dt.timedelta(seconds=61)}, ["stall"]),
        ({"clock": LATE + dt.timedelta(hours=1), "state": "stopping"}, []),
        ({"judged": {"skipped": 60, "evicted": 36, "ready": 4}}, ["too_easy"]),
        ({"judged": {"skipped": 90, "ready": 10}}, []),
        ({"judged": {"skipped": 19}}, []),
        ({"judged": {"deferred": 96, "ready": 4}}, ["too_hard"]),
        ({"buckets": {"unseen": 20, "evicted": 80}}, ["pool_dry"]),
        ({"buckets": {}}, []),
        ({"config": {}, "buckets": {"evicted": 9}}, []),
        ({"steps": steps(short_by=3)}, ["short_batches"]),
        ({"failed": 11}, ["reward_failures"]),
        ({"failed": 10}, []),
        ({"steps": steps(entropy=0.05)}, ["entropy_collapse"]),
        ({"steps": steps(entropy=0.3)}, []),
        ({"steps": steps(30, entropy=0.05)}, []),  # too early to say
        ({"steps": steps(response_tokens=20)}, ["length_collapse"]),
        ({"steps": steps(response_tokens=125)}, ["length_limit"]),
        ({"steps": spike()}, ["gradient_spike"]),
        ({"steps": steps(grad_norm=2.0)}, []),
        ({"steps": slow_end()}, ["throughput_drop"]),
        ({"evaluations": [evaluation(0, 0.5), evaluation(9, 0.3)]}, ["accuracy_fell"]),
        ({"evaluations": [evaluation(0, 0.5), evaluation(9, 0.49)]}, []),
        ({"state": "failed", "evaluations": [evaluation(0, 0.5), evaluation(9, 0.3)]}, ["accuracy_fell"]),
        # Another attempt's steps say nothing about this one's pace.
        ({"steps": [*steps(), *steps(3, attempt=2)], "attempt": 2}, []),
    ],
)
def test_alerts(changes: dict[str, Any], expected: list[str]) -> None:
    assert kinds(facts(**changes)) == expected


def test_the_worst_comes_first() -> None:
    found = alerts(facts(clock=LATE + dt.timedelta(hours=1), failed=5, steps=steps(short_by=3)))
    assert [(a.kind, a.level) for a in found] == [("stall", "bad"), ("short_batches", "warn")]
    (bad,) = alerts(dataclasses.replace(facts(), failed=300))
    assert (bad.kind, bad.level) == ("reward_failures", "bad")


def test_over_http(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", attempt=1, step=30, buckets={"unseen": 9}, rollouts=300)

    def visit(number: int, position: int, stage: str, bucket: str) -> PromptVisit:
        return PromptVisit(
            run_id=run.id, step=number, position=position, prompt_id=f"p{position}", stage=stage, attempt=1, n=8,
            n_failed=0, success_rate=0.0, reward_variance=0.0, tokens=80, bucket=bucket,
        )  # fmt: skip

    now = dt.datetime.now(dt.UTC)
    add(
        engine,
        *(step(run, n, finished_at=now - dt.timedelta(seconds=2 * (30 - n))) for n in range(1, 31)),
        *(visit(n, p, "pilot", "deferred" if n > 20 else "ready") for n in range(1, 31) for p in range(3)),
        *(visit(n, 3, "commit", "committed") for n in range(1, 31)),
        LedgerEntry(run_id=run.id, attempt=1, step=5, fate="failed", rollouts=50, tokens=0),
        LedgerEntry(run_id=run.id, attempt=1, step=25, fate="failed", rollouts=2, tokens=0),
    )
    found = api.get(f"/api/v1/runs/{run.id}/alerts").json()["alerts"]
    assert [(a["kind"], a["evidence"].split()[0]) for a in found] == [("too_hard", "30"), ("reward_failures", "2")]
    with engine.begin() as connection:
        connection.execute(sa.update(Run).values(state="succeeded"))
    assert api.get(f"/api/v1/runs/{run.id}/alerts").json() == {"alerts": []}
