"""Is my run healthy? Findings in words, worst first, from what the run page knows anyway."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from api.schemas import Alert, EvaluationOut, Ledger, PromptRow, RunDetail, StepOut
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


def wilson(rate: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson score interval of a success rate that was seen in n rollouts; z = 1.96: 95 %."""
    if n < 1:
        return 0.0, 1.0
    centre, spread = rate + z * z / (2 * n), z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    whole = 1 + z * z / n
    return max(0.0, (centre - spread) / whole), min(1.0, (centre + spread) / whole)


PACE_STEPS = 20


def step_gaps(steps: Sequence[StepOut]) -> list[float]:
    """Seconds between the ends of neighbouring steps of one attempt, smallest first."""
    pairs = zip(steps, steps[1:], strict=False)
    return sorted((b.finished_at - a.finished_at).total_seconds() for a, b in pairs if a.attempt == b.attempt)


def step_seconds(steps: Sequence[StepOut], last: int = PACE_STEPS) -> float | None:
    """Median time between the ends of the last steps."""
    gaps = step_gaps(steps[-last - 1 :])
    return gaps[len(gaps) // 2] if gaps else None


def of_attempt(run: RunDetail, steps: Sequence[StepOut]) -> list[StepOut]:
    return [s for s in steps if s.attempt == run.attempt]


def seconds_worked(run: RunDetail, clock: dt.datetime | None = None) -> float | None:
    """The time of all attempts; what lay between them, when the run was stopped or waited, does not count."""
    if not run.attempts:
        return None
    end = run.finished_at if run.state in FINISHED_STATES else clock or text.now()
    attempts = sorted(run.attempts, key=lambda a: a.attempt)
    total = 0.0
    for attempt, after in zip(attempts, [*(a.started_at for a in attempts[1:]), end], strict=True):
        over = attempt.finished_at or after
        total += max(0.0, (over - attempt.started_at).total_seconds()) if over else 0.0
    return total


def seconds_left(run: RunDetail, steps: Sequence[StepOut]) -> float | None:
    """Until the first budget is used up, at the pace of the current attempt's last steps."""
    steps = of_attempt(run, steps)
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


def variance(row: PromptRow) -> float:
    """Of the rewards at the last visit: p(1-p), greatest where half of the responses are right."""
    return 0.0 if row.success_rate is None else row.success_rate * (1 - row.success_rate)


def teaching(rows: Sequence[PromptRow]) -> list[PromptRow]:
    """Those that teach most first; among equals, in the given order."""
    return sorted(rows, key=variance, reverse=True)


def findings(
    run: RunDetail,
    steps: Sequence[StepOut],
    evaluations: Sequence[EvaluationOut],
    ledger: Ledger | None,
    clock: dt.datetime | None = None,
    queued_since: dt.datetime | None = None,
    ahead: int = 0,
    alerts: Sequence[Alert] = (),
) -> list[Finding]:
    """What a person should know about the run, worst first: its state in words, and the API's alerts.

    queued_since: from when on it is known to wait. ahead: how many other runs the workers are busy with.
    """
    clock = clock or text.now()
    fresh = of_attempt(run, steps)
    found: list[Finding] = []
    if run.state == "failed":
        found.append(Finding("bad", "Failed", run.reason or "The run gave no reason."))
    elif run.state == "queued":
        found.append(_queued(run, clock, queued_since, ahead))
    elif run.state == "starting":
        found.append(_beginning(run, "Starting", "the model is being loaded", _attempt_began(run), clock))
    elif run.state == "running" and not fresh:
        found.append(_before_the_first_step(run, evaluations, clock))
    elif run.state == "stopping":
        found.append(_stopping(run, fresh, clock))
    elif run.state == "stopped":
        words = (
            "Resume goes on from the last checkpoint." if run.attempt else "It had not begun. Resume queues it again."
        )
        found.append(Finding("info", "Stopped", words))
    found += [Finding(a.level, a.title, f"{a.evidence} {a.suggestion}".strip()) for a in alerts]
    found += _past(run, ledger)
    order = {"bad": 0, "warn": 1, "info": 2, "good": 3}
    if all(f.level in ("good", "info") for f in found):
        if run.state == "running" and fresh:
            found.insert(0, Finding("good", "Healthy", _pace_words(fresh)))
        elif run.state == "succeeded":
            found.append(Finding("good", "Finished", run.reason or "the run came to its end"))
    return sorted(found, key=lambda f: order[f.level])


SLOW_START_S = 300.0


def _look(run: RunDetail) -> str:
    folder = f"runs/{run.id}/attempts/{run.attempt}"
    return f"Its log is in {folder}/log in the platform's data folder; Stop ends the run."


def _queued(run: RunDetail, clock: dt.datetime, since: dt.datetime | None, ahead: int) -> Finding:
    """What it waits for, in the API's words. A worker takes a run within seconds, unless others are ahead of it."""
    since = since or (None if run.attempt else run.created_at)
    waited = (clock - since).total_seconds() if since and not ahead else 0.0
    words = f"{run.reason}: {run.todo}"
    return Finding("info", "Queued", words) if waited <= 30 else Finding("warn", "Waiting for a worker", words)


def _attempt_began(run: RunDetail) -> dt.datetime | None:
    return max((a.started_at for a in run.attempts if not a.finished_at), default=None)


def _beginning(
    run: RunDetail, title: str, words: str, since: dt.datetime | None, clock: dt.datetime, most: float = 0.0
) -> Finding:
    """Something that should be over soon; a warning when it takes far too long."""
    lasted = (clock - since).total_seconds() if since else 0.0
    if lasted <= max(SLOW_START_S, most):
        return Finding("info", title, words)
    return Finding(
        "warn", f"{title} for {text.duration(lasted)}", f"{words}, which takes far longer than usual. {_look(run)}"
    )


def _before_the_first_step(run: RunDetail, evaluations: Sequence[EvaluationOut], clock: dt.datetime) -> Finding:
    began = _attempt_began(run)
    if not evaluations:
        return _beginning(run, "Evaluating before training", "to know where the policy begins", began, clock)
    ends = [e.finished_at for e in evaluations] + ([began] if began else [])
    words = "its numbers come with its end" if run.attempt < 2 else f"of attempt {run.attempt}"
    return _beginning(run, "First step under way", words, max(ends), clock)


def _stopping(run: RunDetail, steps: Sequence[StepOut], clock: dt.datetime) -> Finding:
    words = "the step is finished and a checkpoint saved"
    most = 8 * (step_seconds(steps) or 0.0)
    return _beginning(run, "Stopping", words, run.stop_requested_at, clock, most)


def _pace_words(steps: Sequence[StepOut]) -> str:
    """What is true of the last steps."""
    gaps = step_gaps(steps[-PACE_STEPS - 1 :])
    steady = len(gaps) >= 5 and gaps[int(0.9 * (len(gaps) - 1))] <= 3 * gaps[len(gaps) // 2]
    return f"steps come{' at a steady pace' if steady else ''} and find prompts to train on"


def _past(run: RunDetail, ledger: Ledger | None) -> list[Finding]:
    found: list[Finding] = []
    lost = sum(f.rollouts for f in ledger.fates if f.fate == "lost") if ledger else 0
    if lost:
        found.append(Finding("info", "Came back after a crash", f"{text.number(lost)} rollouts were sampled twice."))
    if run.state not in FINISHED_STATES and run.attempt > 1:
        found.append(Finding("info", f"Attempt {run.attempt}", "The run goes on from its last checkpoint."))
    return found
