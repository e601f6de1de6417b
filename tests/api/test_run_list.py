"""Lists of runs: filters, sorts and pages; labels and the archive; how each run got on lately."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from api.cursors import NewestRuns, encode
from db import models
from tests.api.rows import CONFIG, add, add_run, step

T0 = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def evaluation(run: models.Run, number: int, accuracy: float) -> models.Evaluation:
    return models.Evaluation(
        run_id=run.id, step=number, attempt=1, greedy_accuracy=0.5, sampled_accuracy=accuracy, stderr=0.01, samples=4,
        n_prompts=9, rollouts_spent=10 * number, eval_rollouts=36, eval_tokens=360, seconds=1.5, finished_at=T0,
    )  # fmt: skip


def names(api: TestClient, **params: Any) -> list[str]:
    """Of all pages; the total is that of the first."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        response = api.get("/api/v1/runs", params=params | cursor)
        assert response.status_code == 200, response.text
        body = response.json()
        found += [run["name"] for run in body["runs"]]
        if body["next_cursor"] is None:
            assert body["total"] == len(found)
            return found
        cursor = {"cursor": body["next_cursor"]}


@pytest.fixture
def six(engine: sa.Engine) -> list[models.Run]:
    rows: list[dict[str, Any]] = [
        {"name": "b", "state": "running", "accuracy": 0.5, "rollouts": 30, "tags": ["stale", "x"], "created_by": "ada"},
        {"name": "A", "state": "failed", "accuracy": 0.5, "rollouts": 2**40, "method": "grpo", "created_by": "bob"},
        {"name": "c_1", "state": "succeeded", "accuracy": 0.0, "model": "hf/Qwen", "tags": ["x"]},
        {"name": "c%1", "state": "succeeded", "accuracy": None, "rollouts": 30},
        {"name": "gone", "state": "stopped", "tags": ["x"], "archived_at": T0},
        {"name": "B", "state": "queued", "accuracy": 1.0},
    ]
    # Ids of digits alone: a search finds the beginning of an id, too.
    return [
        add_run(engine, id=uuid.UUID(str(i + 1) * 32), created_at=T0 + dt.timedelta(minutes=i), **row)
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["B", "c%1", "c_1", "A", "b"]),
        ({"sort": "created"}, ["b", "A", "c_1", "c%1", "B"]),
        ({"state": ["failed", "running"]}, ["A", "b"]),
        ({"method": "grpo"}, ["A"]),
        ({"tag": "x"}, ["c_1", "b"]),
        ({"tag": "x", "archived": "any"}, ["gone", "c_1", "b"]),
        ({"archived": "only"}, ["gone"]),
        ({"owner": "bob"}, ["A"]),
        ({"search": "B"}, ["B", "b"]),
        ({"search": "qwen"}, ["c_1"]),
        ({"search": "c_"}, ["c_1"]),
        ({"search": "%"}, ["c%1"]),
        ({"search": "stale"}, ["b"]),
        ({"search": "stal"}, []),
        ({"search": "x", "state": "running"}, ["b"]),
    ],
)
def test_filters(api: TestClient, six: list[models.Run], params: dict[str, Any], expected: list[str]) -> None:
    assert names(api, **params) == expected
    assert names(api, **params, limit=1) == expected


def test_the_beginning_of_an_id(api: TestClient, six: list[models.Run]) -> None:
    assert names(api, search=str(six[2].id)[:13].upper()) == ["c_1"]


@pytest.mark.parametrize("limit", [1, 2, 50])
@pytest.mark.parametrize("key", ["created", "name", "accuracy", "rollouts"])
def test_every_sort_pages_without_loss_or_repetition(
    api: TestClient, six: list[models.Run], key: str, limit: int
) -> None:
    everything = {"c%1", "c_1", "A", "b", "B"}
    shown = {run.name: run for run in six}
    for sign in ("", "-"):
        found = names(api, sort=sign + key, limit=limit)
        assert set(found) == everything and len(found) == 5
        column = "created_at" if key == "created" else key
        values = [getattr(shown[name], column) for name in found]
        known = [v.lower() if isinstance(v, str) else v for v in values if v is not None]
        assert known == sorted(known, reverse=sign == "-")
        assert values[len(known) :] == [None] * (5 - len(known)), "runs without an accuracy come last"


