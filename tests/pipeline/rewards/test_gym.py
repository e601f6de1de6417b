from __future__ import annotations

import importlib.util
import json

import pytest

from pipeline.rewards import Response, Scorer
from pipeline.rewards.gym import ReasoningGymReward, given_in

ENTRY = json.dumps({"question": "4 - 1 - 7 =", "answer": "-4", "metadata": {"source_dataset": "chain_sum"}})
INSTALLED = importlib.util.find_spec("reasoning_gym") is not None


def test_what_is_taken_from_a_response():
    assert given_in("<think>3</think><answer> -4 </answer> done") == "-4"
    assert given_in("\\boxed{-4}") == "-4" and given_in(" -4\n") == "-4" and given_in("</answer><answer>") != ""


@pytest.mark.parametrize("answer", ["-4", "{}", "[" * 100_000, '{"answer": "1", "metadata": {"source_dataset": 3}}'])
def test_a_reference_that_is_no_entry_is_failed(answer):
    assert ReasoningGymReward().look(Response("-4", answer)).failed


@pytest.mark.skipif(INSTALLED, reason="reasoning-gym is installed")
def test_without_the_package_it_says_what_to_install():
    with pytest.raises(ValueError, match="requirements/reasoning-gym.txt"):
        Scorer(ReasoningGymReward())


@pytest.mark.skipif(not INSTALLED, reason="requirements/reasoning-gym.txt is not installed (it needs a C compiler)")
def test_scores_are_those_of_the_package():
    unknown = ENTRY.replace("chain_sum", "no_such_task")
    with Scorer(ReasoningGymReward(), workers=1) as scorer:
        right, wrong, failed = scorer.score(
            [Response("<answer>-4</answer>", ENTRY), Response("7", ENTRY), Response("-4", unknown)]
        )
    assert (right.reward, right.accuracy) == (1, 1) and wrong.reward < 1 and wrong.accuracy == 0
    assert failed.failed and "no task no_such_task" in failed.parts["reasoning_gym"].why
