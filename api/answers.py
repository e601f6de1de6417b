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
    BenchmarkAsked,
    BenchmarkSpend,
    BucketsAt,
    CheckpointEvaluation,
    CurvePoint,
    EvaluationOut,
    FateCount,
    Ledger,
    PromptMarkOut,
    PromptRow,
    RunDetail,
    RunSummary,
    StepOut,
)
from db import evaluations, run_list, runs, views
from db.models import FATES, Evaluation, PromptMark, Run
from db.run_list import Progress
from db.views import BucketCounts, PromptStanding, Spend, bucket_counts
from pipeline.config import ConfigProblems, parse_config


def run_summaries(session: Session, rows: Sequence[Run]) -> list[RunSummary]:
    return [RunSummary.model_validate(body) for body in _summaries(session, rows, RunSummary)]


def run_detail(session: Session, run: Run) -> RunDetail:
    """The run as it stands in this transaction."""
    attempts = [AttemptOut.model_validate(a, from_attributes=True) for a in runs.attempts(session, run.id)]
    (body,) = _summaries(session, [run], RunDetail)
    if (
        attempts and attempts[-1].finished_at is None
    ):  # its seconds are written when it ends; until then its lease's count
        attempts[-1].seconds = body["seconds"] - sum(attempt.seconds for attempt in attempts[:-1])
    gpu_hours = body["seconds"] / 3600 * _n_devices(run)
    return RunDetail.model_validate(body | {"attempts": attempts, "gpu_hours": gpu_hours})


def _n_devices(run: Run) -> int:
    """Without a check of the config: one of an older version is still to be shown."""
    engine = run.config.get("engine", {})  # the torch engine has one device, and names none
    return int(engine.get("nodes", 1) * engine.get("gpus_per_node", 1))


def checkpoint_evaluations(session: Session, rows: Sequence[Run]) -> list[CheckpointEvaluation]:
    standings = runs.standings(session, rows)
    progress = run_list.progress(session, [row.id for row in rows])
    found = evaluations.results(session, [row.id for row in rows])
    return [_evaluation(row, standings[row.id].reason, progress[row.id].seconds, found.get(row.id)) for row in rows]


def checkpoint_evaluation(session: Session, row: Run) -> CheckpointEvaluation:
    """The evaluation as it stands in this transaction."""
    return checkpoint_evaluations(session, [row])[0]


def _evaluation(row: Run, reason: str | None, seconds: float, found: Evaluation | None) -> CheckpointEvaluation:
    try:
        asked = parse_config(row.config).benchmarks
    except ConfigProblems:  # of an older version; the results, if any, are there all the same
        asked = ()
    columns = {name: getattr(row, name) for name in CheckpointEvaluation.model_fields if hasattr(row, name)}
    return CheckpointEvaluation.model_validate(
        columns
        | {
            "run_id": row.evaluates,
            "run_name": row.name,
            "benchmarks": [BenchmarkAsked.model_validate(b, from_attributes=True) for b in asked],
            "reason": reason,
            "seconds": seconds,
            "gpu_hours": seconds / 3600 * _n_devices(row),
            "rollouts": row.eval_rollouts,
            "tokens": row.eval_tokens,
            "results": found.benchmarks if found is not None else [],
        }
    )


def buckets_at(counts: BucketCounts) -> BucketsAt:
    return BucketsAt(step=counts.step, counts=counts.counts)


def ledger_of(sampled: Spend, fates: Mapping[str, Spend], evaluation: Mapping[str, Spend]) -> Ledger:
    """Every fate is named, those that nothing met, too. evaluation: by benchmark."""
    none = Spend(0, 0)
    return Ledger(
        sampled=FateCount(fate="sampled", **sampled._asdict()),
        fates=[FateCount(fate=fate, **fates.get(fate, none)._asdict()) for fate in FATES],
        evaluation=[BenchmarkSpend(benchmark=name, **spend._asdict()) for name, spend in evaluation.items()],
    )


def prompt_row(standing: PromptStanding, marks: Sequence[PromptMark]) -> PromptRow:
    held = [PromptMarkOut.model_validate(mark, from_attributes=True) for mark in marks]
    return PromptRow(**standing._asdict(), marks=held)


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


def _summaries(session: Session, rows: Sequence[Run], body: type[BaseModel]) -> list[dict[str, Any]]:
    standings = runs.standings(session, rows)
    progress = run_list.progress(session, [run.id for run in rows])
    return [_summary(run, standings[run.id], progress[run.id], body) for run in rows]


def _summary(run: Run, standing: runs.Standing, progress: Progress, body: type[BaseModel]) -> dict[str, Any]:
    columns = {name: getattr(run, name) for name in body.model_fields if hasattr(run, name)}
    budget = run.config["budget"]
    return (
        columns
        | standing._asdict()
        | {
            "buckets": bucket_counts(run.step, run.buckets).counts,
            "steps_budget": budget["steps"],
            "rollouts_budget": budget["rollouts"],
            "curve": [CurvePoint(rollouts=rollouts, accuracy=accuracy) for rollouts, accuracy in progress.curve],
            "reward_variance": progress.reward_variance,
            "seconds": progress.seconds,
            "seconds_left": _seconds_left(run, progress) if run.state == "running" else None,
        }
    )


def _seconds_left(run: Run, lately: Progress) -> float | None:
    """Until the first bound of its budget is reached; None until the pace of the newest attempt is known."""
    if lately.pace_s <= 0:
        return None
    budget = run.config["budget"]
    left = [
        (budget[name] - spent) * lately.pace_s / gained
        for name, spent, gained in (
            ("steps", run.step, lately.steps),
            ("rollouts", run.rollouts, lately.rollouts),
            ("tokens", run.tokens, lately.tokens),
        )
        if budget.get(name) is not None and gained > 0
    ]
    if budget.get("wall_clock_s") is not None:
        left.append(budget["wall_clock_s"] - lately.seconds)
    if budget.get("gpu_hours") is not None:
        left.append(3600 * budget["gpu_hours"] / _n_devices(run) - lately.seconds)
    return max(0.0, min(left)) if left else None
