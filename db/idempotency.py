"""Idempotency keys: the same request sent twice is done once. Nothing here commits.

The key is taken in the transaction that does the work. A second request with it waits, at the key's unique index,
for the first one's commit, and then finds its answer; if the first is rolled back, the second does the work.
"""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Any, Final

from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import IdempotencyKey

LASTS: Final = dt.timedelta(hours=24)


class KeyReused(Exception):
    """The key came with another request before."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used for another request; take a new key for a new request")


def find(session: Session, token_id: uuid.UUID, key: str, request: str) -> dict[str, Any] | None:
    """The answer that the key's request got before; None when the key is new. Raises KeyReused.

    request: a hash of the whole request.
    """
    earlier = session.execute(
        select(IdempotencyKey.request, IdempotencyKey.answer).where(
            IdempotencyKey.token_id == token_id, IdempotencyKey.key == key, IdempotencyKey.expires_at > func.now()
        )
    ).one_or_none()
    if earlier is None:
        return None
    if earlier.request != request:
        raise KeyReused(key)
    answer: dict[str, Any] = earlier.answer
    return answer


def take(session: Session, token_id: uuid.UUID, key: str, request: str) -> dict[str, Any] | None:
    """As `find`; a new key is the caller's from now on, to `keep` the answer with it. Raises KeyReused."""
    columns = IdempotencyKey.token_id, IdempotencyKey.key
    # Skipping what others delete right now: two requests never wait for each other in a circle.
    old = select(*columns).where(IdempotencyKey.expires_at <= func.now()).with_for_update(skip_locked=True)
    session.execute(delete(IdempotencyKey).where(tuple_(*columns).in_(old)))
    taken = session.scalar(
        insert(IdempotencyKey)
        .values(token_id=token_id, key=key, request=request, expires_at=func.now() + LASTS)
        .on_conflict_do_nothing()
        .returning(IdempotencyKey.key)
    )
    return None if taken is not None else find(session, token_id, key, request)


def keep(session: Session, token_id: uuid.UUID, key: str, answer: dict[str, Any]) -> None:
    """Store the answer for the requests to come."""
    session.execute(
        update(IdempotencyKey)
        .where(IdempotencyKey.token_id == token_id, IdempotencyKey.key == key)
        .values(answer=answer)
        .execution_options(synchronize_session=False)
    )
