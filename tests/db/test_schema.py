"""Migrations against a real Postgres: up, down, again, and no drift from db.models."""

from __future__ import annotations

import threading

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
