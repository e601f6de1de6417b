"""What concerns the whole platform: settings for everybody, and workers."""

from __future__ import annotations

import datetime as dt

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api.client import ApiError, Client
from db import leases, slots
from db.models import Host
from tests.api.rows import add_run
from tests.api.served import ApiServer, make_token

TTL = dt.timedelta(seconds=30)


def test_settings_hold_for_everybody_and_only_an_admin_changes_them(served: ApiServer, database_url: str) -> None:
    admin = Client(served.url, served.token)
    reader = Client(served.url, make_token(database_url, "read"))
    before = reader.settings()
    assert (before.price_per_gpu_hour, before.currency, before.changed_at) == (None, "USD", None)
    admin.change_settings(2.5, "EUR")
    changed = admin.change_settings(3, "EUR")
    assert reader.settings() == changed
    assert (changed.price_per_gpu_hour, changed.currency, changed.changed_by) == (3, "EUR", "tests")
    assert admin.change_settings(None, "EUR").price_per_gpu_hour is None
    told = [(e.before, e.after) for e in admin.audit("settings").entries]
    assert told[-1] == (
        {"price_per_gpu_hour": None, "currency": "USD"},
        {"price_per_gpu_hour": 2.5, "currency": "EUR"},
    )
    assert len(told) == 3
    with pytest.raises(ApiError) as refused:
        reader.change_settings(1, "USD")
    assert refused.value.problem.status == 403


@pytest.mark.parametrize(
    ("price", "currency", "field"),
    [(-1, "USD", "price_per_gpu_hour"), (1e7, "USD", "price_per_gpu_hour"), (1, "usd", "currency")],
)
def test_settings_that_are_not_accepted(api: TestClient, price: float, currency: str, field: str) -> None:
    answer = api.put("/api/v1/settings", json={"price_per_gpu_hour": price, "currency": currency})
    assert answer.status_code == 422
    assert [e["field"] for e in answer.json()["errors"]] == [f"body.{field}"]
    assert api.get("/api/v1/settings").json()["changed_at"] is None


def test_workers_with_what_holds_them(served: ApiServer, engine: sa.Engine) -> None:
    client = Client(served.url, served.token)
    assert client.workers().workers == []
    gpus = [slots.Device("cuda", str(i), f"GPU {i}") for i in range(2)]
    run = add_run(engine, name="on two", device="cuda", n_devices=2)
    with Session(engine) as session, session.begin():
        slots.announce(session, "b", [slots.Device("cpu", "0", "CPU slot 0")], TTL)
        slots.announce(session, "a", gpus, TTL, slots.Use(0.25, {"0": 0.94}))
        leases.claim_next(session, "a", "a:1:1:1", TTL)
    a, b = client.workers().workers
    assert (a.host, a.silent_since, a.cpu_use, b.host, b.cpu_use) == ("a", None, 0.25, "b", None)
    assert [(s.device, s.use, s.run_id, s.run_name) for s in a.slots] == [
        ("0", 0.94, run.id, "on two"),
        ("1", None, run.id, "on two"),
    ]
    assert a.slots[0].taken_at is not None and b.slots[0].run_id is None
    with Session(engine) as session, session.begin():
        session.execute(sa.update(Host).where(Host.name == "a").values(expires_at=sa.func.now() - TTL))
    a = client.workers().workers[0]
    assert a.silent_since is not None and a.cpu_use is None
    assert [(s.use, s.run_name) for s in a.slots] == [(None, "on two")] * 2, "who holds it is known, how busy is not"
    with Session(engine) as session, session.begin():
        slots.announce(session, "a", gpus[:1], TTL)
    a = client.workers().workers[0]
    assert [(s.device, s.offered) for s in a.slots] == [("0", True), ("1", False)], "held, although gone"
