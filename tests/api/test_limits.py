"""Rates, other web pages, and numbers for Prometheus."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from api.app import create_app
from api.rates import Rates
from api.settings import Settings, SettingsMissing
from db.models import Host, Slot
from tests.api.rows import add, add_run
from tests.api.served import ApiServer, make_token
from tests.api.test_access import bearer
from tests.api.test_problems import RUN, problem


def test_a_bucket_is_refilled() -> None:
    now = [0.0]
    rates = Rates(2, 4, clock=lambda: now[0])
    assert [rates.wait_s("a") for _ in range(4)] == [0] * 4
    assert rates.wait_s("a") == 0.5
    assert rates.wait_s("b") == 0, "each has its own"
    now[0] = 0.5
    assert (rates.wait_s("a"), rates.wait_s("a")) == (0, 0.5)
    now[0] = 1000
    assert [rates.wait_s("a") > 0 for _ in range(5)] == [False] * 4 + [True], "never more than the bucket holds"
    assert all(Rates(0, 0).wait_s("a") == 0 for _ in range(100))


def test_silent_senders_are_forgotten() -> None:
    now = [0.0]
    rates = Rates(1, 2, clock=lambda: now[0])
    for sender in range(10_000):
        rates.wait_s(sender)
    now[0] = 10
    rates.wait_s("new")
    assert len(rates._left) == 1


def test_a_token_that_asks_too_often_waits(database_url: str, broker_url: str) -> None:
    settings = Settings(database_url=database_url, redis_url=broker_url, rate_limit=0.5)
    one, other = bearer(make_token(database_url)), bearer(make_token(database_url))
    with TestClient(create_app(settings), "http://127.0.0.1") as api:
        answers = [api.get("/api/v1/me", headers=one) for _ in range(7)]
        assert [a.status_code for a in answers[:5]] == [200] * 5
        body = problem(answers[-1])
        assert body["type"] == "/problems/too-many-requests" and 1 <= int(answers[-1].headers["retry-after"]) <= 2
        assert api.get("/api/v1/me", headers=other).status_code == 200, "the limit is each token's own"
        assert api.get("/healthz").status_code == 200
        refused = [api.get("/api/v1/me", headers=bearer("pilot_wrong")).status_code for _ in range(4)]
        assert refused[0] == 401 and refused[-1] == 429


def test_many_clients_at_once_are_all_answered(served: ApiServer) -> None:
    """More than there are threads and connections, of which none may wait for the other."""

    def ask(_: int) -> list[int]:
        with httpx.Client(base_url=served.url, headers=bearer(served.token), timeout=20) as client:
            return [client.get("/api/v1/me").status_code for _ in range(2)]

    with ThreadPoolExecutor(60) as clients:
        assert [code for codes in clients.map(ask, range(60)) for code in codes] == [200] * 120


def test_other_web_pages_are_shut_out_by_default(api: TestClient) -> None:
    asked = {"origin": "https://lab.example.org", "access-control-request-method": "GET"}
    for response in (api.get("/api/v1/me", headers=asked), api.options("/api/v1/me", headers=asked)):
        assert not [name for name in response.headers if name.startswith("access-control")]


def test_a_page_that_is_let_in(database_url: str, broker_url: str) -> None:
    settings = Settings(database_url=database_url, redis_url=broker_url, cors_origins=("https://lab.example.org",))
    token = bearer(make_token(database_url))
    with TestClient(create_app(settings), "http://127.0.0.1") as api:
        for origin, allowed in (("https://lab.example.org", True), ("https://evil.example", False)):
            before = api.options(
                "/api/v1/runs",
                headers={
                    "origin": origin,
                    "access-control-request-method": "POST",
                    "access-control-request-headers": "authorization,content-type",
                },
            )
            assert (before.headers.get("access-control-allow-origin") == origin) == allowed
            sent = api.post(f"/api/v1/runs/{RUN}/stop", headers=token | {"origin": origin})
            assert sent.status_code == (404 if allowed else 403)
            assert (sent.headers.get("access-control-allow-origin") == origin) == allowed


@pytest.mark.parametrize(
    ("name", "value"),
    [("PILOT_CORS_ORIGINS", "*"), ("PILOT_CORS_ORIGINS", "https://a.example/x"), ("PILOT_RATE_LIMIT", "-1")],
)
def test_settings_that_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    for given in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.setenv(given, "x")
    monkeypatch.setenv(name, value)
    with pytest.raises(SettingsMissing, match=name):
        Settings.from_environment()


def scraped(api: TestClient) -> dict[tuple[str, ...], float]:
    response = api.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, *(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(response.text)
        for sample in family.samples
    }


def test_numbers_for_prometheus(api: TestClient, engine: sa.Engine) -> None:
    for state, rollouts in (("running", 100), ("running", 20), ("queued", 0), ("failed", 3)):
        add_run(engine, state=state, rollouts=rollouts, tokens=10 * rollouts)
    run = add_run(engine, state="succeeded", deleted_at=sa.func.now())
    expires = sa.text("now() + interval '1 hour'")
    add(engine, Host(name="h", expires_at=expires))
    slots = [
        Slot(host="h", kind="cuda", position=i, device=str(i), label="", offered=True, run_id=run.id if i else None)
        for i in range(3)
    ]
    add(engine, *slots)
    for path in (f"/api/v1/runs/{RUN}", f"/api/v1/runs/{run.id}", "/nothing", "/secret-in-a-path"):
        api.get(path)
    found = scraped(api)
    assert {state: found["pilot_runs", f"state={state}"] for state in ("running", "queued", "failed", "succeeded")} == {
        "running": 2, "queued": 1, "failed": 1, "succeeded": 0,
    }  # fmt: skip
    assert (found["pilot_slots", "kind=cuda"], found["pilot_slots_free", "kind=cuda"]) == (3, 1)
    assert (found["pilot_training_rollouts",], found["pilot_training_tokens",]) == (123, 1230)
    assert found["pilot_oldest_queued_seconds",] >= 0 and found["pilot_database_up",] == 1
    route = ("method=GET", "route=/api/v1/runs/{run_id}", "status=404")
    assert found["pilot_api_requests_total", *route] == 2
    assert found["pilot_api_requests_total", "method=GET", "route=other", "status=404"] == 2
    assert not any("secret" in label or RUN in label for key in found for label in key)


def test_numbers_without_a_database() -> None:
    from api.metrics import Metrics
    from db import create_engine

    metrics = Metrics(create_engine("postgresql://u@127.0.0.1:1/x"))
    (up,) = [s for f in metrics.registry.collect() for s in f.samples if s.name.startswith("pilot_database")]
    assert up.value == 0
