"""From rows to response bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from api.schemas import AttemptOut, BucketsAt, PromptRow, RunDetail, RunSummary
from db.models import Attempt, Run
from db.views import BucketCounts, PromptStanding, bucket_counts


def run_summary(run: Run) -> RunSummary:
    return RunSummary.model_validate(_summary(run, RunSummary))


def run_detail(run: Run, attempts: Sequence[Attempt]) -> RunDetail:
    outs = [AttemptOut.model_validate(attempt, from_attributes=True) for attempt in attempts]
    return RunDetail.model_validate(_summary(run, RunDetail) | {"attempts": outs})


def buckets_at(counts: BucketCounts) -> BucketsAt:
    return BucketsAt(step=counts.step, counts=counts.counts)


def prompt_row(standing: PromptStanding) -> PromptRow:
    return PromptRow.model_validate(standing, from_attributes=True)


def _summary(run: Run, body: type[BaseModel]) -> dict[str, Any]:
    columns = {name: getattr(run, name) for name in body.model_fields if hasattr(run, name)}
    budget = run.config["budget"]
    return columns | {
        "buckets": bucket_counts(run.step, run.buckets).counts,
        "steps_budget": budget["steps"],
        "rollouts_budget": budget["rollouts"],
    }
