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

from bench.dashboard import Visitor, visiting
from bench.served import serving
from tests.api.served import ApiServer, free_port
from tests.ui.story import Story

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
