"""What an evaluation under way samples, to be booked should it never finish; what was booked of unfinished work; and
how long a run's own evaluations took.
"""

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
    op.add_column("runs", sa.Column("eval_seconds", sa.Double(), server_default="0", nullable=False))
    # Of evaluations until now: those that are kept, but for what was brought by one on demand alone.
    op.execute(
        """
        UPDATE runs SET eval_seconds = own.seconds FROM (
            SELECT kept.run_id, sum(kept.seconds) AS seconds FROM evaluations AS kept
            WHERE NOT EXISTS (
                SELECT FROM runs AS asked JOIN evaluations AS found ON found.run_id = asked.id
                WHERE asked.evaluates = kept.run_id AND found.step = kept.step AND found.finished_at = kept.finished_at
            )
            GROUP BY kept.run_id
        ) AS own
        WHERE own.run_id = runs.id
        """
    )


def downgrade() -> None:
    op.drop_column("runs", "eval_seconds")
    op.drop_column("attempts", "booked")
    op.drop_column("attempts", "open_evaluation")
