"""Starting, listing, stopping and resuming runs over HTTP, on the real database and broker."""

from __future__ import annotations

import json
import threading
import time
import uuid
from typing import Any

import httpx
import pytest
import redis
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api.app import create_app
from api.settings import Settings
from db.models import RUN_STATES, Attempt, Run
from tests.api.rows import add, add_run
from tests.api.served import make_token
from worker import queue


def stored(engine: sa.Engine) -> list[Run]:
    with Session(engine) as session:
        return list(session.scalars(sa.select(Run)))


def broker_text(url: str) -> str:
    """Everything that waits in the broker."""
    with redis.Redis.from_url(url, decode_responses=True) as client:
        lists = [key for key in client.keys("*") if client.type(key) == "list"]
        return "\n".join(message for key in lists for message in client.lrange(key, 0, -1))


def test_a_created_run_is_stored_whole_located_and_sent(
    api: TestClient, engine: sa.Engine, config: dict[str, Any], broker_url: str
) -> None:
    response = api.post("/api/v1/runs", json={"config": config})

    assert response.status_code == 201
    run = response.json()
    assert response.headers["location"] == f"/api/v1/runs/{run['id']}"
    assert api.get(response.headers["location"]).json() == run
    assert (run["state"], run["name"], run["attempts"]) == ("queued", "tiny", [])
    assert run["reason"] == "no worker is running that could start it" and "./pilot up" in run["todo"]
    assert (run["steps_budget"], run["rollouts_budget"], run["method"]) == (7, 900, "pilot_commit")
    assert run["config"]["method"]["n_pilot"] == 32, "the stored config says its defaults"
    assert len(stored(engine)) == 1
    assert run["id"] in broker_text(broker_url)


