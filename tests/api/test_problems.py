"""Every error is a problem (RFC 9457) that says what was wrong, and is documented; bad input is never a 5xx."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.app import create_app
from api.problems import BODY_LIMIT
from api.settings import Settings
from db import runs, views
from pipeline.section import spelling
from tests.api.rows import add_prompts, add_run

RUN = "5ce264c8-dc11-48a3-9394-15ec6b5ba4ca"


def problem(response: httpx.Response) -> dict[str, Any]:
    """The problem in the answer, checked for its form."""
    assert response.headers["content-type"] == "application/problem+json", response.text
    body: dict[str, Any] = json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert body["status"] == response.status_code >= 400
    assert body["type"].startswith("/problems/")
    assert body["title"] and body["detail"] and body["instance"].startswith(("/", "'"))
    assert all({"field", "value", "message"} == set(error) for error in body["errors"])
    return body


def opaque(text: str) -> str:
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind", "field"),
    [
        ("GET", "/nothing/here", 404, "route-not-found", None),
        ("GET", "/api/v1/runs/", 404, "route-not-found", None),
        ("DELETE", "/api/v1/runs", 405, "method-not-allowed", None),
        ("PUT", f"/api/v1/runs/{RUN}/stop", 405, "method-not-allowed", None),
        ("GET", "/api/v1/runs/not-a-uuid", 422, "invalid-request", "path.run_id"),
        ("GET", f"/api/v1/runs/{RUN}%00", 422, "invalid-request", "path.run_id"),
        ("POST", "/api/v1/runs/not-a-uuid/stop", 422, "invalid-request", "path.run_id"),
        ("GET", "/api/v1/runs?limit=0", 422, "invalid-request", "query.limit"),
        ("GET", "/api/v1/runs?limit=201", 422, "invalid-request", "query.limit"),
        ("GET", "/api/v1/runs?limit=many", 422, "invalid-request", "query.limit"),
        ("GET", "/api/v1/runs?state=sleeping", 422, "invalid-request", "query.state.0"),
        ("GET", "/api/v1/runs?stat=running", 422, "invalid-request", "query.stat"),
        ("GET", "/api/v1/runs?cursor=zzz", 422, "invalid-request", "query.cursor"),
        ("GET", "/api/v1/runs?cursor=%00", 422, "invalid-request", "query.cursor"),
        ("GET", "/api/v1/runs?cursor=" + opaque('{"id": 1}'), 422, "invalid-request", "query.cursor"),
        ("GET", f"/api/v1/runs/{RUN}/metrics?from_step=-1", 422, "invalid-request", "query.from_step"),
        ("GET", f"/api/v1/runs/{RUN}/buckets?from_step={2**31}", 422, "invalid-request", "query.from_step"),
        ("GET", f"/api/v1/runs/{RUN}/prompts?sort=id", 422, "invalid-request", "query.sort"),
        ("GET", f"/api/v1/runs/{RUN}/prompts?bucket=pail", 422, "invalid-request", "query.bucket"),
        ("GET", f"/api/v1/runs/{RUN}/prompts?search=%00", 422, "invalid-request", "query.search"),
        ("GET", f"/api/v1/runs/{RUN}/prompts?search={'x' * 501}", 422, "invalid-request", "query.search"),
        ("GET", f"/api/v1/runs/{RUN}/prompts/p%00", 422, "invalid-request", "path.prompt_id"),
        ("GET", f"/api/v1/runs/{RUN}", 404, "run-not-found", None),
    ],
)
def test_bad_addresses(api: TestClient, method: str, path: str, status: int, kind: str, field: str | None) -> None:
    body = problem(api.request(method, path))
    assert (body["status"], body["type"]) == (status, f"/problems/{kind}")
    if field is not None:
        assert field in [error["field"] for error in body["errors"]]


def test_what_a_text_may_hold_is_told_in_words(api: TestClient) -> None:
    config = {"name": "a=b", "model": {"path": "x"}, "data": {"train": "t", "eval": "e"}}
    (name,) = problem(api.post("/api/v1/runs", json={"config": config}))["errors"]
    assert name == {"field": "name", "value": "a=b", "message": "accepted: letters, digits, spaces and _.+-"}
    (tag,) = problem(api.patch(f"/api/v1/runs/{RUN}", json={"tags": ["a,b"]}))["errors"]
    assert (tag["field"], tag["value"]) == ("body.tags.0", "a,b") and "no comma" in tag["message"]
    stated = [api.get("/openapi.json").json(), api.get("/api/v1/config/schema").json()]
    patterns = set(patterns_in(stated))
    assert r"^[A-Z]{3}$" in patterns and not [p for p in patterns if not spelling(p).startswith("accepted: ")]


def patterns_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict) and isinstance(schema.get("pattern"), str):
        yield schema["pattern"]
    for part in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from patterns_in(part)


def test_all_methods_of_an_address_are_named(api: TestClient) -> None:
    for path, methods in (("/api/v1/runs", "GET, POST"), (f"/api/v1/runs/{RUN}", "DELETE, GET, PATCH")):
        refused = api.put(path)
        assert refused.headers["allow"] == methods and problem(refused)["detail"] == f"Use {methods} here."


@pytest.mark.parametrize("value", [2**40, -(2**40), 1e300, "NaN", None, "x"])
@pytest.mark.parametrize("sort", ["-visits", "step", "success_rate"])
def test_a_forged_cursor_is_refused(api: TestClient, engine: sa.Engine, sort: str, value: object) -> None:
    run = add_run(engine, dataset_id=add_prompts(engine, 3))
    forged = {"bucket": None, "search": None, "sort": sort, "value": value, "id": "p"}
    params = {"sort": sort, "cursor": opaque(json.dumps(forged))}
    body = problem(api.get(f"/api/v1/runs/{run.id}/prompts", params=params))
    assert (body["status"], body["errors"][0]["field"]) == (422, "query.cursor")


def test_a_method_that_is_not_taken_says_which_are(api: TestClient) -> None:
    response = api.delete("/api/v1/runs")
    allowed = response.headers["allow"]
    assert "GET" in allowed or "POST" in allowed
    assert allowed in problem(response)["detail"]


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/api/v1/runs", "/api/v1/config/validate"])
@pytest.mark.parametrize(
    ("content", "headers", "status", "kind"),
    [
        (b"{", JSON, 400, "invalid-json"),
        (b'{"config": {}} trailing', JSON, 400, "invalid-json"),
        (b"\xff\xfe\xfd", JSON, 400, "invalid-json"),
        (b"[" * 100_000, JSON, 400, "invalid-json"),
        (b'{"config": ' + b"1" * 5000 + b"}", JSON, 400, "invalid-json"),
        (b"", JSON, 422, "invalid-request"),
        (b"[]", JSON, 422, "invalid-request"),
        (b"null", JSON, 422, "invalid-request"),
        (b'"\\ud800"', JSON, 422, "invalid-request"),
        (b"NaN", JSON, 422, "invalid-request"),
        (b'{"config": NaN}', JSON, 422, "invalid-request"),
        (b'{"config": "\\ud800"}', JSON, 422, "invalid-request"),
        (b'{"config": {}, "\\ud800": 1}', JSON, 422, "invalid-request"),
        (b'{"config": {}, "extra": 1}', JSON, 422, "invalid-request"),
        (b'{"config": {}}', {"content-type": "text/plain"}, 415, "not-json"),
        (b'{"config": {}}', {}, 415, "not-json"),
        (b"config=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "not-json"),
        (b" " * (BODY_LIMIT + 1), JSON, 413, "body-too-large"),
    ],
)
def test_bad_bodies(
    api: TestClient, path: str, content: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    body = problem(api.post(path, content=content, headers=headers))
    assert (body["status"], body["type"]) == (status, f"/problems/{kind}")


def test_a_body_of_the_largest_size_is_taken(api: TestClient) -> None:
    content = b'{"config": {}}'.ljust(BODY_LIMIT)
    assert api.post("/api/v1/config/validate", content=content, headers=JSON).status_code == 200


def test_a_large_body_without_a_length_is_cut_off(api: TestClient) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while taken < 100 * BODY_LIMIT:
            taken += 65536
            yield b" " * 65536

    # The test client gathers a stream before it sends it, hence the end; a server passes it on in pieces.
    assert problem(api.post("/api/v1/runs", content=endless(), headers=JSON))["status"] == 413


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({}, "model"),
        ({"name": "a\x00b"}, "name"),
        ({"name": ["x", {"y": "\x00"}]}, "name.1.y"),
        ({"a\x00": 1}, "config"),
        ({"seed": float("nan")}, "seed"),
        ({"seed": float("inf")}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"seed": -1}, "seed"),
        ({"name": "\ud800"}, "name"),
        ({"\udfff": 1}, "config"),
        ({"name": " x"}, "name"),
        ({"method": {"name": "magic"}}, "method.name"),
        ({"update": {"mini_batches": 5, "batch_prompts": 4}}, "update"),
        ({"budget": {"steps": 0}}, "budget.steps"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_bad_configs(api: TestClient, engine: sa.Engine, config: dict[str, Any], field: str) -> None:
    body = json.dumps({"config": config})
    refused = problem(api.post("/api/v1/runs", content=body, headers=JSON))
    assert (refused["status"], refused["type"]) == (422, "/problems/invalid-config")
    assert field in [error["field"] for error in refused["errors"]]
    check = api.post("/api/v1/config/validate", content=body, headers=JSON)
    assert (check.status_code, check.json()["valid"], check.json()["config"]) == (200, False, None)
    assert field in [error["field"] for error in check.json()["problems"]]


def test_a_deeply_nested_config(api: TestClient) -> None:
    for depth in (40, 400, 900):
        body = '{"config": {"name": ' + "[" * depth + "]" * depth + "}}"
        assert problem(api.post("/api/v1/runs", content=body, headers=JSON))["status"] in (400, 422)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8000", 200), ("localhost", 200), ("LocalHost:1", 200), ("[::1]:8000", 200),
        ("evil.example", 421), ("127.0.0.1.evil.example", 421), ("localhost@evil.example", 421), ("", 421), ("[", 421),
    ],
)  # fmt: skip
def test_only_known_host_names_are_answered(api: TestClient, host: str, status: int) -> None:
    response = api.get("/healthz", headers={"host": host})
    assert response.status_code == status
    if status == 421:
        assert problem(response)["type"] == "/problems/unknown-host"


def test_pages_of_others_cannot_post(api: TestClient, engine: sa.Engine) -> None:
    address = f"/api/v1/runs/{add_run(engine).id}/stop"
    for origin in ("https://evil.example", "null", "http://["):
        assert problem(api.post(address, headers={"origin": origin}))["type"] == "/problems/foreign-origin"
    assert api.post(address, headers={"origin": "http://localhost:8501"}).status_code == 202


def test_more_hosts_can_be_allowed(database_url: str, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_ALLOWED_HOSTS", "Pilot.example, [::1]")
    with TestClient(create_app(), "http://pilot.example") as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/healthz", headers={"host": "[::1]:80"}).status_code == 200
        assert client.get("/healthz", headers={"host": "localhost"}).status_code == 421


def test_an_unforeseen_error_leaks_nothing(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("the secret"), sa.exc.IntegrityError("SELECT secret", {}, Exception("secret"))):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(runs, "get", fail)
        response = api.get(f"/api/v1/runs/{RUN}")
        assert problem(response)["type"] == "/problems/internal-error"
        assert "secret" not in response.text


def test_a_statement_that_takes_too_long(api: TestClient, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(session: Any, *_: object) -> None:
        session.execute(sa.text("SET statement_timeout = 50"))
        session.execute(sa.text("SELECT pg_sleep(5)"))

    monkeypatch.setattr(runs, "get", slow)
    response = api.get(f"/api/v1/runs/{RUN}")
    assert problem(response)["type"] == "/problems/database-busy"
    assert response.headers["retry-after"]


def test_a_database_that_goes_away_is_a_503_and_comes_back(
    api: TestClient, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(engine)
    genuine = views.get

    def cut(session: Any, run_id: uuid.UUID) -> Any:
        pid = session.scalar(sa.text("SELECT pg_backend_pid()"))
        with engine.begin() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        return genuine(session, run_id)

    monkeypatch.setattr(views, "get", cut)
    assert problem(api.get(f"/api/v1/runs/{run.id}/metrics"))["type"] == "/problems/database-unavailable"
    monkeypatch.undo()
    assert api.get(f"/api/v1/runs/{run.id}/metrics").status_code == 200


def test_no_database_at_all() -> None:
    unreachable = Settings(database_url="postgresql://u:hunter2@127.0.0.1:1/x", redis_url="redis://127.0.0.1:1")
    with TestClient(
        create_app(unreachable),
        "http://127.0.0.1",
        raise_server_exceptions=False,
        headers={"authorization": "Bearer x"},
    ) as client:
        for path in ("/api/v1/runs", f"/api/v1/runs/{RUN}", f"/api/v1/runs/{RUN}/prompts"):
            response = client.get(path)
            assert problem(response)["type"] == "/problems/database-unavailable"
            assert "hunter2" not in response.text
        assert client.get("/healthz").status_code == 200


@pytest.fixture(scope="module")
def strange() -> st.SearchStrategy[str]:
    return st.one_of(
        st.text(max_size=12),
        st.sampled_from(["0", "-1", "1e9", "9" * 30, "NaN", "null", "\x00", "%", "'--", "p000", "visits", RUN]),
        st.text(max_size=12).map(opaque),
        st.integers().map(lambda i: opaque(json.dumps({"value": i, "id": "p", "sort": "-visits"}))),
    )


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
@given(data=st.data())
def test_whatever_is_asked_the_answer_is_documented(
    api: TestClient, engine: sa.Engine, known_run: str, strange: st.SearchStrategy[str], data: st.DataObject
) -> None:
    """Random paths, parameters and bodies on every operation: no 5xx, documented statuses, well-formed problems."""
    document = api.app.openapi()  # type: ignore[attr-defined]
    path = data.draw(st.sampled_from(sorted(document["paths"])))
    method = data.draw(st.sampled_from(sorted(document["paths"][path])))
    operation = document["paths"][path][method]
    asked = path.replace("{run_id}", data.draw(st.sampled_from([known_run, RUN, "x"])))
    asked = asked.replace("{prompt_id}", data.draw(st.sampled_from(["p000", "p999", "%00", "a%2Fb"])))
    names = [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"] + ["other"]
    params = data.draw(st.dictionaries(st.sampled_from(names), strange, max_size=3))
    body: dict[str, Any] = {}
    if "requestBody" in operation:
        values = st.recursive(strange | st.none() | st.floats() | st.integers(), lambda v: st.lists(v, max_size=3))
        config = data.draw(st.dictionaries(strange, values, max_size=3))
        body = {"content": json.dumps({"config": config}), "headers": JSON}
    response = api.request(method.upper(), asked, params=params, **body)
    assert response.status_code < 500, response.text
    assert str(response.status_code) in operation["responses"]
    if response.status_code >= 400:
        jsonschema.validate(problem(response), {"$ref": "#/components/schemas/Problem", **document})
    elif response.headers["content-type"] == "application/json":
        schema = operation["responses"][str(response.status_code)]["content"]["application/json"]["schema"]
        jsonschema.validate(response.json(), {**schema, "components": document["components"]})


@pytest.fixture
def known_run(engine: sa.Engine) -> str:
    """It has ended: nothing to wait for."""
    return str(add_run(engine, dataset_id=add_prompts(engine, 3), state="succeeded").id)


def test_a_config_without_its_wrapper_gets_one_sentence(api: TestClient) -> None:
    body = {"model": {"path": "m"}, "data": {"train": "a", "eval": "b"}}
    (error,) = problem(api.post("/api/v1/runs", json=body))["errors"]
    assert error["message"].endswith('the body must wrap the run config: {"config": {...}}')
