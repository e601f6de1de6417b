"""An API on the real Postgres and broker, and a config that it accepts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.api.served import ApiServer, make_token


@pytest.fixture
def api(database_url: str, broker_url: str, home: Path) -> Iterator[TestClient]:
    # Without a rate limit: some tests ask of every address what it refuses.
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=home, rate_limit=0)
    with TestClient(
        create_app(settings),
        "http://127.0.0.1",
        raise_server_exceptions=False,
        headers={"authorization": f"Bearer {make_token(database_url)}"},
    ) as client:
        yield client


@pytest.fixture
def served(database_url: str, broker_url: str) -> Iterator[ApiServer]:
    """The same on a port of this machine."""
    server = ApiServer(Settings(database_url=database_url, redis_url=broker_url))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    """A run config whose model folder and prompt files exist."""
    model = tmp_path / "policy"
    model.mkdir()
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (model / name).write_text("{}")
    for name, first in (("train", 0), ("eval", 50)):
        rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(first, first + 5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "name": "tiny",
        "model": {"path": str(model)},
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
        "budget": {"steps": 7, "rollouts": 900},
    }