def test_a_worker_that_is_sent_a_run_finds_it(
    api: TestClient, engine: sa.Engine, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    monkeypatch.setattr(queue, "enqueue", lambda run_id: found.append([r.id for r in stored(engine)] == [run_id]))

    api.post("/api/v1/runs", json={"config": config})

    assert found == [True], "the run was sent before its transaction was committed"


def test_a_commit_that_fails_sends_nothing(
    api: TestClient, engine: sa.Engine, config: dict[str, Any], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise sa.exc.OperationalError("COMMIT", {}, Exception("disk full"))

    monkeypatch.setattr(sa.orm.SessionTransaction, "commit", fail)

    response = api.post("/api/v1/runs", json={"config": config})

    monkeypatch.undo()
    assert response.status_code == 503
    assert stored(engine) == []
    assert broker_text(broker_url) == ""


@pytest.fixture
def api_without_broker(database_url: str, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    settings = Settings(database_url=database_url, redis_url="redis://127.0.0.1:1/0")
    return TestClient(
        create_app(settings),
        "http://127.0.0.1",
        raise_server_exceptions=False,
        headers={"authorization": f"Bearer {make_token(database_url)}"},
    )


def test_without_a_broker_a_run_stays_queued_and_says_why(
    api_without_broker: TestClient, engine: sa.Engine, config: dict[str, Any]
) -> None:
    began = time.monotonic()
    response = api_without_broker.post("/api/v1/runs", json={"config": config})

    assert response.status_code == 201
    assert response.json()["state"] == "queued"
    assert "broker cannot be reached" in response.json()["reason"]
    assert all(run.reason and response.json()["reason"].startswith(run.reason) for run in stored(engine))
    assert time.monotonic() - began < 8, "the answer must come before clients give up"


def test_a_faulty_config_stores_and_sends_nothing(
    api: TestClient, engine: sa.Engine, config: dict[str, Any], broker_url: str
) -> None:
    config["method"] = {"name": "pilot_commit", "p_lower": 0.9, "p_upper": 0.5}
    config["modell"] = {}
    response = api.post("/api/v1/runs", json={"config": config})

    problem = response.json()
    assert (response.status_code, problem["type"]) == (422, "/problems/invalid-config")
    assert {e["field"] for e in problem["errors"]} == {"method", "modell"}
    assert any("p_lower=0.9 is above p_upper=0.5" in e["message"] for e in problem["errors"])
    assert stored(engine) == []
    assert broker_text(broker_url) == ""


@pytest.mark.parametrize(("field", "name"), [("model.path", "path"), ("data.train", "train"), ("data.eval", "eval")])
def test_files_that_are_not_there_are_named(
    api: TestClient, engine: sa.Engine, config: dict[str, Any], field: str, name: str
) -> None:
    config[field.partition(".")[0]][name] = "/nowhere/at/all"
    problem = api.post("/api/v1/runs", json={"config": config}).json()

    assert [(e["field"], e["value"]) for e in problem["errors"]] == [(field, "/nowhere/at/all")]
    assert stored(engine) == []


@pytest.mark.parametrize("path", ["x" * 5000, "~nobody-by-this-name/x", "a\x00b", "\ud800"])
def test_paths_that_no_file_system_takes(api: TestClient, config: dict[str, Any], path: str) -> None:
    config["model"]["path"] = path
    body = json.dumps({"config": config})
    headers = {"content-type": "application/json"}
    assert api.post("/api/v1/runs", content=body, headers=headers).json()["type"] == "/problems/invalid-config"
    check = api.post("/api/v1/config/validate", content=body, headers=headers)
    assert (check.status_code, check.json()["valid"]) == (200, False)


def test_pages_neither_lose_nor_repeat_while_runs_arrive(api: TestClient, engine: sa.Engine) -> None:
    there = [add_run(engine) for _ in range(11)]
    with Session(engine) as session, session.begin():  # several of the same moment
        session.execute(
            sa.update(Run).where(Run.id.in_([r.id for r in there[2:8]])).values(created_at=there[2].created_at)
        )
    seen: list[str] = []
    cursor = None
    while True:
        page = api.get("/api/v1/runs", params={"limit": 3} | ({"cursor": cursor} if cursor else {})).json()
        seen += [run["id"] for run in page["runs"]]
        add_run(engine)
        cursor = page["next_cursor"]
        if cursor is None:
            break

    assert len(seen) == len(set(seen)) == 11
    assert set(seen) == {str(run.id) for run in there}
    assert seen[:3] == [str(run.id) for run in there[:-4:-1]], "newest first"


def test_a_full_last_page_has_no_next(api: TestClient, engine: sa.Engine) -> None:
    for _ in range(4):
        add_run(engine)
    first = api.get("/api/v1/runs?limit=2").json()
    second = api.get("/api/v1/runs", params={"limit": 2, "cursor": first["next_cursor"]}).json()
    assert (len(second["runs"]), second["next_cursor"]) == (2, None)


def test_lists_can_be_of_one_state(api: TestClient, engine: sa.Engine) -> None:
    for state in RUN_STATES:
        add_run(engine, state=state)
        add_run(engine, state=state)
    for state in RUN_STATES:
        page = api.get("/api/v1/runs", params={"state": state, "limit": 1}).json()
        rest = api.get("/api/v1/runs", params={"state": state, "cursor": page["next_cursor"]}).json()
        assert [run["state"] for run in page["runs"] + rest["runs"]] == [state, state]
        other = "failed" if state != "failed" else "queued"
        assert api.get("/api/v1/runs", params={"state": other, "cursor": page["next_cursor"]}).status_code == 422


def test_a_queued_run_is_stopped_at_once(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine)
    response = api.post(f"/api/v1/runs/{run.id}/stop")
    assert response.status_code == 202
    body = response.json()
    assert body["state"] == "stopped"
    assert body["finished_at"] is not None and body["stop_requested_at"] is not None


@pytest.mark.parametrize("state", ["starting", "running"])
def test_a_run_at_work_is_asked_to_stop(api: TestClient, engine: sa.Engine, state: str) -> None:
    run = add_run(engine, state=state)
    first = api.post(f"/api/v1/runs/{run.id}/stop")
    again = api.post(f"/api/v1/runs/{run.id}/stop")
    assert (first.status_code, first.json()["state"]) == (202, "stopping")
    assert first.json()["finished_at"] is None
    assert first.json()["stop_requested_at"] is not None
    assert (again.status_code, again.json()) == (202, first.json())


@pytest.mark.parametrize("state", ["stopped", "succeeded", "failed"])
def test_a_finished_run_cannot_be_stopped(api: TestClient, engine: sa.Engine, state: str) -> None:
    run = add_run(engine, state=state)
    response = api.post(f"/api/v1/runs/{run.id}/stop")
    assert (response.status_code, response.json()["type"]) == (409, "/problems/wrong-state")
    assert state in response.json()["detail"]


def test_a_stop_waits_for_the_worker_that_is_taking_the_run(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine)
    answers: list[httpx.Response] = []
    with Session(engine) as worker, worker.begin():
        taken = worker.get_one(Run, run.id, with_for_update=True)
        stop = threading.Thread(target=lambda: answers.append(api.post(f"/api/v1/runs/{run.id}/stop")))
        stop.start()
        time.sleep(0.3)
        taken.state = "starting"
    stop.join(10)
    assert answers[0].json()["state"] == "stopping", "a run with a worker must not be declared stopped"


@pytest.mark.parametrize("state", ["stopped", "failed"])
def test_a_resumed_run_is_queued_and_sent(api: TestClient, engine: sa.Engine, state: str, broker_url: str) -> None:
    now = sa.func.now()
    run = add_run(engine, state=state, reason="x", stop_requested_at=now, finished_at=now, step=4)
    response = api.post(f"/api/v1/runs/{run.id}/resume")
    body = response.json()
    assert (response.status_code, body["state"], body["step"]) == (202, "queued", 4)
    assert (body["stop_requested_at"], body["finished_at"]) == (None, None)
    assert body["reason"].startswith("no worker is running"), "why it stopped before is told no more"
    assert str(run.id) in broker_text(broker_url)


@pytest.mark.parametrize("state", ["queued", "starting", "running", "stopping", "succeeded"])
def test_other_runs_cannot_be_resumed(api: TestClient, engine: sa.Engine, state: str, broker_url: str) -> None:
    run = add_run(engine, state=state)
    response = api.post(f"/api/v1/runs/{run.id}/resume")
    assert (response.status_code, response.json()["type"]) == (409, "/problems/wrong-state")
    assert broker_text(broker_url) == ""


def test_a_run_resumed_without_a_broker_says_so(api_without_broker: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="failed")
    response = api_without_broker.post(f"/api/v1/runs/{run.id}/resume")
    assert (response.status_code, response.json()["state"]) == (202, "queued")
    assert "broker cannot be reached" in response.json()["reason"]


def test_a_run_shows_its_attempts(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", attempt=2, buckets={"ready": 3})
    add(
        engine,
        Attempt(run_id=run.id, attempt=2, fence=9, host="b"),
        Attempt(run_id=run.id, attempt=1, fence=8, host="a"),
    )
    body = api.get(f"/api/v1/runs/{run.id}").json()
    assert [(a["attempt"], a["host"], a["last_seq"]) for a in body["attempts"]] == [(1, "a", 0), (2, "b", 0)]
    assert body["buckets"] == {"unseen": 0, "evicted": 0, "skipped": 0, "deferred": 0, "ready": 3, "committed": 0}


def test_an_unknown_run_is_not_found_anywhere(api: TestClient) -> None:
    unknown = uuid.uuid4()
    for method, rest in [
        ("GET", ""), ("POST", "/stop"), ("POST", "/resume"), ("GET", "/metrics"), ("GET", "/buckets"),
        ("GET", "/ledger"), ("GET", "/prompts"), ("GET", "/prompts/p000"),
    ]:  # fmt: skip
        response = api.request(method, f"/api/v1/runs/{unknown}{rest}")
        assert (response.status_code, response.json()["type"]) == (404, "/problems/run-not-found"), rest
        assert str(unknown) in response.json()["detail"]


def test_a_clone_has_the_config_with_changes(
    api: TestClient, engine: sa.Engine, config: dict[str, Any], broker_url: str
) -> None:
    config |= {"method": {"name": "grpo", "n": 12}, "update": {"lr": 3e-4}}
    source = api.post("/api/v1/runs", json={"config": config}).json()
    changes = {"name": "longer", "budget": {"steps": 9}, "method": {"name": "pilot_commit", "n_pilot": 4}}
    response = api.post(f"/api/v1/runs/{source['id']}/clone", json={"config": changes, "priority": 7})
    clone = response.json()
    assert (response.status_code, response.headers["location"]) == (201, f"/api/v1/runs/{clone['id']}")
    assert (clone["name"], clone["cloned_from"], clone["priority"], clone["step"]) == ("longer", source["id"], 7, 0)
    assert clone["config"]["budget"]["steps"] == 9
    assert clone["config"]["budget"]["rollouts"] == 900, "what is not changed stays"
    assert clone["config"]["update"]["lr"] == 3e-4
    assert "n" not in clone["config"]["method"], "another method takes nothing of the old one over"
    assert clone["config"]["method"]["n_pilot"] == 4
    assert clone["id"] in broker_text(broker_url)
    same = api.post(f"/api/v1/runs/{source['id']}/clone", json={}).json()
    assert (same["config"], same["config_digest"]) == (source["config"], source["config_digest"])


def test_a_clone_with_faulty_changes_starts_nothing(api: TestClient, engine: sa.Engine, config: dict[str, Any]) -> None:
    source = api.post("/api/v1/runs", json={"config": config}).json()["id"]
    changes = {"budgett": {}, "update": {"lr": -1}, "data": {"train": "/nowhere"}}
    problem = api.post(f"/api/v1/runs/{source}/clone", json={"config": changes}).json()
    assert {error["field"] for error in problem["errors"]} >= {"budgett", "update.lr"}
    assert len(stored(engine)) == 1
    assert api.post(f"/api/v1/runs/{uuid.uuid4()}/clone", json={}).status_code == 404


def test_a_clone_is_started_once_per_key(api: TestClient, engine: sa.Engine, config: dict[str, Any]) -> None:
    source = api.post("/api/v1/runs", json={"config": config}).json()["id"]
    key = {"idempotency-key": "k"}
    first, second = (api.post(f"/api/v1/runs/{source}/clone", json={}, headers=key) for _ in range(2))
    assert first.json() == second.json() and second.headers["idempotency-replayed"] == "true"
    assert api.post("/api/v1/runs", json={"config": config}, headers=key).status_code == 422, "another request"
    assert len(stored(engine)) == 2


def test_priority(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine)
    assert api.patch(f"/api/v1/runs/{run.id}", json={"priority": 5}).json()["priority"] == 5
    assert [r.priority for r in stored(engine)] == [5]
    assert api.patch(f"/api/v1/runs/{run.id}", json={"priority": 1001}).status_code == 422
    assert api.patch(f"/api/v1/runs/{run.id}", json={"state": "succeeded"}).status_code == 422


def test_a_deleted_run_is_gone(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="running")
    assert api.delete(f"/api/v1/runs/{run.id}").status_code == 409
    with engine.begin() as connection:
        connection.execute(sa.update(Run).values(state="failed"))
    assert api.delete(f"/api/v1/runs/{run.id}").json()["id"] == str(run.id)
    assert api.get("/api/v1/runs").json()["runs"] == []
    for method, rest in (("GET", ""), ("GET", "/metrics"), ("GET", "/config"), ("POST", "/resume"), ("DELETE", "")):
        assert api.request(method, f"/api/v1/runs/{run.id}{rest}").status_code == 404


def test_a_config_is_fetched_once(api: TestClient, engine: sa.Engine, config: dict[str, Any]) -> None:
    run = api.post("/api/v1/runs", json={"config": config}).json()
    for path, body in ((f"/api/v1/runs/{run['id']}/config", run["config"]), ("/api/v1/config/schema", None)):
        first = api.get(path)
        assert body is None or first.json() == body
        etag = first.headers["etag"]
        for given in (etag, f'"other", W/{etag}', "*"):
            again = api.get(path, headers={"if-none-match": given})
            assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert api.get(path, headers={"if-none-match": '"other"'}).json() == first.json()
