"""What the dashboard sends to a browser, message by message: what a timer draws, and what stands while it waits."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.client import Client
from bench.dashboard import Visitor, visiting
from bench.served import serving
from tests.api.served import ApiServer, free_port
from tests.ui.story import Story
from ui import text

HEAD_S = 2  # the timer of the run page's head


@pytest.fixture
def visitor(api: ApiServer, tmp_path: Path) -> Iterator[Visitor]:
    """A browser at a dashboard of its own."""
    port = free_port()
    command = [sys.executable, "-m", "streamlit", "run", "ui/app.py", "--server.port", str(port)]
    told = {name: os.environ[name] for name in ("PILOT_API_URL", "PILOT_TOKEN")}
    with (
        serving(command, told, f"http://127.0.0.1:{port}/_stcore/health", tmp_path / "dashboard.log"),
        visiting(port) as visitor,
    ):
        yield visitor


def refresh_head(visitor: Visitor) -> int:
    """As the run page's fastest timer does. Returns how many charts were drawn."""
    (head,) = (id for id, seconds in visitor.fragments.items() if seconds == HEAD_S)
    visitor.refresh(head)
    assert not visitor.problems
    return charts(visitor)


def charts(visitor: Visitor) -> int:
    return sum(element.HasField("vega_lite_chart") for element in visitor.drawn)


def html(visitor: Visitor) -> str:
    return "\n".join(element.html.body for element in visitor.drawn)


def alerts(visitor: Visitor) -> list[str]:
    return [element.alert.body for element in visitor.drawn if element.HasField("alert")]


def test_what_comes_first_is_drawn_on_the_whole_page(
    visitor: Visitor, api: ApiServer, engine: sa.Engine, config: dict[str, Any]
) -> None:
    run = Story(engine, config)
    api.stop()
    visitor.open("run", {"run": str(run.id)})
    assert "The API does not answer" in html(visitor) and len(visitor.fragments) == 1
    visitor.problems.clear()
    api.start()
    assert refresh_head(visitor) == 0
    assert "</i>queued" in html(visitor) and "No step yet" in html(visitor), "the run is there: all its parts are drawn"
    run.start()
    assert refresh_head(visitor) == 1 and "No step yet" in html(visitor), "the first evaluation: its curve"
    assert refresh_head(visitor) == 0
    run.train(1)
    assert refresh_head(visitor) > 3 and "No step yet" not in html(visitor), "the first step: whatever steps tell"
    run.train(1)
    assert refresh_head(visitor) == 0 and ">2<" in html(visitor), "from then on each part has its own time"


def test_nothing_says_ready_while_an_api_that_hangs_is_waited_for(visitor: Visitor, api: ApiServer) -> None:
    visitor.open("new", {})
    assert [words.split(":")[0] for words in alerts(visitor)][-1] == "Ready to start"
    api.stop()
    with socket.create_server(("127.0.0.1", api.port)):  # takes connections and says nothing
        waited = visitor.open("new", {}).ms
        assert [words.split(":")[0] for words in alerts(visitor)] == ["Checking …", "Not checked"]
        assert "The API does not answer" in html(visitor) and waited > 4000
        assert visitor.open("new", {}).ms < 2500, "it is not asked for the config again"
        assert [words.split(":")[0] for words in alerts(visitor)] == ["Not checked"]


def test_the_prompts_of_a_run_that_lives_follow_it(
    visitor: Visitor, api: ApiServer, engine: sa.Engine, config: dict[str, Any]
) -> None:
    """Marks that are held, counts and rows: with no map drawn, and on the page of the list that is looked at."""

    def refresh() -> str:
        watch, *rows = list(visitor.fragments)
        visitor.problems.clear()
        visitor.refresh(watch)
        told, drawn = html(visitor), []
        for row in rows:
            visitor.refresh(row)
            drawn += visitor.drawn
        visitor.drawn = drawn
        return told

    def links() -> list[str]:
        return [e.page_link.label for e in visitor.drawn if "&prompt=" in e.page_link.query_string]

    def counted(run: Story, page: str) -> bool:
        return all(f"content: '{text.number(n)}'" in page for n in run.now().buckets.values())

    run = Story(engine, config).start().train(5)
    with Client(api.url, api.token) as client:
        client.mark_prompts(run.id, "exclude", bucket="ready")
        visitor.open("prompts", {"run": str(run.id), "marked": "in any way"})
        assert set(visitor.fragments.values()) == {4} and charts(visitor) == 2
        assert all(label.startswith(":gray[to be excluded") for label in links()) and counted(run, html(visitor))
        run.apply_marks().train(3)
        page = refresh()
        assert not visitor.problems and charts(visitor) == 0, "the map costs the database more"
        assert len(links()) > 3 and all(label.startswith(":gray[excluded") for label in links()) and counted(run, page)
        api.stop()
        before, page = links(), refresh()
        assert "The API does not answer" in page and "last known ones; trying again every 4 s" in page
        assert links() == before, "the rows stay"
        api.start()
        run.train(1)
        assert counted(run, refresh()) and not visitor.problems and links() == before
        run.finish("succeeded", "done")
        watch = next(iter(visitor.fragments))
        visitor.fragments.clear()
        visitor.refresh(watch)
        assert charts(visitor) == 2 and not visitor.fragments, "the whole page, and no timer"
