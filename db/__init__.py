"""The database: tables, migrations, and every query. Nothing else writes SQL."""

from db.engine import DatabaseUnavailable, create_engine, database_url
from db.schema import SchemaMismatch, check, downgrade, upgrade

__all__ = [
    "DatabaseUnavailable",
    "SchemaMismatch",
    "check",
    "create_engine",
    "database_url",
    "downgrade",
    "upgrade",
]
