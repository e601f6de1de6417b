"""From rows to response bodies."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from sqlalchemy.orm import Session

from api import alerts
from api.schemas import (
    Alert,
    AttemptOut,
    BucketsAt,
    EvaluationOut,
    FateCount,
    Ledger,
    PromptRow,
    RunDetail,
    RunSummary,
    StepOut,
)
from db import runs, views
from db.models import FATES, Run
from db.views import BucketCounts, PromptStanding, Spend, bucket_counts


def run_summaries(session: Session, rows: Sequence[Run]) -> list[RunSummary]:
    standings = runs.standings(session, rows)
    return [RunSummary.model_validate(_summary(run, standings[run.id], RunSummary)) for run in rows]


def run_detail(session: Session, run: Run) -> RunDetail:
    """The run as it stands in this transaction."""
    attempts = [AttemptOut.model_validate(a, from_attributes=True) for a in runs.attempts(session, run.id)]
    standing = runs.standings(session, [run])[run.id]
    return RunDetail.model_validate(_summary(run, standing, RunDetail) | {"attempts": attempts})


def buckets_at(counts: BucketCounts) -> BucketsAt:
    return BucketsAt(step=counts.step, counts=counts.counts)


def ledger_of(sampled: Spend, fates: Mapping[str, Spend]) -> Ledger:
    """Every fate is named, those that nothing met, too."""
    none = Spend(0, 0)
    return Ledger(
        sampled=FateCount(fate="sampled", **sampled._asdict()),
        fates=[FateCount(fate=fate, **fates.get(fate, none)._asdict()) for fate in FATES],
    )


def prompt_row(standing: PromptStanding) -> PromptRow:
    return PromptRow.model_validate(standing, from_attributes=True)


def alerts_now(session: Session, run_id: uuid.UUID) -> list[Alert]:
    """Raises RunNotFound."""
    recent = views.recent(session, run_id, steps=alerts.WINDOW, last=alerts.RECENT)
    return alerts.alerts(
        alerts.Facts(
            state=recent.run.state,
            attempt=recent.run.attempt,
            buckets=recent.run.buckets,
            config=recent.run.config,
            steps=[StepOut.model_validate(step, from_attributes=True) for step in recent.steps],
            evaluations=[EvaluationOut.model_validate(e, from_attributes=True) for e in recent.evaluations],
            judged=recent.judged,
            failed=recent.failed,
            clock=dt.datetime.now(dt.UTC),
        )
    )


def _summary(run: Run, standing: runs.Standing, body: type[BaseModel]) -> dict[str, Any]:
    columns = {name: getattr(run, name) for name in body.model_fields if hasattr(run, name)}
    budget = run.config["budget"]
    return (
        columns
        | standing._asdict()
        | {
            "buckets": bucket_counts(run.step, run.buckets).counts,
            "steps_budget": budget["steps"],
            "rollouts_budget": budget["rollouts"],
        }
    )
