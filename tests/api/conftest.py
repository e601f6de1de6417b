"""An API on the real Postgres and broker, and small runs with prompts, visits and steps to ask it about."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api.app import create_app
from api.settings import Settings
from db import models, runs


@pytest.fixture
def api(database_url: str, broker_url: str) -> Iterator[TestClient]:
    settings = Settings(database_url=database_url, redis_url=broker_url)
    with TestClient(create_app(settings), "http://127.0.0.1", raise_server_exceptions=False) as client:
        yield client


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


CONFIG = {"budget": {"steps": 7, "rollouts": 900}}


def add_run(engine: sa.Engine, **columns: Any) -> models.Run:
    """A run as if the API had created it, then with `columns` as if it had got on."""
    with Session(engine, expire_on_commit=False) as session, session.begin():
        run = runs.create(
            session, name="r", config=CONFIG, config_digest="0" * 16, method="pilot_commit", model="policy"
        )
        for name, value in columns.items():
            setattr(run, name, value)
    return run


def add_prompts(engine: sa.Engine, n: int, dataset: str = "d0") -> str:
    """Prompts p000, p001, ... with the texts "What is 0?", "What is 1?", ..."""
    with Session(engine) as session, session.begin():
        session.add(models.Dataset(id=dataset, name="train"))
        session.flush()
        session.add_all(
            models.Prompt(dataset_id=dataset, id=f"p{i:03}", text=f"What is {i}?", answer=str(i), tags=[f"mod{i % 3}"])
            for i in range(n)
        )
    return dataset


def add(engine: sa.Engine, *rows: models.Base) -> None:
    with Session(engine) as session, session.begin():
        session.add_all(rows)


def state(run: models.Run, prompt_id: str, **columns: Any) -> models.PromptState:
    given = {"bucket": "ready", "step": 1, "success_rate": 0.5, "visits": 1, "rollouts": 8, "tokens": 80} | columns
    return models.PromptState(run_id=run.id, prompt_id=prompt_id, **given)


def step(run: models.Run, number: int, **columns: Any) -> models.StepMetrics:
    given: dict[str, Any] = {"attempt": 1, "epoch": 0, "rollouts": 10 * number, "tokens": 100 * number}
    given |= {"metrics": {"loss": 0.5, "grad_norm": None}, "buckets": {"unseen": 9 - number, "ready": number}}
    given |= {"finished_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=number)}
    return models.StepMetrics(run_id=run.id, step=number, **(given | columns))
