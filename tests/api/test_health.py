"""Alive and ready: what is down is named, with what to do."""

from __future__ import annotations

import socket
import time

from fastapi.testclient import TestClient

from api.app import create_app
from api.settings import Settings


def ready(database: str, broker: str) -> tuple[int, dict[str, str]]:
    app = create_app(Settings(database_url=database, redis_url=broker))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        assert client.get("/healthz").json() == {"status": "ok", "checks": {"api": "ok"}}
        response = client.get("/readyz")
    if response.status_code == 503:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == "/problems/not-ready"
    return response.status_code, response.json()["checks"]


def test_ready(database_url: str, broker_url: str) -> None:
    status, checks = ready(database_url, broker_url)
    assert status == 200, checks
    assert checks == {"database": "ok", "migrations": "ok", "broker": "ok"}


def test_no_broker(database_url: str) -> None:
    for broker in ("redis://:hunter2@127.0.0.1:1", "http://:hunter2@x"):
        status, checks = ready(database_url, broker)
        assert status == 503
        assert (checks["database"], checks["migrations"]) == ("ok", "ok")
        assert "REDIS_URL" in checks["broker"]
        assert "hunter2" not in checks["broker"]


def test_a_broker_that_accepts_and_says_nothing(database_url: str) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        status, checks = ready(database_url, f"redis://127.0.0.1:{silent.getsockname()[1]}")
    assert (status, checks["database"]) == (503, "ok")
    assert "does not answer" in checks["broker"]
    assert time.monotonic() - began < 8, "the answer must come before clients give up"


def test_no_database(broker_url: str) -> None:
    status, checks = ready("postgresql://u:hunter2@127.0.0.1:1/x", broker_url)
    assert (status, checks["broker"]) == (503, "ok")
    assert "DATABASE_URL" in checks["database"]
    assert "hunter2" not in checks["database"]


def test_an_empty_database(bare_database: str, broker_url: str) -> None:
    status, checks = ready(bare_database, broker_url)
    assert (status, checks["database"]) == (503, "ok")
    assert "pilot db upgrade" in checks["migrations"]
    app = create_app(Settings(database_url=bare_database, redis_url=broker_url))
    with TestClient(app, "http://127.0.0.1", raise_server_exceptions=False) as client:
        response = client.get("/api/v1/runs", headers={"authorization": "Bearer x"})
    assert (response.status_code, response.json()["type"]) == (503, "/problems/database-not-migrated")
