"""`pilot token create|list|revoke`: who may use the API."""

from __future__ import annotations

import datetime as dt
import uuid

from api.client import Client
from api.schemas import TokenOut
from cli.failure import WRONG_USE, Failure, told
from cli.table import table


def create(client: Client, name: str, scope: str, days: int | None) -> str:
    """Make a token over the API. Returns its secret. Raises Failure."""
    with told():
        return client.create_token(name, scope, days).secret


def create_directly(name: str, scope: str, days: int | None, *, if_none: bool) -> str | None:
    """Make a token in the database that DATABASE_URL names: the first one, or a new one when all are lost.

    if_none: only when there is no admin token that works; returns None otherwise. Raises Failure.
    """
    from sqlalchemy.orm import Session

    import db
    from db import tokens

    try:
        engine = db.create_engine(application="pilot-token", pool_size=1)
        with Session(engine) as session, session.begin():
            if if_none and tokens.has_admin(session):
                return None
            lasts = None if days is None else dt.timedelta(days=days)
            return tokens.create(session, name, scope, lasts=lasts)[1]
    except db.DatabaseUnavailable as error:
        raise Failure(str(error)) from None


def listed(tokens: list[TokenOut]) -> str:
    """A table, one token a line, newest first."""
    if not tokens:
        return "There are no such tokens."
    rows = [("ID", "NAME", "SCOPE", "CREATED", "BY", "LAST USED", "EXPIRES", "")]
    for token in tokens:
        rows.append((
            str(token.id), token.name, token.scope, _day(token.created_at), token.created_by or "-",
            _day(token.last_used_at), _day(token.expires_at), "revoked" if token.revoked_at else "",
        ))  # fmt: skip
    return table(rows)


def every(client: Client, *, everything: bool) -> list[TokenOut]:
    found: list[TokenOut] = []
    cursor: str | None = None
    while True:
        with told():
            page = client.list_tokens(everything=everything, limit=200, cursor=cursor)
        found += page.tokens
        cursor = page.next_cursor
        if cursor is None:
            return found


def revoke(client: Client, text: str) -> str:
    """Revoke the token with this id, or the first 6 or more characters of it. Raises Failure."""
    with told():
        token = client.revoke_token(_id_of(client, text))
    return f"The token {token.name!r} is revoked."


def _id_of(client: Client, text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        prefix = text.strip().lower()
    found = [token for token in every(client, everything=True) if str(token.id).startswith(prefix)]
    if len(prefix) < 6 or len(found) != 1:
        raise Failure(
            f"{text!r} is not the id of one token, nor its first 6 or more characters. "
            "`./pilot token list` shows them.",
            WRONG_USE,
        )
    return found[0].id


def _day(time: dt.datetime | None) -> str:
    return "-" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M")
