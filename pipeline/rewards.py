"""Rewards: what a response is worth. NaN means that no reward could be computed; it is never a zero."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from pipeline.config import ExactReward, NumericReward, RewardConfig

Reward = Callable[[str, str], float]
"""(response, reference answer) -> reward in [0, 1], or NaN when it failed."""

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def build_reward(config: RewardConfig) -> Reward:
    match config:
        case ExactReward():
            return exact
        case NumericReward(tolerance=tolerance):
            return lambda response, answer: numeric(response, answer, tolerance)


def exact(response: str, answer: str) -> float:
    """1 when the texts are equal after trimming white space."""
    return float(response.strip() == answer.strip())


def numeric(response: str, answer: str, tolerance: float) -> float:
    """1 when the response's last number is within tolerance * max(1, |answer|) of the answer's last number.

    A response without a number is wrong (0). A reference answer without one can't be compared: NaN.
    """
    expected, given = last_number(answer), last_number(response)
    if expected is None:
        return math.nan
    if given is None:
        return 0.0
    return float(abs(given - expected) <= tolerance * max(1.0, abs(expected)))


def last_number(text: str) -> float | None:
    """The last number written in the text, thousands separators dropped; None when there is none or it overflows."""
    # Only the tail is searched: a response of a megabyte of digits must not cost more than a normal one.
    found = _NUMBER.findall(text[-400:])
    if not found:
        return None
    value = float(found[-1].replace(",", ""))
    return value if math.isfinite(value) else None
