"""The hard bounds of a run, checked again from outside: for a trainer that passes one, or hangs within a step."""

from __future__ import annotations

from pipeline.config import RunConfig
from pipeline.events import StepFinished


def passed(config: RunConfig, newest: StepFinished | None, seconds: float) -> str | None:
    """Which bound the run has passed, in words; None while it keeps all. seconds: of all its trainers."""
    budget = config.budget
    if newest is not None:
        for name, spent, bound in (
            ("step", newest.step, budget.steps),
            ("rollout", newest.rollouts, budget.rollouts),
            ("token", newest.tokens, budget.tokens),
        ):
            if bound is not None and spent > bound:
                return f"{name} budget: {spent:,} of {bound:,} spent"
    if budget.wall_clock_s is not None and seconds > budget.wall_clock_s:
        return f"time budget: {seconds:.0f} s of {budget.wall_clock_s:g} s used"
    hours = seconds * config.engine.n_gpus / 3600
    if budget.gpu_hours is not None and hours > budget.gpu_hours:
        return f"GPU budget: {hours:.4g} of {budget.gpu_hours:g} GPU-hours used"
    return None
