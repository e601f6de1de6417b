"""What the run page fetches of a run, without the page."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import sqlalchemy as sa

from api.client import Client
from tests.api.served import ApiServer
from tests.ui.story import Story
from ui import feed
from ui.feed import RunFeed


@pytest.fixture
def client(api: ApiServer) -> Client:
    return Client(api.url, api.token, timeout=30)


def test_a_long_run_is_thinned_but_for_its_evaluations(
    client: Client, engine: sa.Engine, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "POINTS", 20)
    monkeypatch.setattr(feed, "RECENT_STEPS", 10)
    run = Story(engine, config).start().train(60)
    seen = RunFeed(str(run.id))
    seen.refresh(client)
    assert seen.lost is None and seen.refused is None
    assert sorted(seen.evaluations) == list(range(0, 61, 5)), "the curve begins where the run began"
    assert set(range(50, 61)) <= set(seen.steps) and 1 in seen.steps and len(seen.steps) < 60
    newest = seen.steps[60].metrics
    assert set(feed.CHARTED) <= set(newest) and {"loss", "entropy"} <= set(newest), "the newest are there in full"
    assert set(seen.steps[1].metrics) == set(feed.CHARTED)
    run.train(5)
    seen.refresh(client)
    assert max(seen.evaluations) == 65 and max(seen.steps) == 65


def test_while_the_api_hangs_only_the_head_waits_for_it(api: ApiServer, running: Story) -> None:
    seen = RunFeed(str(running.id))
    seen.refresh(Client(api.url, api.token))
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections and says nothing
        hanging = Client(f"http://127.0.0.1:{silent.getsockname()[1]}", api.token, timeout=0.5)
        before = feed.now()
        seen.refresh(hanging)
        assert seen.lost is not None and seen.lost_since is not None and seen.lost_since >= before
        assert (feed.now() - seen.lost_since).total_seconds() >= 0.5, "away since it was asked, not since we gave up"
        since = feed.now()
        seen.spend(hanging)
        seen.teach(hanging)
        seen.flows(hanging, 0, None)
        assert (feed.now() - since).total_seconds() < 0.4
    seen.refresh(Client(api.url, api.token))
    seen.spend(Client(api.url, api.token))
    assert seen.lost is None and seen.ledger is not None
