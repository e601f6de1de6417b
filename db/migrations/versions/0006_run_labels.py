"""Runs have tags and an owner, and may be archived."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "runs", sa.Column("tags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False)
    )
    op.add_column("runs", sa.Column("archived_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("runs", sa.Column("created_by", sa.Text(), nullable=True))
    op.execute(  # who created the runs that are there
        "UPDATE runs SET created_by = audit.token_name FROM audit "
        "WHERE audit.target = runs.id::text AND audit.action IN ('run.create', 'run.clone')"
    )


def downgrade() -> None:
    op.drop_column("runs", "created_by")
    op.drop_column("runs", "archived_at")
    op.drop_column("runs", "tags")
