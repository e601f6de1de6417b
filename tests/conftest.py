"""Real Postgres and a real broker for the tests.

Servers are the ones that DATABASE_URL and REDIS_URL name, else private ones started on first use. Every xdist
worker has a database and a broker of its own, so that nothing is shared between processes. Tests that write
inside one transaction use `session`; those whose processes or requests commit use `database_url` or `engine`,
and find empty tables.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
import sqlalchemy as sa
from psycopg import sql
from sqlalchemy.orm import Session

import db
from cli import services
from db.models import Base
from tests.hub import Hub, serve

_running = pytest.StashKey[services.Services]()


def _start(config: pytest.Config, environ: Mapping[str, str]) -> services.Services:
    home = Path(tempfile.mkdtemp(prefix="pilot-tests-"))
    home.chmod(0o711)  # as root the servers run under a uid of their own, which has to reach its data
    config.stash[_running] = services.start(home, environ)
    return config.stash[_running]


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes give no id: two workers have to collect the same tests, and a compressed file holds the time of day."""
    return argname if isinstance(val, bytes) else None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With xdist the controller starts Postgres and tells its workers; each starts a broker of its own."""
    running = node.config.stash.get(_running, None) or _start(node.config, os.environ)
    node.workerinput["database_url"] = running.database_url


def pytest_unconfigure(config: pytest.Config) -> None:
    if _running in config.stash:
        running = config.stash[_running]
        running.stop()
        shutil.rmtree(running.home, ignore_errors=True)


@pytest.fixture(scope="session")
def running_services(request: pytest.FixtureRequest) -> services.Services:
    """The servers that the tests of this process use."""
    workerinput = getattr(request.config, "workerinput", {})
    given = {"DATABASE_URL": workerinput["database_url"]} if workerinput else {}
    return _start(request.config, {**os.environ, **given})


@pytest.fixture(scope="session")
def migrated_database(running_services: services.Services) -> Iterator[str]:
    """A database of this process alone, built by the real migrations."""
    with _new_database(running_services.database_url) as url:
        db.upgrade(url)
        yield url


@contextmanager
def _new_database(server: str) -> Iterator[str]:
    name = f"pilot_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    try:
        yield urlsplit(server)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def bare_database(running_services: services.Services) -> Iterator[str]:
    """The address of a database without any table."""
    with _new_database(running_services.database_url) as url:
        yield url


@pytest.fixture
def database_url(migrated_database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty, migrated database; DATABASE_URL names it too. Emptied after the test."""
    monkeypatch.setenv("DATABASE_URL", migrated_database)
    yield migrated_database
    tables = sql.SQL(", ").join(sql.Identifier(table.name) for table in Base.metadata.sorted_tables)
    with psycopg.connect(migrated_database, autocommit=True) as connection:
        connection.execute("SET lock_timeout = '20s'")  # a forgotten transaction fails the test instead of hanging it
        connection.execute(sql.SQL("TRUNCATE {} CASCADE").format(tables))


@pytest.fixture
def engine(database_url: str) -> Iterator[sa.Engine]:
    engine = db.create_engine(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: sa.Engine) -> Iterator[Session]:
    """A session in a transaction that is rolled back after the test; its commit() ends a savepoint only."""
    with engine.connect() as connection:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="create_savepoint") as session:
            yield session
        outer.rollback()


@pytest.fixture
def broker_url(running_services: services.Services, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty broker; REDIS_URL names it too."""
    url = running_services.broker_url
    if os.environ.get("REDIS_URL"):  # one given server for all xdist workers: a database of it for each
        number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        url = urlsplit(url)._replace(path=f"/{1 + number % 15}").geturl()
    monkeypatch.setenv("REDIS_URL", url)
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """What HF_ENDPOINT names."""
    with serve() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_TOKEN", "")
        yield hub


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PILOT_HOME of this test alone."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("PILOT_HOME", str(path))
    return path
