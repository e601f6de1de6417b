"""What an administrator has set for everybody. Nothing here commits."""

from __future__ import annotations

from typing import Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from db.models import PlatformSettings

DEFAULT_CURRENCY: Final = "USD"


def get(session: Session) -> PlatformSettings | None:
    """None while nothing was set."""
    return session.scalar(select(PlatformSettings))


def put(session: Session, *, price_per_gpu_hour: float | None, currency: str, changed_by: str) -> PlatformSettings:
    """All of them anew."""
    values = {"price_per_gpu_hour": price_per_gpu_hour, "currency": currency, "changed_by": changed_by}
    statement = insert(PlatformSettings).values(id=True, **values)
    statement = statement.on_conflict_do_update(index_elements=["id"], set_=values | {"changed_at": func.now()})
    return session.scalars(statement.returning(PlatformSettings), execution_options={"populate_existing": True}).one()
