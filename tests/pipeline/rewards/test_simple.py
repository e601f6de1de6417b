from __future__ import annotations

import math
import time

import pytest
from pydantic import ValidationError

from pipeline.rewards import Response, Scorer
from pipeline.rewards.choice import ChoiceReward
from pipeline.rewards.exact import ExactReward
from pipeline.rewards.formatting import FormatReward
from pipeline.rewards.gsm8k import Gsm8kReward
from pipeline.rewards.numeric import NumericReward
from pipeline.rewards.overlong import OverlongReward
from pipeline.rewards.weighted import SumReward

HOSTILE = [
    "9" * 1_000_000,
    "1," * 500_000,
    "." * 1_000_000,
    "\0\x1b[31m" * 1000,
    "1e" * 9999,
    "(" * 1_000_000,
    "\\boxed{" * 100_000,
    "answer is " * 100_000,
    "####" * 250_000,
    "<think>" * 100_000,
    "\ud800" * 1000,
]


def value(reward, text, answer):
    return reward.look(Response(text, answer)).value


def scored(reward, text, answer):
    with Scorer(reward, workers=1) as scorer:
        return scorer.score([Response(text, answer)])[0].reward


def test_exact():
    reward = ExactReward()
    assert scored(reward, " 42\n", "42") == 1 and scored(reward, "42.0", "42") == 0 and scored(reward, "", "42") == 0


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
    assert scored(NumericReward(), response, answer) == expected


@pytest.mark.parametrize("reward", [NumericReward(), Gsm8kReward(strict=True)])
def test_a_number_that_is_too_long_is_told_as_such(reward):
    for response in ("9" * 200_000, "#### " + "9" * 200_000, "1" * 5000 + ".5"):
        verdict = reward.look(Response(response, "42"))
        assert (verdict.value, verdict.why) == (0, "the response's number is too long")
    assert "has no number" in reward.look(Response("none" * 1000, "42")).why
    numeric = NumericReward().look(Response("42", "9" * 400))
    assert numeric.failed and numeric.why == "the reference answer's number is too long"


def test_numeric_tolerance_is_relative_above_one():
    reward = NumericReward(tolerance=0.01)
    assert scored(reward, "1009", "1000") == 1 and scored(reward, "1011", "1000") == 0
    assert scored(reward, "0.009", "0") == 1


@pytest.mark.parametrize("reward", [NumericReward(), Gsm8kReward(), ChoiceReward()])
def test_an_answer_that_cannot_be_compared_is_no_zero(reward):
    assert math.isnan(value(reward, "42 (A)", "forty-two"))


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        ("So 9 * 2 = <<9*2=18>>18.\n#### 18", "She has 16.\n#### 18", 1),
        ("#### 18\nor is it 19?", "18", 1),
        ("It costs $1,234.00 a year.", "#### 1234", 1),
        ("#### -5", "#### 5", 0),
        ("Between 10-18", "#### 18", 1),
        ("I do not know", "#### 18", 0),
    ],
)
def test_gsm8k(response, answer, expected):
    assert value(Gsm8kReward(), response, answer) == expected


def test_gsm8k_strict_wants_the_mark():
    assert value(Gsm8kReward(strict=True), "The answer is 18.", "#### 18") == 0
    assert value(Gsm8kReward(strict=True), "#### 18", "18") == 1


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("The answer is (C).", 1),
        ("Answer: **C**", 1),
        ("(A) is wrong, so it is \\boxed{\\text{C}}.", 1),
        ("\\boxed{(C) 12}", 1),
        ("I first took (C), but (B) fits.", 0),
        ("The answer is Charlie.", 0),
        ("We see it at once.\nC", 1),
        ("c", 1),
        ("A or C", 0),
        ("", 0),
    ],
)
def test_choice(response, expected):
    assert value(ChoiceReward(), response, "(C)") == expected


