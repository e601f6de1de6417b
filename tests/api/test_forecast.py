"""The forecast over the API and on the command line, from what runs left in the database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from api.client import ApiError, Client
from cli.forecast import forecast_told
from db.models import Attempt, Run
from pipeline.config import parse_config
from pipeline.prompts import load_run_prompts
from tests.api.served import ApiServer
from tests.ui import story


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    return story.config(tmp_path)


def test_a_forecast_rests_on_runs_of_the_same_prompts_and_model(
    served: ApiServer, engine: sa.Engine, config: dict[str, Any]
) -> None:
    client = Client(served.url, served.token)
    before = client.forecast_config(config)
    assert before.runs == before.visits == 0 and before.rollouts.expected is None
    assert "HOURS OF A CPU SLOT" in forecast_told(before) and "Advice: update.batch_prompts is 16" in forecast_told(
        before
    )
    assert "not known" in forecast_told(before) and "no run has trained this model" in forecast_told(before)

    ran = story.Story(engine, config).start().train(30)
    train, _ = load_run_prompts(parse_config(config))
    other = story.Story(engine, config | {"name": "other model"}).start().train(5)
    with Session(engine) as session, session.begin():  # its prompts are made up, and there are more of them
        session.execute(sa.text("UPDATE datasets SET name = name"))
        session.execute(sa.text("INSERT INTO datasets (id, name) VALUES (:id, 'train')"), {"id": train.digest})
        session.execute(sa.update(Run).values(dataset_id=train.digest))
        session.get_one(Run, other.id).model = "another"
        session.execute(sa.update(Attempt).where(Attempt.run_id == ran.id).values(seconds=400.0))
    told = client.forecast_config(config)
    assert told.runs == 1 and 0 < told.prompts <= 200 and told.visits > 300, "of this model only"
    now = ran.now()
    assert told.steps == 60 and told.tokens.expected == pytest.approx(11 * told.rollouts.expected)
    assert told.rollouts.low < told.rollouts.expected < told.rollouts.high
    assert told.gpu_hours.expected is not None
    # 30 steps of 400 s together, by the trainer's own count; 60 steps are forecast, of a pool of five prompts.
    assert 0 < told.gpu_hours.expected < 2 * 400 / 3600
    assert sum(share.expected or 0 for share in told.shares.values()) == pytest.approx(1)
    short = client.forecast_config(config | {"budget": {"steps": 10}})
    assert 0 < short.visits < told.visits, "of a longer run only its beginning"
    assert any("after step 30" in unknown for unknown in told.unknown) and "after step" not in str(short.unknown)
    assert now.rollouts > 0 and told.saving is not None
    words = forecast_told(told)
    assert "Rests on 1 run" in words and "pilot" in words and "budget.steps ends it" in words
    other_engine = config | {"engine": {"name": "torch", "device": "cuda"}}
    assert "GPU-HOURS" in forecast_told(client.forecast_config(other_engine))
    assert client.forecast_config(other_engine).gpu_hours.expected is None, "another device has another pace"
    read: list[str] = []

    def note(_connection: object, _cursor: object, query: str, *_: object) -> None:
        read.append(query)

    sa.event.listen(sa.Engine, "after_cursor_execute", note)
    assert client.forecast_config(config) == told
    assert read and not any("prompt_visits" in query for query in read), "what has not gone on is not read again"
    ran.train(2)
    newer = client.forecast_config(config)
    sa.event.remove(sa.Engine, "after_cursor_execute", note)
    assert newer.visits > told.visits and any("prompt_visits" in query for query in read)


def test_a_faulty_config_has_no_forecast(served: ApiServer, config: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as refused:
        Client(served.url, served.token).forecast_config(config | {"seed": -1})
    assert [e.field for e in refused.value.problem.errors] == ["seed"]
