"""Webhooks: what is told, signed, tried again; and what no webhook can be made to reach."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api import notify, outbound
from api.app import create_app
from api.settings import Settings, SettingsMissing
from db.models import Delivery, Run
from db.webhooks import BACK_OFF_S
from tests.api.rows import add, add_run, step
from tests.api.served import make_token
from tests.api.test_problems import problem

LOOPBACK = (ipaddress.ip_network("127.0.0.0/8"),)


class Receiver:
    """Somebody's server: keeps what it is sent and answers as it is told."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
                self.send_header("Location", f"{receiver.url}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def api(database_url: str, broker_url: str) -> Iterator[TestClient]:
    settings = Settings(database_url=database_url, redis_url=broker_url, webhook_allow=LOOPBACK)
    headers = {"authorization": f"Bearer {make_token(database_url)}"}
    with TestClient(create_app(settings), "http://127.0.0.1", headers=headers) as client:
        yield client


def make(api: TestClient, url: str, *events: str) -> dict[str, Any]:
    response = api.post("/api/v1/webhooks", json={"url": url, **({"events": events} if events else {})})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


def deliveries(api: TestClient, webhook: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"/api/v1/webhooks/{webhook['id']}/deliveries").json()["deliveries"]
    return found


def test_every_change_of_state_is_told_and_signed(api: TestClient, engine: sa.Engine, receiver: Receiver) -> None:
    webhook = make(api, f"{receiver.url}/hook?x=1", "run.state")
    run = add_run(engine)
    with engine.begin() as connection:
        connection.execute(sa.update(Run).values(state="running", attempt=1))
        connection.execute(sa.update(Run).values(step=5))  # no change of state
    with engine.connect() as connection:  # rolled back: it never happened
        connection.execute(sa.update(Run).values(state="failed"))
        connection.rollback()
    api.post(f"/api/v1/runs/{run.id}/stop")
    while notify.deliver(engine, LOOPBACK):
        pass
    told = []
    for path, headers, body in sorted(receiver.got, key=lambda got: int(got[1]["webhook-id"])):
        assert path == "/hook?x=1" and headers["content-type"] == "application/json"
        assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
        content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        key = base64.b64decode(webhook["secret"].removeprefix("whsec_"))
        expected = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{expected}"
        event = json.loads(body)
        assert (event["type"], event["data"]["run"]) == ("run.state", str(run.id))
        told.append((event["data"]["before"], event["data"]["state"]))
    assert told == [(None, "queued"), ("queued", "running"), ("running", "stopping")]
    found = deliveries(api, webhook)
    assert [(d["status"], d["attempts"], d["error"]) for d in found] == [(204, 1, None)] * 3
    assert all(d["delivered_at"] for d in found)
    assert webhook["secret"] not in api.get("/api/v1/webhooks").text + api.get("/api/v1/audit").text


def test_a_failed_delivery_is_tried_again_and_given_up_in_the_end(
    api: TestClient, engine: sa.Engine, receiver: Receiver
) -> None:
    webhook = make(api, receiver.url)
    api.post(f"/api/v1/webhooks/{webhook['id']}/test")
    receiver.answers = [500, 302, *[503] * 20]

    def now_due() -> None:
        with engine.begin() as connection:
            connection.execute(sa.update(Delivery).values(due_at=sa.func.now()))

    for attempt in range(1, len(BACK_OFF_S) + 2):
        assert notify.deliver(engine, LOOPBACK) == 1
        assert notify.deliver(engine, LOOPBACK) == 0, "not before its time"
        (delivery,) = deliveries(api, webhook)
        assert delivery["attempts"] == attempt and delivery["delivered_at"] is None
        if attempt <= len(BACK_OFF_S):
            with Session(engine) as session:
                wait = session.scalar(sa.select(Delivery.due_at - sa.func.now()))
            assert wait is not None and BACK_OFF_S[attempt - 1] - 30 < wait.total_seconds() <= BACK_OFF_S[attempt - 1]
        now_due()
    assert delivery["given_up_at"] is not None and "it answered 503" in delivery["error"]
    assert notify.deliver(engine, LOOPBACK) == 0
    assert {path for path, _, _ in receiver.got} == {"/"}, "no redirect is followed"
    assert len({headers["webhook-id"] for _, headers, _ in receiver.got}) == 1, "by which a receiver knows it again"


def test_what_was_claimed_by_one_that_died_is_due_again(
    api: TestClient, engine: sa.Engine, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook = make(api, receiver.url)
    api.post(f"/api/v1/webhooks/{webhook['id']}/test")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(notify, "_send", die)
    with pytest.raises(KeyboardInterrupt):
        notify.deliver(engine, LOOPBACK)
    monkeypatch.undo()
    assert notify.deliver(engine, LOOPBACK) == 0, "its minute is not over"
    with engine.begin() as connection:
        connection.execute(sa.update(Delivery).values(due_at=sa.func.now()))
    assert notify.deliver(engine, LOOPBACK) == 1
    assert deliveries(api, webhook)[0]["delivered_at"]


def test_an_alert_is_told_once_while_it_lasts(api: TestClient, engine: sa.Engine, receiver: Receiver) -> None:
    webhook = make(api, receiver.url, "run.alert")
    run = add_run(engine, state="running", attempt=1, step=1)
    add(engine, step(run, 1))  # long ago: it stalls

    def told() -> list[tuple[str, str]]:
        notify.look(engine)
        notify.look(engine)
        while notify.deliver(engine, LOOPBACK):
            pass
        found = [json.loads(body) for _, _, body in receiver.got]
        receiver.got.clear()
        return [(event["type"], event["data"]["kind"]) for event in found]

    assert told() == [("run.alert", "stall")]
    assert told() == []
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE step_metrics SET finished_at = now()"))
    assert told() == []
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE step_metrics SET finished_at = now() - interval '1 hour'"))
    assert told() == [("run.alert", "stall")], "it was over in between"
    body = deliveries(api, webhook)[0]["body"]
    assert body["run"] == str(run.id) and body["suggestion"]


def test_a_deleted_webhook_is_told_nothing(api: TestClient, engine: sa.Engine, receiver: Receiver) -> None:
    webhook = make(api, receiver.url)
    api.post(f"/api/v1/webhooks/{webhook['id']}/test")
    assert api.delete(f"/api/v1/webhooks/{webhook['id']}").status_code == 200
    add_run(engine)
    assert notify.deliver(engine, LOOPBACK) == 0 and receiver.got == []
    for method, rest in (("GET", "/deliveries"), ("POST", "/test"), ("DELETE", "")):
        response = api.request(method, f"/api/v1/webhooks/{webhook['id']}{rest}")
        assert problem(response)["type"] == "/problems/webhook-not-found"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost:1/", "http://127.1/", "http://2130706433/", "http://0x7f.0.0.1/",
        "http://[::1]/", "http://[::ffff:127.0.0.1]/", "http://[::ffff:10.0.0.1]/", "http://0.0.0.0/", "http://[::]/",
        "http://10.0.0.1/", "http://172.16.0.1/", "http://192.168.1.1/", "http://100.64.0.1/", "http://169.254.169.254/",
        "http://[fe80::1]/", "http://[fd00::1]/", "http://[64:ff9b::7f00:1]/", "http://[2002:7f00:1::]/",
        "http://224.0.0.1/", "http://255.255.255.255/", "http://host.invalid/", "ftp://1.1.1.1/", "http:///x",
        "file:///etc/passwd", "http://user:pass@1.1.1.1/", "http://1.1.1.1/#x", "http://1.1.1.1:99999/", "http://[::1",
        "http://1.1.1.1/a b", "gopher://1.1.1.1", "x",
    ],
)  # fmt: skip
def test_what_is_refused(database_url: str, broker_url: str, url: str) -> None:
    settings = Settings(database_url=database_url, redis_url=broker_url)
    headers = {"authorization": f"Bearer {make_token(database_url)}"}
    with TestClient(create_app(settings), "http://127.0.0.1", headers=headers) as api:
        body = problem(api.post("/api/v1/webhooks", json={"url": url}))
        assert body["errors"][0]["field"] == "body.url", body
        assert api.get("/api/v1/webhooks").json() == {"webhooks": []}


