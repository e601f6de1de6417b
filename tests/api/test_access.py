"""Tokens: nothing without one, nothing beyond its scope, and every change in the audit log."""

from __future__ import annotations

import datetime as dt
import re
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api.access import OPEN
from db import evaluations
from db.models import IdempotencyKey, Run, Token
from pipeline.config import parse_config
from tests.api.rows import add_prompts, add_run
from tests.api.served import make_token
from tests.api.test_problems import JSON, problem

NOBODY = uuid.UUID(int=0)
CHANGE_NOTHING = ("validate_config", "forecast_config", "check_prompts", "test_reward", "audit_files", "audit_run")


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def operations(api: TestClient) -> list[tuple[str, str, str]]:
    document = api.app.openapi()  # type: ignore[attr-defined]
    return [
        (method.upper(), re.sub(r"\{\w+\}", str(NOBODY), path), operation["operationId"])
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_nothing_but_health_and_documentation_is_open(api: TestClient) -> None:
    closed = [o for o in operations(api) if o[1] not in OPEN]
    assert len(closed) >= 17
    for headers, kind in [
        ({"authorization": ""}, "token-missing"),
        ({"authorization": "Basic cGlsb3Q6cGlsb3Q="}, "token-missing"),
        ({"authorization": "Bearer "}, "token-missing"),
        (bearer("pilot_" + "A" * 43), "token-refused"),
    ]:
        for method, path, _ in closed:
            # The body is broken, too: who has no token does not even learn that.
            response = api.request(method, path, headers=headers | JSON, content=b"{" if method == "POST" else None)
            assert problem(response)["type"] == f"/problems/{kind}", (method, path)
            assert (response.status_code, response.headers["www-authenticate"]) == (401, "Bearer")
    assert api.get("/nothing", headers={"authorization": ""}).status_code == 401
    for path in OPEN:
        assert api.get(path, headers={"authorization": ""}).status_code == 200, path


def test_a_scope_is_a_bound(api: TestClient, database_url: str, engine: sa.Engine) -> None:
    reader, runner = bearer(make_token(database_url, "read")), bearer(make_token(database_url, "run"))
    for method, path, name in operations(api):
        read = api.request(method, path, headers=reader | JSON, content=b"{}" if method == "POST" else None)
        run = api.request(method, path, headers=runner | JSON, content=b"{}" if method == "POST" else None)
        admins = path.startswith(("/api/v1/tokens", "/api/v1/webhooks")) or name == "list_audit"
        admins = admins or name == "change_settings"
        changes = method != "GET" and name not in CHANGE_NOTHING
        assert (read.status_code == 403) == (admins or changes), name
        assert (run.status_code == 403) == admins, name
        for refused in (read, run):
            if refused.status_code == 403:
                assert problem(refused)["type"] == "/problems/scope-missing"
    with Session(engine) as session:
        assert session.scalars(sa.select(Run)).all() == []
        assert len(session.scalars(sa.select(Token)).all()) == 3


def test_a_life_of_a_token(api: TestClient, engine: sa.Engine) -> None:
    made = api.post("/api/v1/tokens", json={"name": "ci", "scope": "run", "days": 1}).json()
    secret = made.pop("secret")
    assert re.fullmatch(r"pilot_[A-Za-z0-9_-]{43}", secret)
    with Session(engine) as session:
        row = session.get_one(Token, made["id"])
        everything = " ".join(str(value) for value in vars(row).values())
    assert secret not in everything and secret.removeprefix("pilot_") not in everything
    assert secret not in api.get("/api/v1/tokens").text + api.get("/api/v1/audit").text

    me = api.get("/api/v1/me", headers=bearer(secret)).json()
    assert (me["name"], me["scope"], me["created_by"]) == ("ci", "run", "tests")
    assert dt.datetime.fromisoformat(me["expires_at"]) - dt.datetime.fromisoformat(me["created_at"]) == dt.timedelta(1)
    assert me["last_used_at"] is not None

    with engine.begin() as connection:
        connection.execute(sa.update(Token).where(Token.id == made["id"]).values(expires_at=sa.func.now()))
    body = problem(api.get("/api/v1/me", headers=bearer(secret)))
    assert body["type"] == "/problems/token-refused" and "'ci' has expired" in body["detail"]
    assert [t["name"] for t in api.get("/api/v1/tokens").json()["tokens"]] == ["tests"]

    with engine.begin() as connection:
        connection.execute(sa.update(Token).where(Token.id == made["id"]).values(expires_at=None))
    assert api.get("/api/v1/me", headers=bearer(secret)).status_code == 200
    revoked = api.delete(f"/api/v1/tokens/{made['id']}").json()
    assert revoked["revoked_at"] == api.delete(f"/api/v1/tokens/{made['id']}").json()["revoked_at"] is not None
    body = problem(api.get("/api/v1/me", headers=bearer(secret)))
    assert "was revoked" in body["detail"] and secret not in str(body)


def test_tokens_are_paged(api: TestClient, database_url: str) -> None:
    for number in range(4):
        make_token(database_url, "read", f"t{number}")
    first = api.get("/api/v1/tokens", params={"limit": 3}).json()
    second = api.get("/api/v1/tokens", params={"limit": 3, "cursor": first["next_cursor"]}).json()
    assert [t["name"] for t in first["tokens"] + second["tokens"]] == ["t3", "t2", "t1", "t0", "tests"]
    assert second["next_cursor"] is None
    other = api.get("/api/v1/tokens", params={"limit": 3, "all": "true", "cursor": first["next_cursor"]})
    assert problem(other)["errors"][0]["field"] == "query.cursor"


@pytest.mark.parametrize(
    "body", [{}, {"name": ""}, {"name": "x\x00"}, {"name": "x", "scope": "root"}, {"name": "x", "days": 0}]
)
def test_a_token_that_cannot_be(api: TestClient, body: dict[str, Any]) -> None:
    assert problem(api.post("/api/v1/tokens", json=body))["type"] == "/problems/invalid-request"
    assert len(api.get("/api/v1/tokens").json()["tokens"]) == 1


def test_every_change_is_in_the_audit_log(
    home: Path, api: TestClient, engine: sa.Engine, config: dict[str, Any]
) -> None:
    """One call of every operation that changes something; a new one without an entry fails here."""
    run = api.post("/api/v1/runs", json={"config": config}, headers={"x-request-id": "build-7"}).json()["id"]
    token = api.post("/api/v1/tokens", json={"name": "t"}).json()["id"]
    webhook, other = (
        api.post("/api/v1/webhooks", json={"url": "https://1.1.1.1/pilot/sesame"}).json()["id"] for _ in range(2)
    )
    measured = add_run(engine, config=parse_config(config).model_dump(mode="json"), step=10)
    (home / "runs" / str(measured.id) / "checkpoints" / "step_000010").mkdir(parents=True)
    with Session(engine) as session, session.begin():
        given = {"step": 10, "config": measured.config, "config_digest": "d"}
        asked = evaluations.create(session, measured.id, **given).id
    sets = "/api/v1/prompt-sets"
    kept = api.post(sets, params={"name": "a", "file": "a.json"}, json=[{"prompt": "1?", "answer": "1"}]).json()
    calls = {
        "upload_prompt_set": f"{sets}?name=b&file=b.json",
        "delete_prompt_set": f"{sets}/a/{kept['version']}",
        "create_run": None,
        "create_token": None,
        "stop_run": f"/api/v1/runs/{run}/stop",
        "resume_run": f"/api/v1/runs/{run}/resume",
        "change_run": f"/api/v1/runs/{run}",
        "delete_run": f"/api/v1/runs/{add_run(engine, state='failed').id}",
        "clone_run": f"/api/v1/runs/{run}/clone",
        "mark_prompts": f"/api/v1/runs/{add_run(engine, dataset_id=add_prompts(engine, 1)).id}/prompts/marks",
        "create_evaluation": f"/api/v1/runs/{measured.id}/evaluations",
        "stop_evaluation": f"/api/v1/evaluations/{asked}/stop",
        "revoke_token": f"/api/v1/tokens/{token}",
        "change_settings": "/api/v1/settings",
        "create_webhook": None,
        "test_webhook": f"/api/v1/webhooks/{webhook}/test",
        "delete_webhook": f"/api/v1/webhooks/{other}",
    }
    bodies: dict[str, Any] = {"upload_prompt_set": [{"prompt": "2?", "answer": "2"}]}
    bodies |= {"change_run": {"priority": 3}, "clone_run": {"config": {"name": "again"}}}
    bodies |= {"mark_prompts": {"mark": "pin", "prompts": ["p000"]}}
    bodies |= {"create_evaluation": {}}
    bodies |= {"change_settings": {"price_per_gpu_hour": 2, "currency": "EUR"}}
    expected = 5
    for method, _, name in operations(api):
        if method == "GET" or name in CHANGE_NOTHING:
            continue
        if (path := calls.pop(name)) is not None:
            assert api.request(method, path, json=bodies.get(name)).is_success, name
            expected += 1
        entries = api.get("/api/v1/audit").json()["entries"]
        assert len(entries) == expected, name
    assert not calls
    assert "sesame" not in api.get("/api/v1/audit").text, "paths of webhooks are often secrets"
    by_action = {entry["action"]: entry for entry in api.get("/api/v1/audit").json()["entries"]}
    assert by_action["run.create"]["request_id"] == "build-7"
    assert by_action["run.create"]["before"] is None and by_action["run.create"]["after"]["name"] == "tiny"
    assert (by_action["run.stop"]["before"], by_action["run.stop"]["after"]) == (
        {"state": "queued"}, {"state": "stopped"},
    )  # fmt: skip
    assert {entry["token_name"] for entry in by_action.values()} == {"tests"}
    mine = api.get("/api/v1/audit", params={"target": run, "limit": 2}).json()
    rest = api.get("/api/v1/audit", params={"target": run, "limit": 2, "cursor": mine["next_cursor"]}).json()
    assert sorted(e["action"] for e in mine["entries"] + rest["entries"]) == [
        "run.change", "run.create", "run.resume", "run.stop",
    ]  # fmt: skip


def test_a_change_that_fails_is_not_in_the_audit_log(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, state="succeeded")
    assert api.post(f"/api/v1/runs/{run.id}/stop").status_code == 409
    assert api.delete(f"/api/v1/tokens/{NOBODY}").status_code == 404
    assert api.get("/api/v1/audit").json()["entries"] == []


def test_a_request_id_comes_back(api: TestClient) -> None:
    assert api.get("/healthz", headers={"x-request-id": "a-1"}).headers["x-request-id"] == "a-1"
    for odd in ("", "a b", "x" * 65, "ä"):
        given = api.get("/nothing", headers={"x-request-id": odd.encode("latin1")}).headers["x-request-id"]
        assert re.fullmatch(r"[0-9a-f]{32}", given)


def runs_stored(engine: sa.Engine) -> int:
    with Session(engine) as session:
        return session.scalar(sa.select(sa.func.count()).select_from(Run)) or 0


def test_the_same_key_starts_one_run(api: TestClient, engine: sa.Engine, config: dict[str, Any]) -> None:
    key = {"idempotency-key": "build 7"}
    first = api.post("/api/v1/runs", json={"config": config}, headers=key)
    api.post(f"/api/v1/runs/{first.json()['id']}/stop")
    second = api.post("/api/v1/runs", json={"config": config}, headers=key)
    assert (second.status_code, second.json()) == (201, first.json()), "the first answer, whatever happened since"
    assert second.headers["location"] == first.headers["location"]
    assert second.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
    assert runs_stored(engine) == 1

    other = api.post("/api/v1/runs", json={"config": config | {"name": "other"}}, headers=key)
    assert problem(other)["type"] == "/problems/key-reused"
    assert runs_stored(engine) == 1
    with engine.begin() as connection:
        connection.execute(sa.update(IdempotencyKey).values(expires_at=sa.func.now()))
    assert api.post("/api/v1/runs", json={"config": config | {"name": "other"}}, headers=key).status_code == 201
    assert runs_stored(engine) == 2


def test_a_key_is_its_tokens_own(api: TestClient, database_url: str, engine: sa.Engine, config: dict[str, Any]) -> None:
    for headers in ({}, bearer(make_token(database_url, "run"))):
        api.post("/api/v1/runs", json={"config": config}, headers={"idempotency-key": "k"} | headers)
    assert runs_stored(engine) == 2


def test_a_refused_request_uses_no_key_up(api: TestClient, engine: sa.Engine, config: dict[str, Any]) -> None:
    key = {"idempotency-key": "k"}
    broken = config | {"seed": "x"}
    assert api.post("/api/v1/runs", json={"config": broken}, headers=key).status_code == 422
    assert api.post("/api/v1/runs", json={"config": config}, headers=key).status_code == 201


def test_the_same_key_at_the_same_time(api: TestClient, engine: sa.Engine, config: dict[str, Any]) -> None:
    answers: list[Any] = []

    def ask() -> None:
        answers.append(api.post("/api/v1/runs", json={"config": config}, headers={"idempotency-key": "k"}))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [a.status_code for a in answers] == [201] * 6
    assert len({a.json()["id"] for a in answers}) == 1
    assert runs_stored(engine) == 1
