"""Several runs side by side."""

from __future__ import annotations

import uuid
from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from api import comparison
from api.answers import ledger_of, run_summaries
from api.dependencies import CleanText, Reading, check_metrics
from api.openapi import problems
from api.schemas import AccuracyCurve, ComparedRun, Comparison, StepCurve
from db import compare, views

router = APIRouter(prefix="/api/v1", tags=["what a run did"])


class CompareQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    run: list[uuid.UUID] = Field(min_length=1, max_length=20, description="The runs, each once.")
    points: int | None = Field(
        None,
        ge=2,
        le=1000,
        description="About so many steps of each run at most, evenly spaced; left out: 200, and 1,000 of all together.",
    )
    metric: list[CleanText] = Field(
        [], max_length=8, description="Metrics of the steps to answer; left out: reward_variance."
    )

    target: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Sampled accuracy to reach; left out: the highest, in whole percents, that every group reaches.",
    )
    by: comparison.Measure = Field("rollouts", description="What ratios to the baseline count.")
    baseline: uuid.UUID | None = Field(
        None, description="One of the runs: its group is what the others are compared with; left out: the first one."
    )

    @field_validator("run")
    @classmethod
    def _each_once(cls, runs: list[uuid.UUID]) -> list[uuid.UUID]:
        twice = next((run for at, run in enumerate(runs) if run in runs[:at]), None)
        if twice is not None:
            raise ValueError(f"{twice} is named twice; name each run once")
        return runs

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.baseline is not None and self.baseline not in self.run:
            raise ValueError(f"baseline={self.baseline} is none of the runs; name one of them")
        return self


@router.get("/compare", operation_id="compare_runs", responses=problems("run-not-found", "invalid-request"))
def compare_runs(query: Annotated[CompareQuery, Query()], session: Reading) -> Comparison:
    """Up to 20 runs, in the order in which they are named, with all that it takes to compare them: what each is, how
    accurate it became for which steps, rollouts, tokens and hours, and what became of its rollouts.
    """
    check_metrics(session, query.run, metric=query.metric)
    metrics = query.metric or ["reward_variance"]
    points = query.points or min(200, 1000 // len(query.run))
    found = compare.compare(session, query.run, points=points, metrics=metrics)
    summaries = run_summaries(session, [each.run for each in found])
    runs = [
        ComparedRun(
            run=summary,
            config=each.run.config,
            evaluations=AccuracyCurve(**each.evaluations._asdict()),
            series=StepCurve(**each.steps._asdict() | {"metrics": dict(zip(metrics, each.steps.metrics, strict=True))}),
            ledger=ledger_of(*views.ledger_of(each.run)),
        )
        for summary, each in zip(summaries, found, strict=True)
    ]
    groups = comparison.grouped(runs)
    target = comparison.default_target(groups) if query.target is None else query.target
    baseline = 0
    if query.baseline is not None:
        of_runs = [[run.run.id for run in group] for group in groups]
        baseline = next(at for at, ids in enumerate(of_runs) if query.baseline in ids)
    return Comparison(
        runs=runs,
        target=target,
        by=query.by,
        baseline=baseline,
        groups=comparison.summed_up(groups, target, query.by, baseline),
        differences=comparison.differences(groups),
    )
