"""Whether a database can serve this code. Cheap enough to be asked every few seconds."""

from __future__ import annotations

from functools import cache

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy.orm import Session

from db.schema import _MIGRATIONS, SchemaMismatch, current


def check_ready(session: Session) -> str:
    """The schema version that the database and this code agree on.

    Raises DatabaseUnavailable, and SchemaMismatch when it was not migrated to this code's version.
    """
    here, head = current(session.connection()), _head()
    if here == head and here is not None:
        return here
    if here is None:
        raise SchemaMismatch(f"The database has no tables yet; this code needs schema {head}. Run `pilot db upgrade`.")
    raise SchemaMismatch(f"The database has schema {here}; this code needs {head}. Run `pilot db upgrade`.")


@cache
def _head() -> str | None:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return ScriptDirectory.from_config(config).get_current_head()
