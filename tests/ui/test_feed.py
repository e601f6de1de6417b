"""What the run page fetches of a run, without the page."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from api.client import ApiError, Client
from api.schemas import Problem
from tests.api.served import ApiServer
from tests.ui.story import Story
from ui import feed
from ui.connection import answers
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


class Watched(httpx.HTTPTransport):
    """The network, where calls whose path ends so wait until all of them are there, or get no answer."""

    def __init__(self, together: tuple[str, ...] = (), dead: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.together, self.dead = together, dead
        self.met = threading.Barrier(max(1, len(together)), timeout=10)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith(self.dead or ("/",)):
            time.sleep(0.2)  # meanwhile the others have begun
            raise httpx.ReadTimeout("dead")
        if request.url.path.endswith(self.together or ("/",)):
            self.met.wait()
        return super().handle_request(request)


def test_what_a_page_shows_at_first_is_asked_side_by_side(api: ApiServer, running: Story) -> None:
    watched = Watched(together=("/metrics", "/flows", "/prompts", "/ledger"))
    seen = RunFeed(str(running.id))
    seen.open(Client(api.url, api.token, transport=watched), 5)
    assert seen.lost is None and seen.refused is None
    assert max(seen.steps) == max(seen.buckets) == 12 and seen.evaluations and seen.taught and seen.ledger is not None
    assert seen.moved is not None and (seen.moved.from_step, seen.moved.to_step) == (7, 12)


@pytest.mark.parametrize("dead", ["/metrics", "/flows", "/prompts", "/ledger", "/alerts", "/buckets"])
def test_one_part_without_an_answer_is_asked_for_again(api: ApiServer, running: Story, dead: str) -> None:
    seen = RunFeed(str(running.id))
    seen.open(Client(api.url, api.token, transport=Watched(dead=(dead,))), 5)
    assert seen.run is not None and seen.lost is not None and seen.refused is None
    answering = Client(api.url, api.token)
    seen.refresh(answering)
    seen.spend(answering)
    seen.teach(answering)
    seen.flows(answering, 7, None)
    assert seen.lost is None
    assert max(seen.steps) == max(seen.buckets) == 12 and seen.evaluations and seen.taught and seen.ledger is not None
    assert seen.moved is not None
    running.train(1)
    seen.refresh(Client(api.url, api.token, transport=Watched(dead=(dead,))))
    seen.refresh(answering)
    assert list(seen.steps) == list(seen.buckets) == list(range(1, 14)), "each step once, in order"


def test_a_part_that_is_refused_is_no_api_that_is_away(
    client: Client, running: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "RECENT_PROMPTS", 100_000)  # more than the API gives in one page
    seen = RunFeed(str(running.id))
    seen.open(client, 5)
    assert seen.lost is None and seen.refused is not None and seen.refused.problem.status == 422


def test_a_queued_run_waits_for_those_that_go_before(
    client: Client, engine: sa.Engine, config: dict[str, Any], running: Story
) -> None:
    waiting = RunFeed(str(Story(engine, config).id))
    waiting.refresh(client)
    assert waiting.ahead == 1
    busy_until = waiting.queued_since
    running.finish("succeeded", "all steps are done")
    waiting.refresh(client)
    assert waiting.ahead == 0 and waiting.queued_since == busy_until


def test_a_fault_of_ours_is_not_taken_for_an_api_that_is_away(
    api: ApiServer, running: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else failed at the same time."""

    def fault(*_: Any, **__: Any) -> None:
        raise KeyError("ours")

    client = Client(api.url, api.token, transport=Watched(dead=("/metrics",)))
    monkeypatch.setattr(client, "buckets", fault)
    with pytest.raises(KeyError, match="ours"):
        RunFeed(str(running.id)).refresh(client)


@pytest.mark.parametrize(("status", "back"), [(401, True), (503, False)])
def test_an_api_whose_database_is_away_is_not_back(monkeypatch: pytest.MonkeyPatch, status: int, back: bool) -> None:
    def refuses(_: Client) -> None:
        raise ApiError(Problem(title="No", status=status, detail="no"))

    monkeypatch.setattr(Client, "me", refuses)
    assert answers() is back
