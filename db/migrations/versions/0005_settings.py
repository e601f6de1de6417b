"""Settings for everybody, and how busy devices are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "settings",
        sa.Column("id", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("price_per_gpu_hour", sa.Double(), nullable=True),
        sa.Column("currency", sa.Text(), nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("changed_by", sa.Text(), nullable=False),
        sa.CheckConstraint("id", name=op.f("ck_settings_one_row")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_settings")),
    )
    op.add_column("hosts", sa.Column("cpu_use", sa.Double(), nullable=True))
    op.add_column("slots", sa.Column("use", sa.Double(), nullable=True))


def downgrade() -> None:
    op.drop_column("slots", "use")
    op.drop_column("hosts", "cpu_use")
    op.drop_table("settings")
