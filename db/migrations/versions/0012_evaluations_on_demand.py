"""Evaluations that were asked for: rows of `runs` that name the run which they evaluate. Webhooks are told of runs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("evaluates", sa.Uuid(), nullable=True))
    op.create_foreign_key(op.f("fk_runs_evaluates"), "runs", "runs", ["evaluates"], ["id"])
    op.create_index(op.f("ix_runs_evaluates"), "runs", ["evaluates"])
    _tell_of("NEW.evaluates IS NULL")


def downgrade() -> None:
    op.execute("DELETE FROM evaluations WHERE run_id IN (SELECT id FROM runs WHERE evaluates IS NOT NULL)")
    op.execute("DELETE FROM runs WHERE evaluates IS NOT NULL")
    _tell_of("true")
    op.drop_index(op.f("ix_runs_evaluates"), table_name="runs")
    op.drop_constraint(op.f("fk_runs_evaluates"), "runs", type_="foreignkey")
    op.drop_column("runs", "evaluates")


def _tell_of(which: str) -> None:
    op.execute("DROP TRIGGER state_changed ON runs")
    op.execute("DROP TRIGGER state_set ON runs")
    op.execute(
        f"CREATE TRIGGER state_set AFTER INSERT ON runs FOR EACH ROW WHEN ({which}) "
        "EXECUTE FUNCTION tell_webhooks_of_state()"
    )
    op.execute(
        "CREATE TRIGGER state_changed AFTER UPDATE OF state ON runs FOR EACH ROW "
        f"WHEN ({which} AND OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION tell_webhooks_of_state()"
    )
