"""Slots of hosts, priorities, deletion, and how long attempts ran."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "hosts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_hosts")),
    )
    op.create_table(
        "slots",
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("device", sa.Text(), nullable=False),
        sa.Column("label", sa.Text(), nullable=False),
        sa.Column("offered", sa.Boolean(), nullable=False),
        sa.Column("run_id", sa.Uuid(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("kind IN ('cpu', 'cuda')", name=op.f("ck_slots_kind_known")),
        sa.ForeignKeyConstraint(["host"], ["hosts.name"], name=op.f("fk_slots_host"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("host", "kind", "position", name=op.f("pk_slots")),
    )
    op.create_index(op.f("ix_slots_run_id"), "slots", ["run_id"], unique=False)
    op.add_column("runs", sa.Column("priority", sa.Integer(), server_default="0", nullable=False))
    op.add_column("runs", sa.Column("device", sa.Text(), server_default="cpu", nullable=False))
    op.add_column("runs", sa.Column("n_devices", sa.Integer(), server_default="1", nullable=False))
    op.add_column("runs", sa.Column("cloned_from", sa.Uuid(), nullable=True))
    op.add_column("runs", sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True))
    op.create_check_constraint(op.f("ck_runs_device_known"), "runs", "device IN ('cpu', 'cuda')")
    op.create_check_constraint(op.f("ck_runs_n_devices_positive"), "runs", "n_devices >= 1")
    op.add_column("attempts", sa.Column("open_rollouts", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("attempts", sa.Column("open_tokens", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("attempts", sa.Column("seconds", sa.Double(), server_default="0", nullable=False))
    op.add_column("leases", sa.Column("seconds", sa.Double(), server_default="0", nullable=False))


def downgrade() -> None:
    op.drop_column("leases", "seconds")
    op.drop_column("attempts", "seconds")
    op.drop_column("attempts", "open_tokens")
    op.drop_column("attempts", "open_rollouts")
    op.drop_constraint(op.f("ck_runs_n_devices_positive"), "runs")
    op.drop_constraint(op.f("ck_runs_device_known"), "runs")
    op.drop_column("runs", "deleted_at")
    op.drop_column("runs", "cloned_from")
    op.drop_column("runs", "n_devices")
    op.drop_column("runs", "device")
    op.drop_column("runs", "priority")
    op.drop_index(op.f("ix_slots_run_id"), table_name="slots")
    op.drop_table("slots")
    op.drop_table("hosts")
