"""The API as its own process: what it imports, how it starts, how it refuses to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from urllib.parse import urlsplit

import psutil
import pytest
import sqlalchemy as sa

from api.client import ApiError, ApiUnreachable, Client
from db.models import Delivery
from tests.api.served import make_token

HEAVY = ("torch", "transformers", "pandas", "pyarrow", "numpy", "streamlit", "celery.bin", "IPython", "pytest")


def test_nothing_heavy_is_imported(database_url: str, broker_url: str) -> None:
    code = f"""
import sys, uuid
from api.app import create_app
app = create_app()
app.openapi()
from worker import queue
queue.enqueue(uuid.uuid4())
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_served_api(database_url: str, broker_url: str) -> None:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-m", "api", "--port", str(port)], stderr=subprocess.PIPE, text=True)
    try:
        token = make_token(database_url)
        with Client(f"http://127.0.0.1:{port}", token) as client:
            for _ in range(200):
                try:
                    assert client.readyz().status == "ok"
                    break
                except ApiUnreachable:
                    time.sleep(0.1)
            for _ in range(20):
                client.list_runs()
        listening = [c.laddr.ip for c in psutil.Process(process.pid).net_connections() if c.status == "LISTEN"]
        assert listening == ["127.0.0.1"]
        # Generous: what it takes is measured by bench, and differs between machines.
        assert psutil.Process(process.pid).memory_info().rss < 200 * 2**20
        # A body in pieces without a length is cut off while it arrives.
        with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
            raw.sendall(
                b"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
                b"Authorization: Bearer " + token.encode() + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            try:
                for _ in range(40):
                    raw.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
            except OSError:
                pass  # cut off already
            assert b" 413 " in raw.recv(4096)
    finally:
        process.terminate()
        process.wait(15)
    assert process.returncode in (0, -15)


def test_no_secret_is_logged(
    database_url: str, broker_url: str, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by what goes well, what is refused, what fails, nor by the thread that tells webhooks."""
    monkeypatch.setenv("PILOT_WEBHOOK_ALLOW", "127.0.0.1")
    port, closed = free_port(), free_port()
    process = subprocess.Popen([sys.executable, "-m", "api", "--port", str(port)], stderr=subprocess.PIPE, text=True)
    secrets = [make_token(database_url), "pilot_" + "w" * 43, "sesame"]
    secrets += [password for url in (database_url, broker_url) if (password := urlsplit(url).password)]
    try:
        with Client(f"http://127.0.0.1:{port}", secrets[0]) as client:
            for _ in range(300):
                try:
                    client.healthz()
                    break
                except ApiUnreachable:
                    time.sleep(0.1)
            secrets.append(client.create_token("t").secret)
            made = client._send("POST", "/api/v1/webhooks", json={"url": f"http://127.0.0.1:{closed}/sesame"}).json()
            secrets.append(made["secret"])
            client._send("POST", f"/api/v1/webhooks/{made['id']}/test")
            with pytest.raises(ApiError):
                client.create_run({"model": {"path": "/nowhere"}})
        with Client(f"http://127.0.0.1:{port}", secrets[1]) as stranger, pytest.raises(ApiError):
            stranger.list_runs()
        deadline = time.monotonic() + 60
        while True:  # until the webhook was tried
            with engine.connect() as connection:
                error = connection.execute(sa.select(Delivery.error)).scalar_one()
            if error is not None:
                break
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert "refused" in error and "sesame" not in error
        with engine.begin() as connection:  # what the API does next fails
            connection.execute(sa.text("ALTER TABLE runs RENAME TO gone"))
        try:
            with Client(f"http://127.0.0.1:{port}", secrets[0]) as client, pytest.raises(ApiError):
                client.list_runs()
        finally:
            with engine.begin() as connection:
                connection.execute(sa.text("ALTER TABLE gone RENAME TO runs"))
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert "runs" in said, "something was logged"
    for secret in secrets:
        assert secret not in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"DATABASE_URL": None}, "DATABASE_URL"),
        ({"REDIS_URL": None}, "REDIS_URL"),
        ({"DATABASE_URL": "mysql://u:hunter2@x/y"}, "needs Postgres"),
        ({"PILOT_ALLOWED_HOSTS": ""}, "PILOT_ALLOWED_HOSTS"),
    ],
)
def test_settings_that_are_missing_are_named(changes: dict[str, str | None], message: str) -> None:
    given: dict[str, str | None] = {"DATABASE_URL": "postgresql://u@127.0.0.1:1/x", "REDIS_URL": "redis://127.0.0.1:1"}
    environment = os.environ | {name: value for name, value in (given | changes).items() if value is not None}
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
    result = subprocess.run([sys.executable, "-m", "api"], env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr and "hunter2" not in result.stderr


def test_a_port_in_use_is_said(database_url: str, broker_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "api", "--port", port]
        result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode != 0
    assert "address already in use" in result.stderr
