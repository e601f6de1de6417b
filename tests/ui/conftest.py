"""The real API on the real Postgres, served on a port of this machine, and runs for the dashboard to show."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import streamlit as st
import uvicorn

from api.app import create_app
from api.settings import Settings
from tests.ui import story


class ApiServer:
    """The API in a thread. It can go away and come back at the same address."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        app = create_app(self.settings)
        self._server = uvicorn.Server(uvicorn.Config(app, port=self.port, log_level="warning"))
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        deadline = time.monotonic() + 20
        while not self._server.started:
            assert time.monotonic() < deadline, "the API did not start"
            time.sleep(0.02)

    def stop(self) -> None:
        if self._server and self._thread:
            self._server.should_exit = True
            self._thread.join(20)
            assert not self._thread.is_alive(), "the API did not stop"
        self._server = self._thread = None


@pytest.fixture
def api(database_url: str, broker_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    server = ApiServer(Settings(database_url=database_url, redis_url=broker_url))
    server.start()
    monkeypatch.setenv("PILOT_API_URL", server.url)
    st.cache_resource.clear()
    yield server
    server.stop()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return story.config(tmp_path)


@pytest.fixture
def running(engine: sa.Engine, config: dict[str, Any]) -> story.Story:
    return story.Story(engine, config).start().train(12).age(2)
