"""Uploaded prompt sets, and which runs use them. Nothing here commits.

A run's config names a set as `set:NAME@VERSION`. Who creates such a run holds the set's row until it commits, and who
deletes a set locks it first: no run is left without its prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, cast, func, or_, select
from sqlalchemy.dialects.postgresql import JSONPATH, insert
from sqlalchemy.orm import Session

from db.models import FINISHED_STATES, Run, StoredPromptSet
from db.paging import Place, newest

_NAMED = (
    "$.data.* ? (@ == $ref)",
    "$.evaluation.benchmarks[*].data ? (@ == $ref)",
)


class PromptSetNotFound(LookupError):
    def __init__(self, name: str, version: str) -> None:
        super().__init__(f"there is no prompt set {name!r} of version {version!r}")


class PromptSetInUse(Exception):
    """The message tells which runs use it."""


def keep(session: Session, **columns: Any) -> tuple[StoredPromptSet, bool]:
    """The set with these columns, and whether it is new; one with this name and version is left as it is, and cannot
    be deleted until the transaction ends."""
    of = columns["name"], columns["version"]
    while True:  # another upload or a deletion of the same may be under way: whoever is first is waited for
        added = insert(StoredPromptSet).values(**columns).on_conflict_do_nothing(index_elements=["name", "version"])
        if (stored := session.scalar(added.returning(StoredPromptSet))) is not None:
            return stored, True
        if (found := session.scalar(_of(*of).with_for_update(read=True))) is not None:
            return found, False


def get(session: Session, name: str, version: str) -> StoredPromptSet:
    """Raises PromptSetNotFound."""
    found = session.scalar(_of(name, version))
    if found is None:
        raise PromptSetNotFound(name, version)
    return found


def page(
    session: Session, *, name: str | None, limit: int, after: Place | None
) -> tuple[Sequence[StoredPromptSet], Place | None]:
    """Up to `limit` versions, newest first, and where the next page begins. name: only of this set."""
    query = select(StoredPromptSet)
    if name is not None:
        query = query.where(StoredPromptSet.name == name)
    rows, more = newest(session, query, (StoredPromptSet.created_at, StoredPromptSet.id), limit, after)
    return rows, Place(rows[-1].created_at, rows[-1].id) if more else None


def users(session: Session, name: str, version: str, limit: int = 100) -> Sequence[Run]:
    """The runs that use it, newest first."""
    query = select(Run).where(*_using(name, version))
    return session.scalars(query.order_by(Run.created_at.desc()).limit(limit)).all()


def n_users(session: Session, name: str, version: str) -> int:
    query = select(func.count()).select_from(Run).where(*_using(name, version))
    return session.scalar(query) or 0


def hold(session: Session, refs: Sequence[tuple[str, str]]) -> None:
    """Keep these (name, version) from being deleted until the transaction ends. Raises PromptSetNotFound."""
    for name, version in sorted(set(refs)):
        if session.scalar(_of(name, version).with_for_update(read=True)) is None:
            raise PromptSetNotFound(name, version)


def delete(session: Session, name: str, version: str) -> StoredPromptSet:
    """Raises PromptSetNotFound and PromptSetInUse."""
    stored = session.scalar(_of(name, version).with_for_update())
    if stored is None:
        raise PromptSetNotFound(name, version)
    if using := users(session, name, version, limit=4):
        named = ", ".join(f"{run.name!r} ({run.id})" for run in using[:3])
        more = " and others" if len(using) > 3 else ""
        raise PromptSetInUse(f"runs use this prompt set: {named}{more}; delete them first")
    session.delete(stored)
    session.flush()
    return stored


def _of(name: str, version: str) -> Select[StoredPromptSet]:
    return select(StoredPromptSet).where(StoredPromptSet.name == name, StoredPromptSet.version == version)


def _using(name: str, version: str) -> list[ColumnElement[bool]]:
    """An evaluation on demand needs it until it has ended."""
    needs_it = or_(Run.evaluates.is_(None), Run.state.not_in(FINISHED_STATES))
    return [Run.deleted_at.is_(None), needs_it, _names(name, version)]


def _names(name: str, version: str) -> ColumnElement[bool]:
    """Whether the run's config names the set."""
    ref = func.jsonb_build_object("ref", f"set:{name}@{version}")
    return or_(*(func.jsonb_path_exists(Run.config, cast(path, JSONPATH), ref) for path in _NAMED))
