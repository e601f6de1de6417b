"""Several runs in one answer."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from db import models
from tests.api.rows import add, add_run, step

BEGAN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def attempt(run: models.Run, number: int, **columns: object) -> models.Attempt:
    return models.Attempt(run_id=run.id, attempt=number, fence=number, host="h", **columns)


def evaluation(run: models.Run, at: int, accuracy: float, **columns: object) -> models.Evaluation:
    given = {"attempt": 1, "finished_at": BEGAN + dt.timedelta(minutes=at)} | columns
    return models.Evaluation(
        run_id=run.id, step=at, greedy_accuracy=accuracy + 0.1, sampled_accuracy=accuracy, stderr=0.01, samples=4,
        n_prompts=9, rollouts_spent=10 * at, eval_rollouts=36, eval_tokens=360, seconds=1.5, **given,
    )  # fmt: skip


@pytest.fixture
def pair(engine: sa.Engine) -> tuple[models.Run, models.Run]:
    """A run of 1,000 steps, a minute each; and one whose second attempt, two hours later, went on after step 2."""
    fates = {"trained": [60, 600], "stale": [30, 300]}
    long, resumed = (
        add_run(engine, step=1000, rollouts=90, tokens=900, fates=fates),
        add_run(engine, step=4, name="resumed"),
    )
    later = BEGAN + dt.timedelta(hours=2)
    add(
        engine,
        attempt(long, 1, started_at=BEGAN),
        attempt(resumed, 1, started_at=BEGAN, seconds=1800.0),
        attempt(resumed, 2, started_at=later),
        *(step(long, n, metrics={"reward_variance": n / 1000, "loss": None}) for n in range(1, 1001)),
        *(step(resumed, n) for n in (1, 2)),
        *(step(resumed, n, attempt=2, finished_at=later + dt.timedelta(minutes=n)) for n in (3, 4)),
        *(evaluation(long, n, 0.3 + n / 5000) for n in (1000, 0, 500)),
        evaluation(resumed, 4, 0.5, attempt=2, finished_at=later + dt.timedelta(minutes=6)),
    )
    return long, resumed


def test_runs_come_in_the_order_asked_for_with_all_that_is_compared(
    api: TestClient, pair: tuple[models.Run, models.Run]
) -> None:
    long, resumed = pair
    ids = [str(resumed.id), str(long.id)]
    response = api.get("/api/v1/compare", params={"run": ids, "points": 50, "metric": ["loss", "reward_variance"]})
    assert response.status_code == 200, response.text
    first, second = response.json()["runs"]
    assert [first["run"]["id"], second["run"]["id"]] == ids
    assert second["run"] == {k: v for k, v in api.get(f"/api/v1/runs/{long.id}").json().items() if k in second["run"]}
    assert second["config"] == long.config

    curve = second["evaluations"]
    assert (curve["step"], curve["rollouts"], curve["tokens"]) == ([0, 500, 1000], [0, 5000, 10000], [0, 50000, 100000])
    assert curve["accuracy"] == pytest.approx([0.3, 0.4, 0.5])
    assert curve["greedy_accuracy"] == pytest.approx([0.4, 0.5, 0.6])
    assert curve["hours"] == pytest.approx([0, 500 / 60, 1000 / 60])

    series = second["series"]
    assert (series["step"][0], series["step"][-1]) == (1, 1000)
    assert len(series["step"]) <= 51
    assert {b - a for a, b in zip(series["step"][1:], series["step"][2:], strict=False)} == {20}
    assert series["metrics"]["reward_variance"] == pytest.approx([n / 1000 for n in series["step"]])
    assert set(series["metrics"]["loss"]) == {None}
    assert series["rollouts"] == [10 * n for n in series["step"]]

    ledger = api.get(f"/api/v1/runs/{long.id}/ledger").json()
    assert second["ledger"] == ledger
    assert {f["fate"]: f["rollouts"] for f in ledger["fates"] if f["rollouts"]} == {"trained": 60, "stale": 30}
    assert {f["rollouts"] for f in first["ledger"]["fates"]} == {0}


def test_hours_are_those_for_which_trainers_ran(api: TestClient, pair: tuple[models.Run, models.Run]) -> None:
    """The half hour of the first attempt counts, what it lost included; the time between the attempts does not."""
    got = api.get("/api/v1/compare", params={"run": str(pair[1].id)}).json()["runs"][0]
    assert got["series"]["step"] == [1, 2, 3, 4]
    assert got["series"]["hours"] == pytest.approx([1 / 60, 2 / 60, 0.5 + 3 / 60, 0.5 + 4 / 60])
    assert got["evaluations"]["hours"] == pytest.approx([0.5 + 6 / 60])


def test_a_run_tells_for_how_long_it_has_had_its_devices(api: TestClient, engine: sa.Engine) -> None:
    """The attempt under way by its lease, the others by their own count."""
    config = {"budget": {"steps": 7, "rollouts": None}, "engine": {"name": "verl", "nodes": 2, "gpus_per_node": 8}}
    run = add_run(engine, config=config, state="running", attempt=2)
    add(
        engine,
        attempt(run, 1, seconds=1800.0, started_at=BEGAN, finished_at=BEGAN),
        attempt(run, 2, started_at=BEGAN),
        models.Lease(run_id=run.id, fence=2, holder="h:1:1:1", expires_at=sa.func.now(), seconds=900.0),
    )
    body = api.get(f"/api/v1/runs/{run.id}").json()
    assert [a["seconds"] for a in body["attempts"]] == [1800, 900]
    assert (body["seconds"], body["gpu_hours"]) == (2700, 0.75 * 16)


def test_a_run_that_has_not_begun_is_empty(api: TestClient, engine: sa.Engine) -> None:
    got = api.get("/api/v1/compare", params={"run": str(add_run(engine).id)}).json()["runs"][0]
    assert got["series"] == {"step": [], "rollouts": [], "tokens": [], "hours": [], "metrics": {"reward_variance": []}}
    assert got["evaluations"]["step"] == []


def test_what_cannot_be_compared_is_refused(api: TestClient, engine: sa.Engine) -> None:
    run, gone = add_run(engine), add_run(engine, deleted_at=sa.func.now())
    for ids, status, words in (
        ([], 422, "query.run"),
        ([str(run.id)] * 2, 422, f"{run.id} is named twice"),
        ([str(uuid.uuid4()) for _ in range(21)], 422, "at most 20"),
        (["x"], 422, "query.run.0"),
        ([str(run.id), str(unknown := uuid.uuid4())], 404, str(unknown)),
        ([str(gone.id)], 404, str(gone.id)),
    ):
        response = api.get("/api/v1/compare", params={"run": ids})
        assert (response.status_code, words in response.text) == (status, True), response.text


def test_many_runs_bring_fewer_steps_each(
    api: TestClient, engine: sa.Engine, pair: tuple[models.Run, models.Run]
) -> None:
    long, _ = pair
    others = [str(add_run(engine).id) for _ in range(19)]
    for runs, most in (([str(long.id)], 201), ([str(long.id), *others], 51)):
        found = api.get("/api/v1/compare", params={"run": runs}).json()["runs"][0]["series"]["step"]
        assert most - 2 <= len(found) <= most and (found[0], found[-1]) == (1, 1000)
