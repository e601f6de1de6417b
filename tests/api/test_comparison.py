"""What is computed of several runs: rollouts to target, ratios with intervals, groups, differences."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from api import comparison
from db import models
from tests.api.rows import CONFIG, add, add_run
from tests.api.test_compare import BEGAN, attempt


@pytest.mark.parametrize(
    ("accuracy", "target", "reached"),
    [
        ([0.2, 0.4, 0.6], 0.3, 50),
        ([0.2, 0.4, 0.6], 0.4, 100),
        ([0.2, 0.5, 0.3, 0.6], 0.5, 100),  # first reached, whatever came after
        ([0.5, 0.4, 0.6], 0.45, 125),  # the first one alone does not count: nothing was trained
        ([0.5, 0.5, 0.6], 0.5, 0),
        ([0.2, 0.4, 0.6], 0.61, math.inf),
        ([0.9], 0.5, math.inf),
        ([], 0.5, math.inf),
    ],
)
def test_first_reached(accuracy: list[float], target: float, reached: float) -> None:
    spent = [100.0 * i for i in range(len(accuracy))]
    assert comparison.first_reached(spent, accuracy, target) == pytest.approx(reached)


def test_an_interval_over_paired_seeds() -> None:
    """Where every seed has the same ratio there is nothing to be unsure of, if they are paired."""
    mine = [100.0, 300.0, 200.0, 900.0]
    theirs = [2 * cost for cost in mine]
    assert comparison.interval(mine, theirs) == pytest.approx((2.0, 2.0, 2.0))
    value, low, high = comparison.interval(mine, theirs, paired=False)
    assert value == pytest.approx(2.0) and low < 1.0 < 3.0 < high
    never = [math.inf, *mine[1:]]
    value, low, high = comparison.interval(mine, never)
    assert value == pytest.approx(600 / 250) and high > 1e100, "in some resamples most seeds never get there"
    assert comparison.interval([math.inf] * 2, [math.inf] * 2) == (1.0, 1.0, 1.0)


def test_an_interval_covers_the_truth() -> None:
    """Of 200 pairs of groups whose true ratio is 2, about 95% of the intervals hold it."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(200):
        base = rng.lognormal(5, 0.3, 12)
        _, low, high = comparison.interval(list(base * rng.lognormal(0, 0.1, 12)), list(2 * base))
        held += low <= 2 <= high
    assert 180 <= held <= 200


def evaluation(run: models.Run, at: int, accuracy: float, spent: int) -> models.Evaluation:
    return models.Evaluation(
        run_id=run.id, step=at, attempt=1, greedy_accuracy=accuracy, sampled_accuracy=accuracy, stderr=0.01, samples=4,
        n_prompts=9, rollouts_spent=spent, eval_rollouts=36, eval_tokens=360, seconds=1.5,
        finished_at=BEGAN + dt.timedelta(minutes=at),
    )  # fmt: skip


@pytest.fixture
def six(engine: sa.Engine) -> list[models.Run]:
    """Two seeds of each of two learning rates, one of them slower by half; a run without a seed's twin; a new run."""
    rates = [(1e-3, 0, 100), (1e-3, 1, 200), (5e-4, 0, 150), (5e-4, 1, 300)]
    found = []
    for rate, seed, pace in rates:
        config = CONFIG | {"seed": seed, "name": f"a{seed}", "update": {"lr": rate}, "method": {"name": "grpo"}}
        run = add_run(engine, name=f"exp s{seed}", config=config, step=30)
        add(engine, attempt(run, 1, started_at=BEGAN))
        add(engine, *(evaluation(run, at, at / 100, pace * at) for at in (0, 10, 20, 30)))
        found.append(run)
    lonely = add_run(engine, name="b", config=CONFIG | {"seed": 9, "method": {"name": "dapo", "n": 8}}, step=10)
    add(engine, attempt(lonely, 1, started_at=BEGAN), evaluation(lonely, 0, 0.0, 0), evaluation(lonely, 10, 0.16, 100))
    return [*found, lonely, add_run(engine, name="new", config=CONFIG | {"seed": 0})]


