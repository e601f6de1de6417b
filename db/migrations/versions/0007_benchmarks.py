"""What each benchmark of an evaluation said, and what evaluation has spent on each."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    jsonb = postgresql.JSONB(astext_type=sa.Text())
    op.add_column("evaluations", sa.Column("benchmarks", jsonb, server_default=sa.text("'[]'::jsonb"), nullable=False))
    op.add_column("evaluations", sa.Column("mean_accuracy", sa.Double(), nullable=True))
    op.add_column("evaluations", sa.Column("mean_stderr", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("eval_spend", jsonb, server_default=sa.text("'{}'::jsonb"), nullable=False))
    # Until now the held-out set was all that was evaluated.
    op.execute(
        "UPDATE runs SET eval_spend = jsonb_build_object('held-out', "
        "jsonb_build_object('rollouts', eval_rollouts, 'tokens', eval_tokens)) WHERE eval_rollouts > 0"
    )


def downgrade() -> None:
    op.drop_column("runs", "eval_spend")
    op.drop_column("evaluations", "mean_stderr")
    op.drop_column("evaluations", "mean_accuracy")
    op.drop_column("evaluations", "benchmarks")
