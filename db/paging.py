"""Pages of rows, newest first, each beginning after the last row of the one before."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Select, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session

_Row = TypeVar("_Row")


class Place(NamedTuple):
    """Where a page of rows ended that have a time and an id: the following page begins after this row."""

    created_at: dt.datetime
    id: uuid.UUID


def newest(
    session: Session,
    query: Select[_Row],
    columns: Sequence[InstrumentedAttribute[Any]],
    limit: int,
    after: Sequence[Any] | None,
) -> tuple[Sequence[_Row], bool]:
    """Up to `limit` rows of the query after the one whose columns are `after`, and whether there are further ones.

    columns: by which rows are sorted, together different for every row; the greatest come first.
    """
    query = query.order_by(*(column.desc() for column in columns)).limit(limit + 1)
    if after is not None:
        query = query.where(tuple_(*columns) < tuple_(*after))
    found = session.scalars(query).all()
    return found[:limit], len(found) > limit
