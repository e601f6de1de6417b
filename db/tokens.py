"""Tokens: made, found by their secret, listed, revoked. Nothing here commits.

A secret is 256 random bits, and the database keeps its plain SHA-256. Slow, salted hashes protect passwords, which
can be guessed; nobody guesses 256 bits, and an unsalted hash can be looked up by an index in one statement.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
import uuid
from collections.abc import Sequence
from typing import Final

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from db.models import Token
from db.paging import Place, newest

PREFIX: Final = "pilot_"  # so that scanners for leaked secrets can tell what it is


class TokenRefused(Exception):
    """The secret opens nothing (any more). The message says why, and never repeats it."""


class TokenNotFound(LookupError):
    def __init__(self, token_id: uuid.UUID) -> None:
        super().__init__(f"there is no token {token_id}")


def create(
    session: Session,
    name: str,
    scope: str,
    *,
    lasts: dt.timedelta | None = None,
    created_by: str | None = None,
) -> tuple[Token, str]:
    """A new token and its secret, which nobody can read from the database. lasts: until it expires; None: never."""
    secret = PREFIX + secrets.token_urlsafe(32)
    expires = None if lasts is None else func.now() + lasts
    token = Token(name=name, scope=scope, hash=_hash(secret), expires_at=expires, created_by=created_by)
    session.add(token)
    session.flush()
    session.refresh(token)
    return token, secret


def use(session: Session, secret: str) -> Token:
    """The token with this secret; notes, to the minute, when it was used last. Raises TokenRefused."""
    row = session.execute(
        select(
            Token,
            Token.expires_at <= func.now(),
            or_(Token.last_used_at.is_(None), Token.last_used_at < func.now() - dt.timedelta(minutes=1)),
        ).where(Token.hash == _hash(secret))
    ).one_or_none()
    if row is None:
        raise TokenRefused("this token is unknown; check that it was copied whole")
    token, expired, stale = row
    if token.revoked_at is not None:
        raise TokenRefused(f"the token {token.name!r} was revoked; ask for a new one")
    if expired:
        raise TokenRefused(f"the token {token.name!r} has expired; ask for a new one")
    if stale:
        session.execute(
            update(Token)
            .where(Token.id == token.id)
            .values(last_used_at=func.now())
            .execution_options(synchronize_session=False)
        )
    return token


def page(
    session: Session, *, everything: bool, limit: int, after: Place | None = None
) -> tuple[Sequence[Token], Place | None]:
    """Up to `limit` tokens, newest first, and where the next page begins. everything: revoked and expired ones, too."""
    query = select(Token)
    if not everything:
        query = query.where(Token.revoked_at.is_(None), _unexpired())
    rows, more = newest(session, query, (Token.created_at, Token.id), limit, after)
    return rows, Place(rows[-1].created_at, rows[-1].id) if more else None


def get(session: Session, token_id: uuid.UUID) -> Token:
    """Raises TokenNotFound."""
    token = session.get(Token, token_id)
    if token is None:
        raise TokenNotFound(token_id)
    return token


def revoke(session: Session, token_id: uuid.UUID) -> Token:
    """From now on it opens nothing; revoking it again changes nothing. Raises TokenNotFound."""
    token = session.get(Token, token_id, with_for_update=True)
    if token is None:
        raise TokenNotFound(token_id)
    if token.revoked_at is None:
        token.revoked_at = func.now()
        session.flush()
        session.refresh(token)
    return token


def has_admin(session: Session) -> bool:
    """Whether anybody holds a token with which more can be made. Callers wait for each other until they commit."""
    session.execute(select(func.pg_advisory_xact_lock(_FIRST_LOCK)))
    query = select(Token.id).where(Token.scope == "admin", Token.revoked_at.is_(None), _unexpired())
    return session.scalar(query.limit(1)) is not None


_FIRST_LOCK: Final = 0x46495253  # any number, the same for every process that makes the first token


def _unexpired() -> ColumnElement[bool]:
    return or_(Token.expires_at.is_(None), Token.expires_at > func.now())


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
