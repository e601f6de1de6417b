"""Is my run healthy? Findings in words, worst first, from what the run page knows anyway."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from api.schemas import EvaluationOut, Ledger, RunDetail, StepOut
from ui import text
from ui.palette import FINISHED_STATES

Level = Literal["good", "info", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    level: Level
    title: str
    detail: str


def mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def step_seconds(steps: Sequence[StepOut], last: int = 20) -> float | None:
    """Median time between the ends of the last steps."""
    recent = steps[-last - 1 :]
    gaps = sorted(
        (b.finished_at - a.finished_at).total_seconds()
        for a, b in zip(recent, recent[1:], strict=False)
        if a.attempt == b.attempt
    )
    return gaps[len(gaps) // 2] if gaps else None


def seconds_left(run: RunDetail, steps: Sequence[StepOut]) -> float | None:
    """Until the first budget is used up, at the pace of the last steps."""
    pace = step_seconds(steps)
    if pace is None or not steps:
        return None
    left = float(run.steps_budget - run.step)
    recent = steps[-21:]
    if run.rollouts_budget is not None and len(recent) > 1:
        per_step = (recent[-1].rollouts - recent[0].rollouts) / (len(recent) - 1)
        if per_step > 0:
            left = min(left, (run.rollouts_budget - run.rollouts) / per_step)
    return max(0.0, left) * pace


def signal_gain(steps: Sequence[StepOut], last: int = 20) -> tuple[float, float] | None:
    """Mean reward variance of trained groups and of uniform groups over the last steps; None while unknown."""
    trained = mean([s.metrics.get("reward_variance") for s in steps[-last:]])
    uniform = mean([s.metrics.get("uniform_reward_variance") for s in steps[-last:]])
    return None if trained is None or uniform is None else (trained, uniform)


def findings(
    run: RunDetail,
    steps: Sequence[StepOut],
    evaluations: Sequence[EvaluationOut],
    ledger: Ledger | None,
    clock: dt.datetime | None = None,
) -> list[Finding]:
    """What a person should know about the run, worst first."""
    clock = clock or text.now()
    found: list[Finding] = []
    if run.state == "failed":
        found.append(Finding("bad", "Failed", run.reason or "The run gave no reason."))
    elif run.state == "queued" and (clock - run.created_at).total_seconds() > 30:
        found.append(Finding("warn", "Waiting for a worker", "No worker has taken the run. Is one running?"))
    elif run.state == "running":
        found += _stall(steps, clock)
    found += _training(run, steps, evaluations, ledger)
    order = {"bad": 0, "warn": 1, "info": 2, "good": 3}
    if all(f.level in ("good", "info") for f in found):
        if run.state == "running" and steps:
            found.insert(0, Finding("good", "Healthy", "steps come at a steady pace and find prompts to train on"))
        elif run.state == "succeeded":
            found.append(Finding("good", "Finished", run.reason or "the run came to its end"))
    return sorted(found, key=lambda f: order[f.level])


def _stall(steps: Sequence[StepOut], clock: dt.datetime) -> list[Finding]:
    pace = step_seconds(steps)
    if pace is None or not steps:
        return []
    idle = (clock - steps[-1].finished_at).total_seconds()
    if idle < max(60.0, 8 * pace):
        return []
    return [
        Finding(
            "bad" if idle > max(300.0, 30 * pace) else "warn",
            f"No step for {text.duration(idle)}",
            f"A step usually takes {text.duration(pace)}. An evaluation may be running; if not, look at the worker.",
        )
    ]


def _training(
    run: RunDetail, steps: Sequence[StepOut], evaluations: Sequence[EvaluationOut], ledger: Ledger | None
) -> list[Finding]:
    found: list[Finding] = []
    recent = steps[-5:]
    short = sum((s.metrics.get("short_by") or 0) > 0 for s in recent)
    if recent and short > len(recent) / 2:
        missing = mean([s.metrics.get("short_by") for s in recent]) or 0
        found.append(
            Finding(
                "warn",
                "Trains on fewer prompts than asked",
                f"{missing:.0f} prompts short per step: too few lie between p_lower and p_upper. "
                "Widen the thresholds, add prompts, or lower batch_prompts.",
            )
        )
    if len(evaluations) > 1 and run.best_accuracy is not None:
        newest = evaluations[-1]
        drop = run.best_accuracy - newest.sampled_accuracy
        if drop > max(0.02, 3 * newest.stderr):
            found.append(
                Finding(
                    "warn",
                    "Accuracy fell",
                    f"{text.percent(newest.sampled_accuracy)} now, {text.percent(run.best_accuracy)} at best. "
                    "A lower learning rate often helps.",
                )
            )
    if ledger and ledger.sampled.rollouts:
        spent = {f.fate: f.rollouts for f in ledger.fates}
        share = spent.get("failed", 0) / ledger.sampled.rollouts
        if share > 0.01:
            found.append(Finding("warn", "Rewards fail", f"{text.percent(share)} of all rollouts got no reward."))
        if spent.get("lost"):
            found.append(
                Finding("info", "Came back after a crash", f"{text.number(spent['lost'])} rollouts were sampled twice.")
            )
    if run.state not in FINISHED_STATES and run.attempt > 1:
        found.append(Finding("info", f"Attempt {run.attempt}", "The run goes on from its last checkpoint."))
    return found
