"""Rewards: which there are, and what one says about a response. The twin of `pilot reward test`.

A hostile answer harms nobody here: what a look settles takes time linear in the text, mathematics is compared in a
reward process with a time and a memory limit, and rewards that run code or ask other machines are refused.
"""

from __future__ import annotations

import threading
from typing import Final

from fastapi import APIRouter, Depends

from api.dependencies import json_body
from api.openapi import problems
from api.problems import ApiProblem, not_accepted
from api.schemas import RewardOut, Rewards, RewardTest, RewardTested
from pipeline.config import ConfigProblems, FieldProblem, parse_reward
from pipeline.rewards import Response, described, tried
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
        "invalid-request", "invalid-reward", "reward-elsewhere", "invalid-json", "not-json", "body-too-large"
    ),
)
def try_reward(body: RewardTest) -> RewardTested:
    """Score responses, and tell of each what was extracted and what that was compared with. Nothing is stored.

    A response that takes too long, or whose comparison blows up, is failed, which is not 0. It is in nobody's way:
    every response gets a moment before a slow one gets more.
    """
    try:
        config = parse_reward(body.reward)
    except ConfigProblems as error:
        raise not_accepted("invalid-reward", error.problems) from None
    for part in parts_of(config)[0]:
        if (why := ELSEWHERE.get(part.reward.name)) is not None:
            raise ApiProblem(
                "reward-elsewhere",
                f"The API does not run reward {part.reward.name!r}: {why}. On a worker's machine `./pilot reward test "
                f"{part.reward.name}` does.",
            )
        if (limit := getattr(part.reward, "timeout_s", 0.0)) > _LONGEST_S:
            message = f"at most {_LONGEST_S:g} s here; a run may take more"
            raise not_accepted("invalid-reward", [FieldProblem(field="reward.timeout_s", value=limit, message=message)])
    if not _AT_ONCE.acquire(timeout=_WAIT_S):
        raise ApiProblem(
            "too-many-requests",
            "Other tests of rewards are running; try again in a moment.",
            headers={"Retry-After": "2"},
        )
    try:
        asked = [Response(text, body.answer, body.prompt, body.n_tokens) for text in body.responses]
        return RewardTested(results=tried(config, asked, workers=2, all_s=_ALL_S))
    finally:
        _AT_ONCE.release()
