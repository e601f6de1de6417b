"""What is going wrong in a run that trains: alerts from its live numbers, each with its evidence and what to change.

Pure functions of what the run page shows anyway. The dashboard, `GET /runs/{id}/alerts` and webhooks tell the same.
Trends compare the newest steps with the typical ones before them, of the same attempt, so that a rule holds for every
model, reward and batch size.
"""

from __future__ import annotations

import datetime as dt
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from api.schemas import Alert, EvaluationOut, StepOut

WINDOW: Final = 200
"""Steps that are looked at."""
RECENT: Final = 10
_TRENDS_FROM: Final = 40  # steps: before, nothing is typical yet
_PILOTS_FROM: Final = 20  # prompts: fewer say nothing about all
_SLOW_START_S: Final = 300.0


@dataclass(frozen=True)
class Facts:
    """One run, at one moment.

    steps: the newest up to WINDOW, oldest first. evaluations: all. judged: how many groups of the last RECENT steps led
    to each bucket, at the prompts' first stage. failed: rollouts of these steps without a reward.
    """

    state: str
    attempt: int
    buckets: Mapping[str, int]
    config: Mapping[str, Any]
    steps: Sequence[StepOut]
    evaluations: Sequence[EvaluationOut]
    judged: Mapping[str, int]
    failed: int
    clock: dt.datetime


def alerts(facts: Facts) -> list[Alert]:
    """What a person should act on, worst first."""
    steps = [step for step in facts.steps if step.attempt == facts.attempt]
    found = list(_accuracy(facts))
    if facts.state == "running" and steps:
        found += [*_stall(facts, steps), *_prompts(facts, steps), *_rewards(facts, steps)]
        if len(steps) >= _TRENDS_FROM:
            found += [*_collapse(facts, steps), *_gradient(steps), *_throughput(steps)]
    return sorted(found, key=lambda alert: ("bad", "warn").index(alert.level))


def pace(steps: Sequence[StepOut]) -> float | None:
    """Median seconds from the end of one step to that of the next; None with fewer than two."""
    gaps = _gaps(steps)
    return statistics.median(gaps) if gaps else None


def _stall(facts: Facts, steps: Sequence[StepOut]) -> Iterator[Alert]:
    idle = (facts.clock - steps[-1].finished_at).total_seconds()
    usual = pace(steps[-21:])
    if idle >= (_SLOW_START_S if usual is None else max(60.0, 8 * usual)):
        yield Alert(
            kind="stall",
            level="bad" if idle > max(300.0, 30 * (usual or 60.0)) else "warn",
            title=f"No step for {_duration(idle)}",
            evidence="" if usual is None else f"A step usually takes {_duration(usual)}.",
            suggestion="An evaluation may be running; the run's log tells. Stop ends the run.",
        )


def _prompts(facts: Facts, steps: Sequence[StepOut]) -> Iterator[Alert]:
    judged, pool = sum(facts.judged.values()), sum(facts.buckets.values())
    if judged >= _PILOTS_FROM:
        easy = facts.judged.get("skipped", 0) + facts.judged.get("evicted", 0)
        hard = facts.judged.get("deferred", 0)
        if easy >= 0.95 * judged:
            yield Alert(
                kind="too_easy",
                level="warn",
                title="Almost all pilots are too easy",
                evidence=f"{easy:,} of {judged:,} prompts of the last {RECENT} steps were solved or nearly so.",
                suggestion="Give harder prompts, or raise method.p_upper; what is solved teaches nothing.",
            )
        if hard >= 0.95 * judged:
            yield Alert(
                kind="too_hard",
                level="warn",
                title="Almost all pilots are too hard",
                evidence=f"{hard:,} of {judged:,} prompts of the last {RECENT} steps were answered right too rarely.",
                suggestion="Check the reward on some responses first; then give easier prompts, more "
                "method.n_pilot, or a lower method.p_lower.",
            )
    asked = (facts.config.get("update") or {}).get("batch_prompts")
    left = pool - facts.buckets.get("evicted", 0)
    if pool and asked and left < asked:
        yield Alert(
            kind="pool_dry",
            level="warn",
            title="The prompt pool runs dry",
            evidence=f"{left:,} of {pool:,} prompts are not solved yet, fewer than one batch of {asked:,}.",
            suggestion="Stop here, or clone the run with more prompts.",
        )
    short = [step.metrics.get("short_by") or 0.0 for step in steps[-5:]]
    if sum(n > 0 for n in short) > len(short) / 2:
        missing = max(1, round(statistics.mean(short)))
        prompts = "1 prompt" if missing == 1 else f"{missing:,} prompts"
        yield Alert(
            kind="short_batches",
            level="warn",
            title="Trains on fewer prompts than asked",
            evidence=f"{prompts} short per step: too few lie between p_lower and p_upper.",
            suggestion="Widen the thresholds, add prompts, or lower update.batch_prompts.",
        )