def compare(api: TestClient, runs: list[models.Run], **params: Any) -> Any:
    response = api.get("/api/v1/compare", params={"run": [str(run.id) for run in runs], "points": 2} | params)
    assert response.status_code == 200, response.text
    return response.json()


def test_groups_and_ratios(api: TestClient, six: list[models.Run]) -> None:
    body = compare(api, six, target=0.2)
    fast, slow, lonely, new = body["groups"]
    assert [fast["name"], slow["name"], lonely["name"], new["name"]] == ["exp, lr 0.001", "exp, lr 0.0005", "b", "new"]
    assert (fast["seeds"], fast["reached"], fast["runs"]) == ([0, 1], 2, [str(run.id) for run in six[:2]])
    assert (fast["to_target"]["rollouts"], fast["to_target"]["steps"]) == (3000, 20)
    assert fast["against"] is None and body["baseline"] == 0
    two = {"value": pytest.approx(2 / 3), "low": None, "high": None, "paired": True}
    assert slow["against"] == two, "two seeds say little about others"
    assert (lonely["reached"], lonely["to_target"]["rollouts"], lonely["against"]) == (0, None, None)
    assert new["accuracy"] is None
    fields = {d["field"]: d["values"] for d in body["differences"]}
    assert fields == {
        "update.lr": [1e-3, 5e-4, None, None], "method.name": ["grpo", "grpo", "dapo", None],
        "method.n": [None, None, 8, None],
    }  # fmt: skip


def test_an_interval_takes_three_seeds(api: TestClient, engine: sa.Engine, six: list[models.Run]) -> None:
    thirds = []
    for twin, pace in ((six[0], 40), (six[2], 60)):
        run = add_run(engine, name="exp s2", config=twin.config | {"seed": 2}, step=30)
        add(engine, attempt(run, 1, started_at=BEGAN))
        add(engine, *(evaluation(run, at, at / 100, pace * at) for at in (0, 10, 20, 30)))
        thirds.append(run)
    ratio = pytest.approx(2 / 3)
    found = compare(api, [*six[:4], *thirds], target=0.2)["groups"][1]["against"]
    assert found == {"value": ratio, "low": ratio, "high": ratio, "paired": True}
    found = compare(api, [*six[:4], thirds[0]], target=0.2)["groups"][1]["against"]
    assert (found["low"], found["high"]) == (None, None), "the baseline has three, the other has two"


def test_another_baseline_and_measure(api: TestClient, six: list[models.Run]) -> None:
    body = compare(api, six[:4], target=0.2, by="steps", baseline=str(six[3].id))
    assert body["baseline"] == 1 and body["groups"][1]["against"] is None
    assert body["groups"][0]["against"]["value"] == pytest.approx(1.0), "as many steps, whatever the rollouts"
    body = compare(api, six[:1] + six[2:4], target=0.2)
    assert body["groups"][1]["against"]["low"] is None, "one seed says nothing about others"
    assert body["groups"][1]["against"]["paired"] is False
    body = compare(api, [six[4], *six[:2]], target=0.2)
    assert body["groups"][1]["against"] == {"value": None, "low": None, "high": None, "paired": False}


def test_the_target_that_all_reach(api: TestClient, six: list[models.Run]) -> None:
    assert compare(api, six[:4])["target"] == 0.3
    assert compare(api, six[:5])["target"] == 0.16
    body = compare(api, six)
    assert body["target"] is None and {g["reached"] for g in body["groups"]} == {0}


def test_a_baseline_is_one_of_the_runs(api: TestClient, six: list[models.Run]) -> None:
    ids = [str(run.id) for run in six[:2]]
    for wrong in ({"baseline": str(six[5].id)}, {"target": 1.1}, {"by": "days"}):
        assert api.get("/api/v1/compare", params={"run": ids} | wrong).status_code == 422
