"""The typed client, against the real application, and against answers that are none of the API's."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from api.client import ApiError, ApiUnreachable, Client
from api.settings import Settings
from tests.api.rows import add, add_prompts, add_run, state, step
from tests.api.served import ApiServer


@pytest.fixture
def client(served: ApiServer) -> Iterator[Client]:
    with Client(served.url, served.token) as client:
        yield client


def test_every_call(client: Client, engine: sa.Engine, config: dict[str, Any]) -> None:
    created = client.create_run(config, key="one")
    assert client.get_run(created.id) == created == client.create_run(config, key="one")
    assert client.stop_run(str(created.id)).state == "stopped"
    assert client.resume_run(created.id).state == "queued"
    run = add_run(engine, dataset_id=add_prompts(engine, 3), state="running", step=1, buckets={"unseen": 3})
    add(engine, step(run, 1), state(run, "p001"))
    page = client.list_runs(limit=1)
    assert [r.id for r in page.runs] == [run.id]
    assert [r.id for r in client.list_runs(cursor=page.next_cursor).runs] == [created.id]
    assert [r.id for r in client.list_runs(state="running").runs] == [run.id]
    assert [s.step for s in client.metrics(run.id).steps] == [1]
    assert client.metrics(run.id, from_step=2).steps == []
    assert client.buckets(run.id).counts["unseen"] == 3
    assert client.ledger(run.id).sampled.rollouts == 0
    compared = client.compare([run.id, created.id], metrics=["loss", "grad_norm"]).runs
    assert [each.run.id for each in compared] == [run.id, created.id]
    assert list(compared[0].series.metrics) == ["loss", "grad_norm"]
    assert [p.id for p in client.prompts(run.id, bucket="ready", search="what", sort="step", limit=5).prompts] == [
        "p001"
    ]
    assert client.prompt(run.id, "p002").prompt.bucket == "unseen"
    assert client.config_schema()["title"] == "RunConfig"
    assert client.validate_config(config).valid
    assert not client.validate_config({}).valid
    assert isinstance(client.presets(), list)
    made = client.create_token("reader", days=None)
    assert (made.scope, made.expires_at, made.created_by) == ("read", None, "tests")
    assert client.me().name == "tests"
    assert {token.name for token in client.list_tokens().tokens} == {"reader", "tests"}
    assert client.revoke_token(made.id).revoked_at is not None
    assert [token.name for token in client.list_tokens().tokens] == ["tests"]
    assert len(client.list_tokens(everything=True).tokens) == 2
    assert [entry.action for entry in client.audit(target=str(created.id)).entries] == [
        "run.resume", "run.stop", "run.create",
    ]  # fmt: skip
    assert client.healthz().status == "ok"
    assert client.readyz().checks == {"database": "ok", "migrations": "ok", "broker": "ok"}


def test_a_refusal_tells_what_and_where(client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.create_run({"seed": "x"})
    assert caught.value.problem.status == 422
    assert "seed: Input should be a valid integer" in str(caught.value)
    assert "(given 'x')" in str(caught.value)
    with pytest.raises(ApiError, match="no run"):
        client.get_run(uuid.uuid4())
    with pytest.raises(ApiError, match="no run"):
        client.prompt(uuid.uuid4(), "a?c#d")


def test_not_ready_is_an_answer_not_an_error(database_url: str) -> None:
    settings = Settings(database_url=database_url, redis_url="redis://127.0.0.1:1")
    with ApiServer(settings) as server, Client(server.url) as client:
        health = client.readyz()
    assert (health.status, health.checks["database"]) == ("unavailable", "ok")
    assert "REDIS_URL" in health.checks["broker"]


def test_nobody_listens() -> None:
    with pytest.raises(ApiUnreachable, match="pilot up") as caught:
        Client("http://127.0.0.1:1").healthz()
    assert caught.value.url == "http://127.0.0.1:1"


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:port"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(ApiUnreachable):
        Client(url)


def test_no_answer_in_time() -> None:
    def wait(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("", request=request)

    with pytest.raises(ApiUnreachable, match="in time"):
        Client("http://x", transport=httpx.MockTransport(wait)).presets()


@pytest.mark.parametrize(
    "call", [Client.presets, Client.healthz, Client.readyz, Client.config_schema, Client.list_runs]
)
@pytest.mark.parametrize("text", ["<html>router</html>", "", "5", '"x"'])
def test_something_else_answers(call: Callable[[Client], object], text: str) -> None:
    other = Client("http://x", transport=httpx.MockTransport(lambda _: httpx.Response(200, text=text)))
    with pytest.raises(ApiUnreachable, match="not one of this API"):
        call(other)
    broken = Client("http://x", transport=httpx.MockTransport(lambda _: httpx.Response(502, text=text)))
    with pytest.raises(ApiError, match="502"):
        call(broken)


def test_a_proxy_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    for url in ("http://127.0.0.1:1", "http://localhost:1", "http://[::1]:1"):
        assert not Client(url)._http.trust_env
    assert Client("http://example.org")._http.trust_env


def test_the_client_imports_little() -> None:
    code = "import sys, api.client; print([m for m in ('fastapi', 'sqlalchemy', 'torch', 'numpy') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
