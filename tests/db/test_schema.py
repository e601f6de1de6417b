"""Migrations against a real Postgres: up, down, again, and no drift from db.models."""

from __future__ import annotations

import threading
import uuid

import pytest
import sqlalchemy as sa

import db


def _tables(url: str) -> set[str]:
    engine = db.create_engine(url)
    try:
        return set(sa.inspect(engine).get_table_names())
    finally:
        engine.dispose()


def test_up_down_up_and_no_drift(bare_database: str) -> None:
    url = bare_database
    with pytest.raises(db.SchemaMismatch, match="pilot db upgrade"):
        db.check(url)
    db.upgrade(url)
    db.check(url)
    assert {"runs", "attempts", "leases", "prompt_visits", "ledger"} <= _tables(url)
    db.downgrade(url, "base")
    assert _tables(url) == {"alembic_version"}
    db.upgrade(url)
    db.upgrade(url)
    db.check(url)


def test_two_processes_may_migrate_at_once(bare_database: str) -> None:
    url = bare_database
    failures: list[Exception] = []

    def migrate() -> None:
        try:
            db.upgrade(url)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=migrate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    db.check(url)


def test_drift_is_noticed(bare_database: str) -> None:
    url = bare_database
    db.upgrade(url)
    engine = db.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE runs DROP COLUMN reason"))
    engine.dispose()
    with pytest.raises(db.SchemaMismatch, match="reason"):
        db.check(url)


def test_a_database_of_a_newer_version_is_left_alone(bare_database: str) -> None:
    url = bare_database
    db.upgrade(url)
    engine = db.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(db.SchemaMismatch, match="newer"):
        db.upgrade(url)


def test_what_a_run_s_own_evaluations_took_is_known_of_old_ones(bare_database: str) -> None:
    """Not what one on demand has brought, of a step that the run itself had not evaluated."""
    url = bare_database
    db.upgrade(url)
    db.downgrade(url, "0012")
    engine, mine, asked = db.create_engine(url), uuid.uuid4(), uuid.uuid4()
    run = (
        "INSERT INTO runs (id, name, config, config_digest, method, model, evaluates) "
        "VALUES (:id, '', '{}', '', '', '', :of)"
    )
    found = (
        "INSERT INTO evaluations (run_id, step, attempt, sampled_accuracy, greedy_accuracy, stderr, samples, "
        "n_prompts, rollouts_spent, eval_rollouts, eval_tokens, seconds, finished_at) "
        "VALUES (:id, :step, 1, 0.5, 0.5, 0.1, 1, 1, 1, 1, 1, :seconds, :at)"
    )
    with engine.begin() as connection:
        for id, of in ((mine, None), (asked, mine)):
            connection.execute(sa.text(run), {"id": id, "of": of})
        for id, step, seconds, at in (
            (mine, 0, 3.0, "2026-01-01"), (mine, 10, 4.0, "2026-01-02"), (mine, 15, 50.0, "2026-01-03"),
            (asked, 15, 50.0, "2026-01-03"), (asked, 10, 70.0, "2026-01-04"),
        ):  # fmt: skip
            connection.execute(sa.text(found), {"id": id, "step": step, "seconds": seconds, "at": at})
    db.upgrade(url)
    with engine.begin() as connection:
        assert connection.scalar(sa.text("SELECT eval_seconds FROM runs WHERE id = :id"), {"id": mine}) == 7.0
    engine.dispose()
