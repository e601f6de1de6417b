"""Runs and everything ingested from their events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "datasets",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_datasets")),
    )
    op.create_table(
        "prompts",
        sa.Column("dataset_id", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("answer", sa.Text(), nullable=False),
        sa.Column("tags", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.ForeignKeyConstraint(
            ["dataset_id"], ["datasets.id"], name=op.f("fk_prompts_dataset_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("dataset_id", "id", name=op.f("pk_prompts")),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("config", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("config_digest", sa.Text(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("stop_requested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("attempt", sa.Integer(), server_default="0", nullable=False),
        sa.Column("setbacks", sa.Integer(), server_default="0", nullable=False),
        sa.Column("dataset_id", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), server_default="0", nullable=False),
        sa.Column("rollouts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("eval_rollouts", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("eval_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("first_accuracy", sa.Double(), nullable=True),
        sa.Column("accuracy", sa.Double(), nullable=True),
        sa.Column("best_accuracy", sa.Double(), nullable=True),
        sa.Column(
            "buckets",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'::jsonb"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "state IN ('queued', 'starting', 'running', 'stopping', 'stopped', 'succeeded', 'failed')",
            name=op.f("ck_runs_state_known"),
        ),
        sa.ForeignKeyConstraint(["dataset_id"], ["datasets.id"], name=op.f("fk_runs_dataset_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
    )
    op.create_index(op.f("ix_runs_created_at_id"), "runs", ["created_at", "id"], unique=False)
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("from_step", sa.Integer(), nullable=True),
        sa.Column("saved_step", sa.Integer(), nullable=True),
        sa.Column("last_seq", sa.Integer(), server_default="0", nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_attempts_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", name=op.f("pk_attempts")),
    )
    op.create_table(
        "evaluations",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("greedy_accuracy", sa.Double(), nullable=False),
        sa.Column("sampled_accuracy", sa.Double(), nullable=False),
        sa.Column("stderr", sa.Double(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("n_prompts", sa.Integer(), nullable=False),
        sa.Column("rollouts_spent", sa.BigInteger(), nullable=False),
        sa.Column("eval_rollouts", sa.BigInteger(), nullable=False),
        sa.Column("eval_tokens", sa.BigInteger(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_evaluations_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", name=op.f("pk_evaluations")),
    )
    op.create_table(
        "leases",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_leases_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", name=op.f("pk_leases")),
    )
    op.create_table(
        "ledger",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("fate", sa.Text(), nullable=False),
        sa.Column("rollouts", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "fate IN ('buffered', 'trained', 'pilot_skipped', 'pilot_deferred', 'pilot_evicted', "
            "'downsampled', 'stale', 'discarded', 'failed', 'lost')",
            name=op.f("ck_ledger_fate_known"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_ledger_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "attempt", "step", "fate", name=op.f("pk_ledger")),
    )
    op.create_table(
        "prompt_moves",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "bucket IN ('unseen', 'evicted', 'skipped', 'deferred', 'ready', 'committed')",
            name=op.f("ck_prompt_moves_bucket_known"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_prompt_moves_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", "prompt_id", name=op.f("pk_prompt_moves")),
    )
    op.create_index(
        op.f("ix_prompt_moves_run_id_prompt_id_step"),
        "prompt_moves",
        ["run_id", "prompt_id", "step"],
        unique=False,
    )
    op.create_table(
        "prompt_states",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("success_rate", sa.Double(), nullable=True),
        sa.Column("visits", sa.Integer(), nullable=False),
        sa.Column("rollouts", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "bucket IN ('unseen', 'evicted', 'skipped', 'deferred', 'ready', 'committed')",
            name=op.f("ck_prompt_states_bucket_known"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_prompt_states_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "prompt_id", name=op.f("pk_prompt_states")),
    )
    op.create_index(op.f("ix_prompt_states_run_id_bucket"), "prompt_states", ["run_id", "bucket"], unique=False)
    op.create_table(
        "prompt_visits",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("prompt_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("n_failed", sa.Integer(), nullable=False),
        sa.Column("success_rate", sa.Double(), nullable=True),
        sa.Column("reward_variance", sa.Double(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.Text(), nullable=False),
        sa.CheckConstraint(
            "bucket IN ('unseen', 'evicted', 'skipped', 'deferred', 'ready', 'committed')",
            name=op.f("ck_prompt_visits_bucket_known"),
        ),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_prompt_visits_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", "position", name=op.f("pk_prompt_visits")),
    )
    op.create_index(
        op.f("ix_prompt_visits_run_id_prompt_id_step"),
        "prompt_visits",
        ["run_id", "prompt_id", "step"],
        unique=False,
    )
    op.create_table(
        "step_metrics",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("rollouts", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("metrics", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("buckets", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_step_metrics_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step", name=op.f("pk_step_metrics")),
    )


def downgrade() -> None:
    op.drop_table("step_metrics")
    op.drop_index(op.f("ix_prompt_visits_run_id_prompt_id_step"), table_name="prompt_visits")
    op.drop_table("prompt_visits")
    op.drop_index(op.f("ix_prompt_states_run_id_bucket"), table_name="prompt_states")
    op.drop_table("prompt_states")
    op.drop_index(op.f("ix_prompt_moves_run_id_prompt_id_step"), table_name="prompt_moves")
    op.drop_table("prompt_moves")
    op.drop_table("ledger")
    op.drop_table("leases")
    op.drop_table("evaluations")
    op.drop_table("attempts")
    op.drop_index(op.f("ix_runs_created_at_id"), table_name="runs")
    op.drop_table("runs")
    op.drop_table("prompts")
    op.drop_table("datasets")
