"""The real API on the real Postgres, served on a port of this machine, and runs for the dashboard to show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import streamlit as st

from api.settings import Settings
from tests.api.served import ApiServer
from tests.ui import story


@pytest.fixture
def api(database_url: str, broker_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    server = ApiServer(Settings(database_url=database_url, redis_url=broker_url, pilot_home=tmp_path / "home"))
    server.start()
    monkeypatch.setenv("PILOT_API_URL", server.url)
    monkeypatch.setenv("PILOT_TOKEN", server.token)
    st.cache_resource.clear()
    yield server
    server.stop()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return story.config(tmp_path)


@pytest.fixture
def running(engine: sa.Engine, config: dict[str, Any]) -> story.Story:
    return story.Story(engine, config).start().train(12).age(2)
