"""Prompts that name their reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import ConfigProblems, parse_config
from pipeline.prompts import load_run_prompts
from pipeline.rewards import Response, Scorer
from pipeline.rewards.choice import ChoiceReward
from pipeline.rewards.exact import ExactReward
from pipeline.rewards.maths import MathReward


def test_each_response_is_scored_by_its_own_reward() -> None:
    named = {"letter": ChoiceReward(), "math": MathReward(timeout_s=20)}
    with Scorer(ExactReward(), workers=1, named=named) as scorer:
        scores = scorer.score(
            [
                Response("The answer is B.", "B", reward="letter"),
                Response("The answer is B.", "B"),
                Response("\\boxed{\\frac{2}{4}}", "0.5", reward="math"),
                Response("x", "x"),
            ]
        )
        assert [s.reward for s in scores] == [1, 0, 1, 1]
        assert [list(s.parts) for s in scores] == [["choice"], ["exact"], ["math"], ["exact"]]
        with pytest.raises(KeyError, match="code"):
            scorer.score([Response("x", "x", reward="code")])


def test_rows_name_rewards_of_the_config(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"prompt": "a", "answer": "B", "reward": "letter"}, {"prompt": "b", "answer": "1"}]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "eval.jsonl").write_text('{"prompt": "c", "answer": "2"}')
    config = {
        "model": {"path": "m"},
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
    }
    with pytest.raises(ConfigProblems) as caught:
        load_run_prompts(parse_config(config))
    assert caught.value.problems[0].message == ("1 bad row: row 1: reward 'letter' is not in rewards (there: none)")
    train, _ = load_run_prompts(parse_config(config | {"rewards": {"letter": {"name": "choice"}}}))
    assert {p.text: p.reward for p in train.prompts} == {"a": "letter", "b": None}
    with pytest.raises(ConfigProblems, match="unknown rewards 'choise'|choise"):
        parse_config(config | {"rewards": {"letter": {"name": "choise"}}})
