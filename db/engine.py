"""The connection to Postgres.

Functions of this package take a Session and never commit: a transaction is one API request or one step of a
job, and whoever begins it ends it.
"""

from __future__ import annotations

import os

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

_CONNECT_TIMEOUT_S = 5


class DatabaseUnavailable(Exception):
    """The database cannot be reached or has gone away. The message says what to do and hides the password."""


def database_url(url: str | None = None) -> URL:
    """`url`, or DATABASE_URL, for the psycopg 3 driver, whatever its prefix.

    Raises DatabaseUnavailable when there is none or it is not a Postgres address.
    """
    text = url if url is not None else os.environ.get("DATABASE_URL", "")
    if not text:
        raise DatabaseUnavailable(
            "DATABASE_URL is not set. `./pilot up` starts a private Postgres and sets it; otherwise give the "
            "address of yours, such as postgresql://user:password@host:5432/name."
        )
    try:
        parsed = make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise DatabaseUnavailable(
            "DATABASE_URL is not an address such as postgresql://user:password@host:5432/name. Correct it."
        ) from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise DatabaseUnavailable(
            f"DATABASE_URL names {parsed.get_backend_name()!r}; this platform needs Postgres, such as "
            "postgresql://user:password@host:5432/name. Correct it."
        )
    return parsed.set(drivername="postgresql+psycopg")


def create_engine(
    url: str | None = None,
    *,
    application: str = "pilot",
    pool_size: int = 5,
    statement_timeout_s: float | None = 30.0,
    idle_in_transaction_s: float = 30.0,
) -> sa.Engine:
    """An engine for `url` (default: DATABASE_URL) whose sessions speak UTC. Connects on first use.

    Statements that run longer than `statement_timeout_s` are cancelled (None: never), and the server ends a session
    that does nothing within a transaction for `idle_in_transaction_s`: a process that hangs keeps no locks. When the
    database cannot be reached or goes away, at any statement, DatabaseUnavailable is raised in place of the driver's
    error. Raises DatabaseUnavailable at once when there is no usable address.
    """
    parsed = database_url(url)
    # jit: to compile a statement takes longer than any of ours runs.
    options = f"-c timezone=UTC -c jit=off -c idle_in_transaction_session_timeout={int(idle_in_transaction_s * 1000)}"
    if statement_timeout_s is not None:
        options += f" -c statement_timeout={int(statement_timeout_s * 1000)}"
    engine = sa.create_engine(
        parsed,
        pool_pre_ping=True,
        pool_size=pool_size,
        max_overflow=pool_size,
        connect_args={
            "options": options,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "application_name": application,
            # A server that vanished without a word (power, network) is noticed within half a minute.
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 4,
        },
    )

    @sa.event.listens_for(engine, "handle_error")
    def translate(context: sa.engine.ExceptionContext) -> None:
        if context.is_pre_ping and context.is_disconnect:
            return  # the pool was asked for a connection and found one that died meanwhile: it makes a new one
        # Without a connection it failed to connect; a lost one is recognised by the dialect.
        if context.is_disconnect or (context.connection is None and context.sqlalchemy_exception is not None):
            raise _unavailable(parsed, context.original_exception) from None

    return engine


def _unavailable(url: URL, error: BaseException) -> DatabaseUnavailable:
    words = " ".join(str(error).split()) or type(error).__name__
    if url.password:
        words = words.replace(url.password, "***")
    address = url.set(drivername="postgresql").render_as_string(hide_password=True)
    return DatabaseUnavailable(
        f"The database at {address} cannot be used: {words}. Check that it runs and that DATABASE_URL is right."
    )