def _rewards(facts: Facts, steps: Sequence[StepOut]) -> Iterator[Alert]:
    recent = facts.steps[-RECENT - 1 :]
    sampled = recent[-1].rollouts - (recent[0].rollouts if len(recent) > RECENT else 0)
    if sampled > 0 and facts.failed > 0.01 * sampled:
        share = facts.failed / sampled
        yield Alert(
            kind="reward_failures",
            level="bad" if share > 0.2 else "warn",
            title="Rewards fail",
            evidence=f"{facts.failed:,} of {sampled:,} rollouts of the last steps ({share:.1%}) got no reward.",
            suggestion="The run's log has the errors. Failed rewards teach nothing, and their rollouts are paid for.",
        )


def _collapse(facts: Facts, steps: Sequence[StepOut]) -> Iterator[Alert]:
    for name, kind, title, bound, suggestion in (
        (
            "entropy", "entropy_collapse", "The policy's entropy collapses", 0.1,
            "Lower update.lr, or sample at a higher temperature; a policy without entropy explores nothing.",
        ),
        (
            "response_tokens", "length_collapse", "Responses become very short", 0.3,
            "Look at some responses: a reward that takes empty or copied answers is the usual cause.",
        ),
    ):  # fmt: skip
        now, before = _recent(steps, name), _typical(steps, name)
        if now is not None and before is not None and before > 0 and now < bound * before:
            yield Alert(
                kind=kind,
                level="warn",
                title=title,
                evidence=f"{name} is {_figure(now)} in the last {RECENT} steps, {_figure(before)} before.",
                suggestion=suggestion,
            )
    longest = (facts.config.get("sampling") or {}).get("max_new_tokens")
    length = _recent(steps, "response_tokens")
    if longest and length is not None and length > 0.95 * longest:
        yield Alert(
            kind="length_limit",
            level="warn",
            title="Responses run into the length limit",
            evidence=f"They have {length:.0f} tokens on average; sampling.max_new_tokens is {longest}.",
            suggestion="Raise sampling.max_new_tokens: a response that is cut off cannot be right.",
        )


def _gradient(steps: Sequence[StepOut]) -> Iterator[Alert]:
    before = _typical(steps, "grad_norm")
    spikes = [(s.step, v) for s in steps[-RECENT:] if (v := s.metrics.get("grad_norm")) is not None]
    if before and spikes:
        step, largest = max(spikes, key=lambda spike: spike[1])
        if largest > 10 * before:
            yield Alert(
                kind="gradient_spike",
                level="warn",
                title="The gradient spikes",
                evidence=f"Its norm was {_figure(largest)} in step {step}, and is {_figure(before)} usually.",
                suggestion="Lower update.lr if accuracy suffers; the norm is clipped, so one spike does little.",
            )


def _throughput(steps: Sequence[StepOut]) -> Iterator[Alert]:
    now, before = _rate(steps[-RECENT - 1 :]), _rate(steps[: -RECENT or None])
    if now is not None and before is not None and now < 0.5 * before:
        yield Alert(
            kind="throughput_drop",
            level="warn",
            title="The run became slow",
            evidence=f"{_figure(now)} rollouts/s in the last {RECENT} steps, {_figure(before)} before.",
            suggestion="Longer responses, or another process on the same devices? The times per step tell which part.",
        )


def _accuracy(facts: Facts) -> Iterator[Alert]:
    if len(facts.evaluations) > 1:
        newest, best = facts.evaluations[-1], max(e.sampled_accuracy for e in facts.evaluations)
        if best - newest.sampled_accuracy > max(0.02, 3 * newest.stderr):
            yield Alert(
                kind="accuracy_fell",
                level="warn",
                title="Accuracy fell",
                evidence=f"{newest.sampled_accuracy:.1%} now, {best:.1%} at best.",
                suggestion="A lower update.lr often helps.",
            )


def _figure(value: float) -> str:
    """1684.2 -> 1,684; 0.01234 -> 0.0123."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _recent(steps: Sequence[StepOut], name: str) -> float | None:
    return _median(steps[-RECENT:], name)


def _typical(steps: Sequence[StepOut], name: str) -> float | None:
    return _median(steps[:-RECENT], name)


def _median(steps: Sequence[StepOut], name: str) -> float | None:
    known = [value for step in steps if (value := step.metrics.get(name)) is not None]
    return statistics.median(known) if known else None


def _gaps(steps: Sequence[StepOut]) -> list[float]:
    """Seconds between the ends of neighbouring steps; evaluations between them count, too."""
    return [(b.finished_at - a.finished_at).total_seconds() for a, b in zip(steps, steps[1:], strict=False)]


def _rate(steps: Sequence[StepOut]) -> float | None:
    """Rollouts a second in the typical step."""
    pairs = zip(steps, steps[1:], strict=False)
    rates = [
        (b.rollouts - a.rollouts) / seconds
        for a, b in pairs
        if (seconds := (b.finished_at - a.finished_at).total_seconds()) > 0
    ]
    return statistics.median(rates) if rates else None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02} min"
