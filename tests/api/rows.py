"""Rows as an API and a supervisor would have left them."""

from __future__ import annotations

import datetime as dt
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import models, runs

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
