"""What a run has done so far: metrics, buckets, ledger."""

from __future__ import annotations

from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.answers import alerts_now, buckets_at, ledger_of
from api.dependencies import CleanText, Reading, RunId, check_metrics
from api.openapi import problems
from api.schemas import (
    Alerts,
    Buckets,
    Difficulty,
    EvaluationOut,
    Flow,
    Flows,
    Ledger,
    Metrics,
    RateCell,
    SpendCell,
    StepOut,
)
from db import aggregates, views

router = APIRouter(
    prefix="/api/v1/runs/{run_id}",
    tags=["what a run did"],
    responses=problems("run-not-found", "invalid-request"),
)

CHARTED = ("reward_variance", "loss", "grad_norm", "entropy", "response_tokens")

FromStep = Annotated[
    int,
    Query(ge=0, lt=2**31, description="First step to answer; the last one seen plus 1 gives what is new."),
]


class MetricsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    from_step: int = Field(
        0, ge=0, lt=2**31, description="First step to answer; the last one seen plus 1 gives what is new."
    )
    to_step: int | None = Field(None, ge=0, lt=2**31, description="Last step to answer.")
    points: int | None = Field(
        None,
        ge=2,
        le=5000,
        description="About so many steps at most: those with the smallest and the largest value of each of `extremes` "
        "in equal parts of the range, the first and the last. A chart of them looks like one of all steps.",
    )
    metric: list[CleanText] = Field([], max_length=48, description="Only these metrics; left out: all.")
    extremes: list[CleanText] = Field(
        [],
        max_length=16,
        description="With `points`: metrics whose extremes are kept; left out: those of `metric`, or without it "
        f"{', '.join(CHARTED)}.",
    )

    @model_validator(mode="after")
    def _few_enough(self) -> Self:
        if self.points and not self.extremes and len(self.metric) > 16:
            raise ValueError(
                f"{len(self.metric)} metrics: say with `extremes` of which the extremes are kept, at most 16"
            )
        return self


@router.get("/metrics", operation_id="get_metrics")
def get_metrics(run_id: RunId, query: Annotated[MetricsQuery, Query()], session: Reading) -> Metrics:
    """The training steps' numbers, all of a range or enough for a chart, and every evaluation, in order."""
    check_metrics(session, [run_id], metric=query.metric, extremes=query.extremes)
    extremes = query.extremes or query.metric or CHARTED
    parts = None if query.points is None else max(1, query.points // (2 * len(extremes)))
    steps, evaluations = views.metrics(
        session, run_id, query.from_step, query.to_step, names=query.metric, parts=parts, extremes=extremes
    )
    return Metrics(
        steps=[StepOut.model_validate(step, from_attributes=True) for step in steps],
        evaluations=[EvaluationOut.model_validate(e, from_attributes=True) for e in evaluations],
    )


@router.get("/buckets", operation_id="get_buckets")
def get_buckets(
    run_id: RunId,
    session: Reading,
    from_step: FromStep = 0,
    points: Annotated[int | None, Query(ge=2, le=5000, description="Only of so many steps, evenly spread.")] = None,
) -> Buckets:
    """How many prompts lie in each bucket: now, and after every step from `from_step` on."""
    now, history = views.buckets(session, run_id, from_step, points=points)
    return Buckets(step=now.step, counts=now.counts, history=[buckets_at(counts) for counts in history])


class FlowsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    from_step: int = Field(0, ge=0, lt=2**31, description="From the buckets after this step; 0: before the first one.")
    to_step: int | None = Field(None, ge=0, lt=2**31, description="To the buckets after this step; left out: now.")


@router.get("/flows", operation_id="get_flows")
def get_flows(run_id: RunId, query: Annotated[FlowsQuery, Query()], session: Reading) -> Flows:
    """How many prompts went from which bucket into which between two steps. Every prompt of the pool counts once."""
    found = aggregates.flows(session, run_id, query.from_step, query.to_step)
    flows = [Flow.model_validate(flow, from_attributes=True) for flow in found.flows]
    return Flows(from_step=found.from_step, to_step=found.to_step, flows=flows)


class DifficultyQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    parts: int = Field(40, ge=1, le=200, description="Equal parts that the run's steps are cut into.")
    bins: int = Field(10, ge=2, le=50, description="Equal bins of the success rate; the last one holds 1, too.")


@router.get("/difficulty", operation_id="get_difficulty")
def get_difficulty(run_id: RunId, query: Annotated[DifficultyQuery, Query()], session: Reading) -> Difficulty:
    """How hard the run's prompts are: success rates over the steps, and over prompts by what was spent on them."""
    found = aggregates.difficulty(session, run_id, parts=query.parts, bins=query.bins)
    return Difficulty(
        first=found.first,
        last=found.last,
        every=found.every,
        over_time=[RateCell.model_validate(cell, from_attributes=True) for cell in found.over_time],
        spend=[SpendCell.model_validate(cell, from_attributes=True) for cell in found.spend],
    )


@router.get("/ledger", operation_id="get_ledger")
def get_ledger(run_id: RunId, session: Reading) -> Ledger:
    """Every training rollout by what became of it, and beside them what evaluation has sampled."""
    return ledger_of(*views.ledger(session, run_id))


@router.get("/alerts", operation_id="list_alerts")
def list_alerts(run_id: RunId, session: Reading) -> Alerts:
    """What goes wrong in this run now, each with its evidence and a suggested change."""
    return Alerts(alerts=alerts_now(session, run_id))