@pytest.mark.parametrize("limit", [1, 2, 50])
@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("state", ["B", "b", "c_1", "c%1", "A"]),
        ("-state", ["A", "c%1", "c_1", "b", "B"]),
        ("owner", ["b", "A", "c_1", "c%1", "B"]),
        ("-owner", ["A", "b", "B", "c%1", "c_1"]),
        ("variance", ["A", "b", "c_1", "c%1", "B"]),
        ("-variance", ["b", "A", "B", "c%1", "c_1"]),
    ],
)
def test_sorts_by_state_owner_and_variance(
    api: TestClient, engine: sa.Engine, six: list[models.Run], sort: str, expected: list[str], limit: int
) -> None:
    """The variance is the one that the list tells: of the last steps."""
    for run, variances in ((six[0], [0.0, *[0.2] * 20]), (six[1], [0.1, 0.0])):
        with engine.begin() as connection:
            connection.execute(sa.update(models.Run).where(models.Run.id == run.id).values(step=len(variances)))
        add(engine, *(step(run, at, metrics={"reward_variance": v}) for at, v in enumerate(variances, 1)))
    assert names(api, sort=sort, limit=limit) == expected
    told = {run["name"]: run["reward_variance"] for run in api.get("/api/v1/runs").json()["runs"]}
    assert (told["b"], told["A"], told["B"]) == (pytest.approx(0.2), pytest.approx(0.05), None)


def test_a_cursor_belongs_to_its_filters_and_its_sort(api: TestClient, six: list[models.Run]) -> None:
    first = api.get("/api/v1/runs", params={"limit": 1}).json()["next_cursor"]
    forged = encode(NewestRuns(filters="{}", id=six[0].id, value=T0))
    for params in (
        {"cursor": first, "state": "running"},
        {"cursor": first, "sort": "name"},
        {"cursor": first, "archived": "any"},
        {"cursor": forged},
        {"cursor": "bm8"},
    ):
        response = api.get("/api/v1/runs", params=params)
        assert response.status_code == 422
        assert response.json()["errors"][0]["field"] == "query.cursor"
    for params in ({"sort": "size"}, {"state": "dead"}, {"archived": "yes"}, {"tags": "x"}):
        assert api.get("/api/v1/runs", params=params).status_code == 422


def test_what_there_is_to_filter_by(api: TestClient, six: list[models.Run]) -> None:
    assert api.get("/api/v1/runs/facets").json() == {
        "methods": ["grpo", "pilot_commit"], "tags": ["stale", "x"], "owners": ["ada", "bob"],
    }  # fmt: skip