def test_format():
    think = FormatReward(shape="think")
    assert value(think, "<think>hm</think> 42", "") == 1
    assert value(think, "42", "") == 0 and value(think, "<think></think>42", "") == 0
    assert value(think, "<think>a</think><think>b</think>42", "") == 0 and value(think, "<think>hm</think>", "") == 0
    both = FormatReward(shape="think_answer")
    assert value(both, "<think>\nhm\n</think>\n<answer>42</answer>", "") == 1
    assert value(both, "<think>hm</think><answer>42</answer>!", "") == 0
    assert value(FormatReward(pattern=r"\d+"), "42", "") == 1 and value(FormatReward(pattern=r"\d+"), "42.", "") == 0


def test_a_pattern_that_backtracks_for_ever_is_failed():
    start = time.monotonic()
    assert math.isnan(value(FormatReward(pattern=r"(a|aa)+$"), "a" * 60 + "b", ""))
    assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"pattern": "("}, "is not a regular expression"),
        ({}, "give either shape"),
        ({"shape": "think", "pattern": "a"}, "give either shape"),
    ],
)
def test_a_form_is_checked_when_it_is_configured(settings, told):
    with pytest.raises(ValidationError, match=told):
        FormatReward(**settings)


@pytest.mark.parametrize(("n_tokens", "expected"), [(0, 0), (80, 0), (90, -0.5), (100, -1), (5000, -1)])
def test_overlong_is_dapos_equation_13(n_tokens, expected):
    reward = OverlongReward(max_tokens=100, cache=20)
    assert reward.look(Response("", "", n_tokens=n_tokens)).value == expected


def test_overlong_without_a_count_is_failed():
    assert OverlongReward(max_tokens=100, cache=20).look(Response("", "")).failed
    with pytest.raises(ValidationError, match="cache=100 is not below max_tokens=100"):
        OverlongReward(max_tokens=100, cache=100)


SUM = {
    "parts": [
        {"weight": 2.0, "reward": {"name": "numeric"}},
        {"weight": 0.5, "reward": {"name": "format", "shape": "think"}},
        {"reward": {"name": "overlong", "max_tokens": 100, "cache": 20}},
    ]
}


def test_a_sum_trains_on_all_parts_and_judges_by_one():
    with Scorer(SumReward(**SUM)) as scorer:
        good, bad, failed = scorer.score(
            [
                Response("<think>hm</think>42", "42", n_tokens=90),
                Response("<think>hm</think>41", "42", n_tokens=5),
                Response("42", "none", n_tokens=5),
            ]
        )
    assert (good.reward, good.accuracy) == (2.0 + 0.5 - 0.5, 1.0)
    assert {name: v.value for name, v in good.parts.items()} == {"numeric": 1.0, "format": 1.0, "overlong": -0.5}
    assert (bad.reward, bad.accuracy) == (0.5, 0.0)
    assert failed.failed and failed.parts["format"].value == 0, "one part fails, the others are still told"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"judge": "overlong"}, "judge 'overlong' can't judge a response; parts that can: numeric, format"),
        ({"judge": "maths"}, "judge 'maths' can't judge"),
        ({"parts": SUM["parts"] + SUM["parts"][:1]}, "name each reward once"),
        ({"parts": []}, "at least 1 item"),
        ({"parts": [{"reward": {"name": "sum", "parts": []}}]}, "sum"),
    ],
)
def test_a_sum_is_checked_when_it_is_configured(change, told):
    with pytest.raises(ValidationError, match=told):
        SumReward(**{**SUM, **change})


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda h: repr(h[:8]))
@pytest.mark.parametrize(
    "reward",
    [ExactReward(), NumericReward(), Gsm8kReward(), ChoiceReward(), FormatReward(shape="think_answer")],
    ids=lambda r: r.name,
)
def test_hostile_responses_get_a_verdict_at_once(reward, hostile):
    start = time.monotonic()
    verdict = reward.look(Response(hostile, "42 (B)"))
    assert verdict.value == 0 or verdict.failed
    assert time.monotonic() - start < 5
    told = f"{verdict.why}{verdict.extracted}{verdict.expected}"
    assert told.isprintable() and len(told) < 3000
