"""The audit log: who changed what through the API. An entry is written in the transaction of its change."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from db.models import AuditEntry
from db.paging import newest


def record(
    session: Session,
    *,
    token_id: uuid.UUID,
    token_name: str,
    request_id: str,
    action: str,
    target: str,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> None:
    """before, after: what of the target the action changes, small and without secrets; None: it did not exist."""
    session.add(
        AuditEntry(
            token_id=token_id,
            token_name=token_name,
            request_id=request_id,
            action=action,
            target=target,
            before=before,
            after=after,
        )
    )
    session.flush()


def page(
    session: Session, *, target: str | None = None, limit: int, after: int | None = None
) -> tuple[Sequence[AuditEntry], int | None]:
    """Up to `limit` entries, newest first, and the id after which the next page begins. target: only of this id."""
    query = select(AuditEntry)
    if target is not None:
        query = query.where(AuditEntry.target == target)
    rows, more = newest(session, query, (AuditEntry.id,), limit, None if after is None else (after,))
    return rows, rows[-1].id if more else None
