"""What an evaluation under way samples, to be booked should it never finish; what was booked of unfinished work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("open_evaluation", "booked"):
        column = sa.Column(name, postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False)
        op.add_column("attempts", column)


def downgrade() -> None:
    op.drop_column("attempts", "booked")
    op.drop_column("attempts", "open_evaluation")
