"""Trying a reward: what it says about some responses, in the words in which the API and the command line tell it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

from pydantic import BaseModel, Field

from pipeline.rewards.processes import Processes
from pipeline.rewards.registry import RewardConfig
from pipeline.rewards.scorer import Rule, Scorer
from pipeline.rewards.types import Response, Verdict, failed

_QUICK_S: Final = 1.0
_SHOWN: Final = 2000


class RewardPart(BaseModel):
    """What one part of a reward says of one response; the only one where it is no sum."""

    name: str = Field(examples=["math"])
    weight: float
    judges: bool = Field(description="Whether its verdict is the accuracy.")
    value: float | None = Field(description="Before weighing; null: failed.")
    accuracy: float | None
    why: str
    extracted: str | None = Field(description="What was taken from the response.")
    expected: str | None = Field(description="What that was compared with.")


class RewardResult(BaseModel):
    """reward trains, accuracy in [0, 1] judges the prompt. failed: no verdict could be reached, which is not 0."""

    reward: float | None
    accuracy: float | None
    failed: bool
    why: str = Field(description="Of the part that judges.")
    parts: list[RewardPart]
    seconds: float = Field(description="That the verdict took, without starting reward processes.")


def tried(
    config: RewardConfig, responses: Sequence[Response], *, workers: int = 1, all_s: float = math.inf
) -> list[RewardResult]:
    """A result per response, in order, at the latest after all_s. Raises ValueError when a part can't start.

    Reward processes first give every answer a moment, and those that need more what is left: so no slow one is ever in
    the way of the others.
    """
    end = time.monotonic() + all_s
    with Scorer(config, workers) as scorer:
        rule = scorer.rules[None]
        verdicts: list[dict[str, Verdict]] = [{} for _ in responses]
        seconds = [0.0 for _ in responses]
        open_ones: list[tuple[int, str]] = [(i, name) for i in range(len(responses)) for name in rule.asking]
        for limit_s in (_QUICK_S, math.inf) if len(responses) > 1 else (math.inf,):
            promised: list[tuple[int, str, Future[Verdict]]] = []
            for i, name in open_ones:
                asking, start = rule.asking[name], time.monotonic()
                if isinstance(asking.desk, Processes):
                    asking.desk.hurry(limit_s)
                (found,) = asking.ask([responses[i]])
                if isinstance(found, Verdict):
                    verdicts[i][name] = found
                    seconds[i] += time.monotonic() - start
                else:
                    promised.append((i, name, found))
            for i, name, promise in promised:
                verdicts[i][name] = _awaited(promise, end, all_s, verdicts[i].get(name))
            open_ones = [(i, name) for i, name, _ in promised if verdicts[i][name].failed]
        return [_told(rule, own, s) for own, s in zip(verdicts, seconds, strict=True)]


def _awaited(promise: Future[Verdict], end: float, all_s: float, before: Verdict | None) -> Verdict:
    """Its verdict; when the time is up the one before, if any, with a word about that."""
    try:
        return promise.result(None if math.isinf(end) else max(0.0, end - time.monotonic()))
    except TimeoutError:
        promise.cancel()
        over = f"the {all_s:g} s of this request were over"
        if before is None:
            return failed(f"no verdict: {over}")
        return failed(f"{before.why}, and {over}", before.extracted, before.expected)


def _told(rule: Rule, verdicts: dict[str, Verdict], seconds: float) -> RewardResult:
    score = rule.summed(verdicts)
    parts = [
        RewardPart(
            name=part.reward.name,
            weight=part.weight,
            judges=part.reward.name == rule.judging,
            value=_finite(verdict.value),
            accuracy=_finite(verdict.judged),
            why=_cut(verdict.why),
            extracted=None if verdict.extracted is None else _cut(verdict.extracted),
            expected=None if verdict.expected is None else _cut(verdict.expected),
        )
        for part in rule.parts
        for verdict in [verdicts[part.reward.name]]
    ]
    return RewardResult(
        reward=_finite(score.reward),
        accuracy=_finite(score.accuracy),
        failed=score.failed,
        why=_cut(verdicts[rule.judging].why),
        parts=parts,
        seconds=seconds + max(verdict.seconds for verdict in verdicts.values()),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cut(text: str) -> str:
    """As it may stand on any page: printable, and not too long."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:_SHOWN])
    return clean if len(text) <= _SHOWN else f"{clean}... ({len(text):,} characters)"
