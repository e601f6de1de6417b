from __future__ import annotations

import math
import time

import pytest

from pipeline.config import ExactReward, NumericReward
from pipeline.rewards import build_reward


def test_exact():
    reward = build_reward(ExactReward())
    assert reward(" 42\n", "42") == 1 and reward("42.0", "42") == 0 and reward("", "42") == 0


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("The answer is 42.", "42", 1),
        ("42 apples, no, 41", "42", 0),
        ("1,234.50", "1234.5", 1),
        ("-7", "7", 0),
        (".5", "0.5", 1),
        ("1e3", "1000", 1),
        ("none", "42", 0),
        ("42", "#### 42", 1),
        ("1e999", "42", 0),
    ],
)
def test_numeric(response, answer, expected):
    assert build_reward(NumericReward())(response, answer) == expected


def test_numeric_tolerance_is_relative_above_one():
    reward = build_reward(NumericReward(tolerance=0.01))
    assert reward("1009", "1000") == 1 and reward("1011", "1000") == 0 and reward("0.009", "0") == 1


def test_an_answer_that_cannot_be_compared_is_no_zero():
    assert math.isnan(build_reward(NumericReward())("42", "forty-two"))


@pytest.mark.parametrize(
    "hostile", ["9" * 1_000_000, "1," * 500_000, "." * 1_000_000, "\0\x1b[31m" * 1000, "1e" * 9999]
)
def test_hostile_responses_cost_nothing(hostile):
    start = time.perf_counter()
    assert build_reward(NumericReward())(hostile, "42") == 0
    assert time.perf_counter() - start < 0.5