def test_labels(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", tags=["stale"])
    address = f"/api/v1/runs/{run.id}"
    body = api.patch(address, json={"name": "new name", "tags": ["a", "b c", "a"]}).json()
    assert (body["name"], body["tags"], body["priority"]) == ("new name", ["a", "b c"], 0)
    assert api.patch(address, json={"tags": []}).json()["tags"] == []
    (newest, older) = api.get("/api/v1/audit", params={"target": str(run.id)}).json()["entries"]
    assert (older["before"], older["after"]) == (
        {"name": "r", "tags": ["stale"]},
        {"name": "new name", "tags": ["a", "b c"]},
    )
    assert newest["before"] == {"tags": ["a", "b c"]}
    for wrong in (
        {}, {"tags": None}, {"tags": "a"}, {"tags": [""]}, {"tags": [" a"]}, {"tags": ["a,b"]}, {"tags": ["a\n"]},
        {"tags": ["a\u0000"]}, {"tags": ["x" * 51]}, {"tags": [str(i) for i in range(21)]}, {"name": ""},
        {"name": " x"}, {"name": "<b>"}, {"owner": "me"},
    ):  # fmt: skip
        response = api.patch(address, json=wrong)
        assert response.status_code == 422, wrong
        assert response.json()["errors"][0]["message"]
    assert api.get(address).json()["tags"] == []


def test_the_archive(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="running")
    address = f"/api/v1/runs/{run.id}"
    response = api.patch(address, json={"archived": True, "tags": ["x"]})
    assert (response.status_code, response.json()["type"]) == (409, "/problems/wrong-state")
    assert "stop it first" in response.json()["detail"]
    assert api.get(address).json()["tags"] == [], "nothing half done"
    with engine.begin() as connection:
        connection.execute(sa.update(models.Run).values(state="stopped"))
    archived = api.patch(address, json={"archived": True}).json()
    assert archived["archived_at"] and names(api) == []
    assert api.patch(address, json={"archived": True}).json()["archived_at"] == archived["archived_at"]
    assert api.get(address).status_code == 200, "what has its address finds it"
    assert api.patch(address, json={"archived": False}).json()["archived_at"] is None
    api.patch(address, json={"archived": True})
    assert api.post(f"{address}/resume").json()["archived_at"] is None
    assert names(api) == ["r"]


def test_whose_run_it_is(api: TestClient, config: dict[str, Any]) -> None:
    made = api.post("/api/v1/runs", json={"config": config}).json()
    clone = api.post(f"/api/v1/runs/{made['id']}/clone", json={}).json()
    assert (made["created_by"], clone["created_by"]) == ("tests", "tests")


def test_a_curve_has_few_points_and_both_ends(api: TestClient, engine: sa.Engine) -> None:
    """Of 2,000 evaluations, and of three."""
    long = add_run(engine, name="long", step=10_000)
    short = add_run(engine, name="short", step=9)
    add(engine, *(evaluation(long, n, n / 20_000) for n in range(0, 10_000, 5)))
    add_run(engine, name="none")
    add(engine, *(evaluation(short, n, n / 10) for n in (0, 4, 8)))
    curves = {run["name"]: run["curve"] for run in api.get("/api/v1/runs").json()["runs"]}
    assert curves["none"] == []
    assert [(p["rollouts"], p["accuracy"]) for p in curves["short"]] == [(0, 0.0), (40, 0.4), (80, 0.8)]
    spent = [p["rollouts"] for p in curves["long"]]
    assert len(spent) == 30 and spent == sorted(set(spent))
    assert (spent[0], spent[-1]) == (0, 99_950)
    gaps = [b - a for a, b in zip(spent, spent[1:], strict=False)]
    assert max(gaps) - min(gaps) <= 100, "evenly spread"


def test_lately(api: TestClient, engine: sa.Engine) -> None:
    """30 steps, a minute each, ten rollouts each; the newest attempt has the last ten."""

    def steps(run: models.Run) -> list[models.StepMetrics]:
        return [
            step(run, n, attempt=1 if n <= 20 else 2, metrics={"reward_variance": None if n % 2 else n / 100})
            for n in range(1, 31)
        ]

    base = {"state": "running", "step": 30, "rollouts": 300, "tokens": 3000, "attempt": 2}
    budgets: dict[str, tuple[dict[str, Any], float]] = {
        "steps": ({"steps": 50, "rollouts": None}, 20 * 60),
        "rollouts": ({"steps": 50, "rollouts": 350}, 5 * 60),
        "tokens": ({"steps": 50, "rollouts": 350, "tokens": 3100}, 60),
        "time": ({"steps": 50, "rollouts": None, "wall_clock_s": 90.0}, 90 - 61.5),
        "over": ({"steps": 50, "rollouts": None, "wall_clock_s": 50.0}, 0),
    }
    for name, (budget, _) in budgets.items():
        run = add_run(engine, name=name, config=CONFIG | {"budget": budget}, **base)
        add(engine, *steps(run))
        add(
            engine,
            models.Attempt(run_id=run.id, attempt=1, fence=1, host="h", seconds=60, finished_at=T0),
            models.Attempt(run_id=run.id, attempt=2, fence=2, host="h"),
            models.Lease(run_id=run.id, fence=2, holder="h:1:1", expires_at=T0, seconds=1.5),
        )
    ended = add_run(engine, name="ended", **base | {"state": "failed"})
    add(engine, *steps(ended))
    runs = {run["name"]: run for run in api.get("/api/v1/runs").json()["runs"]}
    for name, (_, left) in budgets.items():
        assert runs[name]["seconds_left"] == pytest.approx(left), name
        assert runs[name]["seconds"] == 61.5
        assert runs[name]["reward_variance"] == pytest.approx(0.21), "mean of steps 12, 14, ... 30"
    assert runs["ended"]["seconds_left"] is None and runs["ended"]["reward_variance"] == pytest.approx(0.21)
    new = add_run(engine, name="new", state="running")
    assert api.get(f"/api/v1/runs/{new.id}").json()["seconds_left"] is None
