"""Alembic's entry point. db.schema runs it with a connection in the config's attributes."""

from __future__ import annotations

from alembic import context

from db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    compare_server_default=True,
    transaction_per_migration=False,  # a set of migrations goes in whole or not at all
)
with context.begin_transaction():
    context.run_migrations()
