"""Two transactions that want one version of a prompt set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import prompt_sets

COLUMNS: dict[str, Any] = {
    "name": "sums", "version": "0123456789abcdef", "file": "a.jsonl", "mapping": "plain", "n_prompts": 1, "n_bytes": 9,
    "report": {}, "created_by": "us",
}  # fmt: skip


def waiting(engine: sa.Engine) -> bool:
    asked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with engine.connect() as connection:
        return bool(connection.scalar(sa.text(asked)))


@pytest.mark.parametrize("first", ["keep", "delete"])
def test_who_comes_second_waits_and_is_told_the_truth(engine: sa.Engine, first: str) -> None:
    def keep() -> bool:
        with Session(engine) as session, session.begin():
            return prompt_sets.keep(session, **COLUMNS)[1]

    if first == "delete":
        assert keep() and not keep()
    with ThreadPoolExecutor(1) as pool, Session(engine) as session:
        with session.begin():
            if first == "keep":
                assert prompt_sets.keep(session, **COLUMNS)[1]
            else:
                prompt_sets.delete(session, COLUMNS["name"], COLUMNS["version"])
            second = pool.submit(keep)
            while not waiting(engine):
                assert not second.done()
        assert second.result(timeout=30) == (first == "delete"), "new only when it was gone"
    with Session(engine) as session:
        assert prompt_sets.get(session, COLUMNS["name"], COLUMNS["version"]).n_prompts == 1
