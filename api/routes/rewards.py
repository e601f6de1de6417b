"""Rewards: which there are, and what one says about a response. The twin of `pilot reward test`.

A hostile answer harms nobody here: what a look settles takes time linear in the text, mathematics is compared in a
reward process with a time and a memory limit, and rewards that run code or ask other machines are refused.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import Final

from fastapi import APIRouter, Depends

from api.dependencies import json_body
from api.openapi import problems
from api.problems import ApiProblem
from api.schemas import RewardOut, RewardPart, RewardResult, Rewards, RewardTest, RewardTested
from pipeline.config import ConfigProblems, parse_reward
from pipeline.rewards import Response, Score, Scorer, described
from pipeline.rewards.registry import parts_of

router = APIRouter(prefix="/api/v1/rewards", tags=["rewards"])

ELSEWHERE: Final = {
    "code": "it runs the response's program in a sandbox",
    "function": "it runs a function of yours in a sandbox",
    "reasoning_gym": "it runs reasoning-gym in a sandbox",
    "judge": "it asks a language model, with a key that only workers have",
}
"""Rewards that the API does not run, and why."""

_AT_ONCE = threading.BoundedSemaphore(2)  # tests with a reward process of their own
_WAIT_S: Final = 5.0
_LONGEST_S: Final = 10.0  # for one answer
_ALL_S: Final = 30.0  # for one request
_SHOWN: Final = 2000


@router.get("", operation_id="list_rewards")
def list_rewards() -> Rewards:
    """Every reward that a config can name: its version, its parameters, and whether this API can try it."""
    return Rewards(
        rewards=[
            RewardOut(
                name=reward["name"],
                version=reward["version"],
                title=reward["title"],
                description=reward["description"],
                judges=reward["judges"],
                parameters=reward["schema"],
                elsewhere=ELSEWHERE.get(reward["name"]),
            )
            for reward in described()
        ]
    )


@router.post(
    "/test",
    operation_id="test_reward",
    dependencies=[Depends(json_body)],
    responses=problems(
        "invalid-request", "invalid-config", "reward-elsewhere", "invalid-json", "not-json", "body-too-large"
    ),
)
def try_reward(body: RewardTest) -> RewardTested:
    """Score responses, and tell of each what was extracted and what that was compared with. Nothing is stored.

    A response that takes too long, or whose comparison blows up, is failed, which is not 0.
    """
    config = parse_reward(body.reward)
    parts, judging = parts_of(config)
    weights: dict[str, float] = {part.reward.name: part.weight for part in parts}
    for part in parts:
        if (why := ELSEWHERE.get(part.reward.name)) is not None:
            raise ApiProblem(
                "reward-elsewhere",
                f"The API does not run reward {part.reward.name!r}: {why}. On a worker's machine `./pilot reward test "
                f"{part.reward.name}` does.",
            )
        if (limit := getattr(part.reward, "timeout_s", 0.0)) > _LONGEST_S:
            message = f"at most {_LONGEST_S:g} s here; a run may take more"
            raise ConfigProblems.one("reward.timeout_s", limit, message)
    if not _AT_ONCE.acquire(timeout=_WAIT_S):
        raise ApiProblem(
            "too-many-requests",
            "Other tests of rewards are running; try again in a moment.",
            headers={"Retry-After": "2"},
        )
    try:
        results, end = [], time.monotonic() + _ALL_S
        with Scorer(config, workers=1) as scorer:
            for text in body.responses:
                start = time.monotonic()
                if start > end:
                    results.append(_TOO_LATE)
                    continue
                (score,) = scorer.score([Response(text, body.answer, body.prompt, body.n_tokens)])
                results.append(_result(score, weights, judging, time.monotonic() - start))
        return RewardTested(results=results)
    finally:
        _AT_ONCE.release()


_TOO_LATE = RewardResult(
    reward=None,
    accuracy=None,
    failed=True,
    why=f"not looked at: the {_ALL_S:g} s of this request were over",
    parts=[],
    seconds=0.0,
)


def _result(score: Score, weights: Mapping[str, float], judging: str, seconds: float) -> RewardResult:
    parts = [
        RewardPart(
            name=name,
            weight=weights[name],
            judges=name == judging,
            value=_finite(verdict.value),
            accuracy=_finite(verdict.judged),
            why=_cut(verdict.why),
            extracted=None if verdict.extracted is None else _cut(verdict.extracted),
            expected=None if verdict.expected is None else _cut(verdict.expected),
        )
        for name, verdict in score.parts.items()
    ]
    return RewardResult(
        reward=_finite(score.reward),
        accuracy=_finite(score.accuracy),
        failed=score.failed,
        why=_cut(score.parts[judging].why),
        parts=parts,
        seconds=seconds,
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _cut(text: str) -> str:
    """As it may stand on any page: printable, and not too long."""
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:_SHOWN])
    return clean if len(text) <= _SHOWN else f"{clean}... ({len(text):,} characters)"
