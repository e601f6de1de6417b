from __future__ import annotations

import math
import time

import pytest

from pipeline.config import BoxedReward, ExactReward, NumericReward
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


@pytest.mark.parametrize(
    ("box", "answer", "expected"),
    [
        ("42", "42", 1),
        ("42", "43", 0),
        ("27.0", "27", 1),
        ("025", "25", 1),
        ("1,000", "1000", 1),
        ("1,2", "12", 0),
        (r"\frac12", "0.5", 1),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", 1),
        (r"-\frac{1}{2}", "-1/2", 1),
        (r"\frac{1}{0}", "1", 0),
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})", 1),
        (r"\text{Evelyn}", "Evelyn", 1),
        (r"90^\circ", "90", 1),
        (r"x = 5", "5", 1),
        (r"\$18", "18", 1),
        (r"\sqrt2", r"\sqrt{2}", 1),
        (r"1 + x", "x + 1", 0),
        (r"\{1, 2\}", r"\{ 1,2 \}", 1),
        ("42", r"so it is \boxed{42}", 1),
    ],
)
def test_boxed(box, answer, expected):
    assert build_reward(BoxedReward())(rf"First \boxed{{0}}, no: \boxed{{{box}}}.", answer) == expected


@pytest.mark.parametrize("response", ["42", r"\boxed{42", r"\boxed", "", r"\boxed{" + "{" * 5000])
def test_without_a_box_it_is_wrong(response):
    assert build_reward(BoxedReward())(response, "42") == 0


@pytest.mark.parametrize(
    "hostile", ["9" * 1_000_000, r"\boxed{" * 200_000, r"\boxed{" + "1," * 500_000 + "}", r"\boxed{" + " " * 10**6]
)
def test_hostile_boxes_cost_nothing(hostile):
    start = time.perf_counter()
    assert build_reward(BoxedReward())(hostile, "42") == 0
    assert time.perf_counter() - start < 0.5
