"""Webhooks, what is to be delivered to them, and the trigger that notes every change of a run's state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("events", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_table(
        "deliveries",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("body", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("due_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("delivered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("given_up_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_deliveries_webhook_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index(
        "ix_deliveries_due",
        "deliveries",
        ["due_at"],
        postgresql_where=sa.text("delivered_at IS NULL AND given_up_at IS NULL"),
    )
    op.create_index(op.f("ix_deliveries_webhook_id_id"), "deliveries", ["webhook_id", "id"])
    op.create_table(
        "raised_alerts",
        sa.Column("run_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("raised_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], name=op.f("fk_raised_alerts_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "kind", name=op.f("pk_raised_alerts")),
    )
    op.execute(
        """
        CREATE FUNCTION tell_webhooks_of_state() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO deliveries (webhook_id, event, body)
            SELECT id, 'run.state', jsonb_build_object(
                'run', NEW.id, 'name', NEW.name, 'state', NEW.state, 'reason', NEW.reason,
                'before', CASE WHEN TG_OP = 'UPDATE' THEN OLD.state END,
                'attempt', NEW.attempt, 'step', NEW.step, 'rollouts', NEW.rollouts,
                'accuracy', NEW.accuracy, 'best_accuracy', NEW.best_accuracy)
            FROM webhooks WHERE 'run.state' = ANY (events);
            RETURN NULL;
        END $$
        """
    )
    op.execute("CREATE TRIGGER state_set AFTER INSERT ON runs FOR EACH ROW EXECUTE FUNCTION tell_webhooks_of_state()")
    op.execute(
        "CREATE TRIGGER state_changed AFTER UPDATE OF state ON runs FOR EACH ROW "
        "WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION tell_webhooks_of_state()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER state_changed ON runs")
    op.execute("DROP TRIGGER state_set ON runs")
    op.execute("DROP FUNCTION tell_webhooks_of_state")
    op.drop_table("raised_alerts")
    op.drop_table("deliveries")
    op.drop_table("webhooks")
