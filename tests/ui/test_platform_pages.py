"""Workers and settings in every state, against the real API."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from api.client import Client
from db import leases, slots
from db.models import Delivery, Host, Run
from tests.api.rows import add_run
from tests.api.served import ApiServer, make_token
from tests.ui.story import Story
from tests.ui.test_pages import checked, click, html, labels, open_page

TTL = dt.timedelta(minutes=1)


def test_workers(api: ApiServer, engine: sa.Engine) -> None:
    app = open_page("workers")
    assert "No worker runs" in html(app) and "python -m worker" in html(app)
    run = add_run(engine, name="<b>on a GPU", device="cuda")
    with Session(engine) as session, session.begin():
        slots.announce(session, "old-node", [slots.Device("cpu", "0", "CPU slot 0")], TTL)
        gpus = [slots.Device("cuda", str(i), "NVIDIA H200, 140 GiB") for i in range(2)]
        slots.announce(session, "gpu-node", gpus, TTL, slots.Use(0.31, {"0": 0.94}))
        leases.claim_next(session, "gpu-node", "gpu-node:1:1:1", TTL)
        session.execute(sa.update(Host).where(Host.name == "old-node").values(expires_at=sa.func.now()))
    page = html(checked(app.run()))
    assert f'<a href="run?run={run.id}" target="_self">&lt;b&gt;on a GPU</a>' in page
    assert "94% busy" in page and "31% busy" in page and "free" in page
    assert "not known" in page, "a GPU that tells nothing is not idle"
    assert "silent for <span" in page and "1 of 2" in page, "what is silent offers nothing"
    with Session(engine) as session, session.begin():
        session.get_one(Run, run.id).deleted_at = sa.func.now()
    assert "a deleted run" in html(checked(app.run()))


@pytest.mark.parametrize("name", ["workers", "settings"])
def test_the_api_is_away(name: str, api: ApiServer) -> None:
    api.stop()
    page = html(open_page(name))
    assert "The API does not answer" in page and "Traceback" not in page


def test_a_lost_connection_keeps_the_last_workers(api: ApiServer, engine: sa.Engine) -> None:
    with Session(engine) as session, session.begin():
        slots.announce(session, "node", [slots.Device("cpu", "0", "CPU slot 0")], TTL)
    app = open_page("workers")
    assert "node" in html(app)
    api.stop()
    assert "The API does not answer" in html(checked(app.run()))


def section(app: Any, name: str) -> Any:
    return checked(app.segmented_control(key="section").set_value(name).run())


@pytest.mark.parametrize("scope", ["read", "run"])
def test_without_the_scope_settings_say_why(
    scope: str, api: ApiServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, scope, "the dashboard"))
    app = open_page("settings")
    assert f"with the scope `{scope}`" in " ".join(m.value for m in app.markdown)
    assert "Tokens are for administrators" in html(app)
    assert "see Settings" not in html(app) and f"has {scope!r}; Access takes another one." in html(app).replace(
        "&#x27;", "'"
    )
    assert any("--scope admin" in m.value for m in app.markdown), "what is missing is what is offered"
    assert not [label for label in labels(app) if "Make" in label]
    app = section(app, "Price")
    (save,) = (b for b in app.button if b.label == "Save")
    assert save.disabled and "scope &#x27;admin&#x27;" in html(section(app, "Webhooks"))
    assert "scope &#x27;admin&#x27;" in html(section(app, "Audit log"))


def test_another_token_for_this_session(api: ApiServer, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read", "the dashboard"))
    app = open_page("settings")
    app.text_input[0].input(api.token)
    app = checked(app.button[0].click().run())
    assert "Make token" in labels(app), "an administrator's token opens what the dashboard's own does not"
    app = click(app, "sign-out")
    assert "Tokens are for administrators" in html(app)


def test_a_token_is_made_shown_once_and_revoked(api: ApiServer) -> None:
    app = open_page("settings")
    app.text_input[-1].set_value("ci *of* maths")
    (make,) = (b for b in app.button if b.label == "Make token")
    app = checked(make.click().run())
    (secret,) = (code.value for code in app.code)
    with Client(api.url, secret) as client:
        me = client.me()
    assert (me.name, me.scope) == ("ci *of* maths", "read") and me.expires_at is not None
    assert secret not in html(app) and "ci *of* maths" in html(app), "the list has its name, not its secret"
    app = click(app, "secret-copied")
    assert not app.code
    own = next(b for b in app.button if b.disabled)
    assert own.label == "Revoke" and "in use" in own.help
    app = click(app, f"revoke-{me.id}")
    assert "ci *of* maths" not in html(app)
    assert "revoked" in html(checked(app.toggle(key="all-tokens").set_value(True).run()))
    (make,) = (b for b in app.button if b.label == "Make token")
    app = checked(make.click().run())
    assert "a token needs one" in app.error[0].value


def test_the_price_is_set_for_everybody(api: ApiServer) -> None:
    app = section(open_page("settings"), "Price")
    assert any("Not set yet" in c.value for c in app.caption) and "a CPU slot has no price" in html(app)
    app.number_input[0].set_value(2.5)
    app.text_input[0].set_value("eur")
    (save,) = (b for b in app.button if b.label == "Save")
    app = checked(save.click().run())
    with Client(api.url, api.token) as client:
        assert (client.settings().price_per_gpu_hour, client.settings().currency) == (2.5, "EUR")
    assert "set by tests" in html(app)
    app.text_input[0].set_value("€")
    (save,) = (b for b in app.button if b.label == "Save")
    app = checked(save.click().run())
    assert "<code>currency</code>" in html(app)
    app = section(app, "Audit log")
    page = html(app)
    assert "settings.change" in page and "price_per_gpu_hour: null" in page and "price_per_gpu_hour: 2.5" in page


def test_webhooks(api: ApiServer, engine: sa.Engine) -> None:
    app = section(open_page("settings"), "Webhooks")
    assert "No webhooks" in html(app)
    app.text_input[0].set_value("http://127.0.0.1:1/x")
    (make,) = (b for b in app.button if b.label == "Make webhook")
    app = checked(make.click().run())
    page = html(app)
    assert "<code>url</code>: " in page and "body" not in page and "see errors" not in page, "in words"
    app.text_input[0].set_value("https://1.1.1.1/pilot")
    (make,) = (b for b in app.button if b.label == "Make webhook")
    app = checked(make.click().run())
    assert app.code[0].value.startswith("whsec_")
    app = click(app, "secret-copied")
    with Client(api.url, api.token) as client:
        (webhook,) = client.list_webhooks()
    app = click(app, f"test-{webhook.id}")
    assert "waiting" in html(app)
    with Session(engine) as session, session.begin():
        values = {"attempts": 1, "status": 500, "error": "it answered 500"}
        session.execute(sa.update(Delivery).values(values))
    page = html(checked(app.run()))
    assert "failed (500), next try" in page and "it answered 500" in page
    app = click(app, f"delete-{webhook.id}")
    assert "No webhooks" in html(app)


def test_the_audit_log_is_paged_and_filtered(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    app = section(open_page("settings"), "Audit log")
    assert "Nothing was changed yet" in html(app)
    run = Story(engine, config)
    with Client(api.url, api.token) as client:
        for _ in range(26):
            client.create_token("t")
        client.stop_run(run.id)
    page = html(app := checked(app.run()))
    assert f'<a href="run?run={run.id}"' in page and page.count("token.create") == 24
    assert html(click(app, "audit-older")).count("token.create") == 2
    app.text_input(key="changed").set_value(str(run.id))
    page = html(checked(app.run()))
    assert "run.stop" in page and "token.create" not in page, "a filter begins on the first page"
    app.text_input(key="changed").set_value("nobody")
    assert "Nothing was changed there" in html(checked(app.run()))