def test_public_addresses_are_accepted() -> None:
    for url in ("http://1.1.1.1/", "https://[2606:4700:4700::1111]:8443/x?y=z", "http://[::ffff:1.1.1.1]/"):
        outbound.check_url(url, ())


def test_a_name_that_changes_meanwhile_gains_nothing(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Public when the webhook is made, loopback when it is delivered to."""
    port = int(receiver.url.rpartition(":")[2])
    answers = ["1.1.1.1", "127.0.0.1"]

    def resolve(host: str, port: int, **_: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers.pop(0), port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    outbound.check_url(f"http://rebinds.example:{port}/", ())
    with pytest.raises(outbound.AddressRefused, match="not a public address"):
        outbound.post(f"http://rebinds.example:{port}/", b"", {}, ())
    assert receiver.got == [] and answers == []


def test_nobody_there(receiver: Receiver) -> None:
    receiver.close()
    with pytest.raises(OSError, match="refused"):
        outbound.post(receiver.url, b"", {}, LOOPBACK)


def test_networks_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DATABASE_URL", "REDIS_URL"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PILOT_WEBHOOK_ALLOW", "10.1.0.0/16, 127.0.0.1")
    assert [str(n) for n in Settings.from_environment().webhook_allow] == ["10.1.0.0/16", "127.0.0.1/32"]
    monkeypatch.setenv("PILOT_WEBHOOK_ALLOW", "10.1.0.0/99")
    with pytest.raises(SettingsMissing, match="PILOT_WEBHOOK_ALLOW"):
        Settings.from_environment()
