"""The connection: UTC, timeouts, and errors that say what to do without telling the password."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

import db


def test_sessions_speak_utc_and_bound_their_statements(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SHOW timezone")) == "UTC"
        assert connection.scalar(sa.text("SHOW statement_timeout")) == "30s"


@pytest.mark.parametrize("prefix", ["postgresql", "postgres", "postgresql+psycopg", "postgresql+psycopg2"])
def test_any_postgres_prefix_means_psycopg_3(prefix: str) -> None:
    assert db.database_url(f"{prefix}://u:p@h/d").drivername == "postgresql+psycopg"


def test_unreachable_says_what_to_do_and_hides_the_password() -> None:
    engine = db.create_engine("postgresql://pilot:s3cret-word@127.0.0.1:1/pilot")
    with pytest.raises(db.DatabaseUnavailable, match=r"127\.0\.0\.1.*Check that it runs") as caught:
        engine.connect()
    assert "s3cret-word" not in str(caught.value)


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://u:hidden@h/d", "postgresql://u:hidden@h:port/d"])
def test_unusable_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(db.DatabaseUnavailable, match="DATABASE_URL") as caught:
        db.create_engine()
    assert "hidden" not in str(caught.value)


def test_a_lost_connection_is_unavailable_and_the_next_one_works(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
        with engine.connect() as other:
            other.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": pid})
        with pytest.raises(db.DatabaseUnavailable):
            connection.execute(sa.text("SELECT 1"))
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT 1")) == 1


def test_a_connection_that_died_in_the_pool_is_replaced_unnoticed(engine: sa.Engine) -> None:
    with engine.connect() as connection:
        pid = connection.scalar(sa.text("SELECT pg_backend_pid()"))
    other = db.create_engine(engine.url.render_as_string(hide_password=False))
    with other.connect() as admin:
        admin.execute(sa.text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    other.dispose()
    with engine.connect() as connection:
        assert connection.scalar(sa.text("SELECT pg_backend_pid()")) != pid


def test_a_process_that_hangs_within_a_transaction_keeps_no_locks(database_url: str) -> None:
    engine = db.create_engine(database_url, idle_in_transaction_s=0.2)
    with engine.connect() as connection:
        connection.execute(sa.text("LOCK TABLE runs"))
        with engine.begin() as other:
            other.execute(sa.text("SET LOCAL lock_timeout = '10s'"))
            other.execute(sa.text("LOCK TABLE runs"))
        with pytest.raises(db.DatabaseUnavailable):
            connection.execute(sa.text("SELECT 1"))
    engine.dispose()
