"""What an evaluation under way samples, to be booked should it never finish."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    jsonb = postgresql.JSONB()
    op.add_column(
        "attempts", sa.Column("open_evaluation", jsonb, server_default=sa.text("'{}'::jsonb"), nullable=False)
    )


def downgrade() -> None:
    op.drop_column("attempts", "open_evaluation")
