"""What a run's rollouts became, summed on the run itself; and less to do for each visit that comes in: no foreign key
that is looked up for each row, and no index that each change of a prompt's bucket writes to.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_constraint("fk_prompt_visits_run_id", "prompt_visits", type_="foreignkey")
    op.drop_index("ix_prompt_states_run_id_bucket", table_name="prompt_states")
    op.execute("ALTER TABLE prompt_states SET (fillfactor = 70)")
    op.add_column("runs", sa.Column("fates", postgresql.JSONB(), server_default=sa.text("'{}'::jsonb"), nullable=False))
    op.execute(
        """
        UPDATE runs SET fates = sums.fates FROM (
            SELECT run_id, jsonb_object_agg(fate, jsonb_build_array(rollouts, tokens)) AS fates FROM (
                SELECT run_id, fate, sum(rollouts)::bigint AS rollouts, sum(tokens)::bigint AS tokens
                FROM ledger GROUP BY run_id, fate
            ) AS by_fate GROUP BY run_id
        ) AS sums WHERE sums.run_id = runs.id
        """
    )


def downgrade() -> None:
    op.drop_column("runs", "fates")
    op.execute("ALTER TABLE prompt_states RESET (fillfactor)")
    op.create_index("ix_prompt_states_run_id_bucket", "prompt_states", ["run_id", "bucket"])
    op.execute("DELETE FROM prompt_visits WHERE run_id NOT IN (SELECT id FROM runs)")
    op.create_foreign_key("fk_prompt_visits_run_id", "prompt_visits", "runs", ["run_id"], ["id"], ondelete="CASCADE")
