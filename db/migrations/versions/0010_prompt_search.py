"""A search among prompts looks its words up instead of reading every prompt."""

from __future__ import annotations

from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Comes with Postgres (its contrib package); who may create objects in the database may add it.
    op.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
    trigrams = {"text": "gin_trgm_ops"}
    op.create_index("ix_prompts_text", "prompts", ["text"], postgresql_using="gin", postgresql_ops=trigrams)
    op.create_index("ix_prompts_tags", "prompts", ["tags"], postgresql_using="gin")


def downgrade() -> None:
    op.drop_index("ix_prompts_tags", table_name="prompts")
    op.drop_index("ix_prompts_text", table_name="prompts")
    op.execute("DROP EXTENSION pg_trgm")
