"""Marks of prompts: pinned, excluded, to be tested again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "prompt_marks",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("mark", sa.Text(), nullable=False),
        sa.Column("wished_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("wished_by", sa.Text(), nullable=False),
        sa.Column("applied_step", sa.Integer(), nullable=True),
        sa.CheckConstraint("mark IN ('pin', 'exclude', 'clear', 'retest')", name="ck_prompt_marks_mark_known"),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name="fk_prompt_marks_run_id", ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name="pk_prompt_marks"),
    )
    op.create_index("ix_prompt_marks_run_id_prompt_id_id", "prompt_marks", ["run_id", "prompt_id", "id"])
    op.create_index(
        "ix_prompt_marks_pending",
        "prompt_marks",
        ["run_id", "id"],
        postgresql_where=sa.text("applied_step IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("prompt_marks")
