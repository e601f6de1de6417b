from __future__ import annotations

import random

import pytest

from pipeline.decontamination import contaminated
from pipeline.prompts import Prompt

ASK = "\n\nLet's think step by step and output the final answer within \\boxed{}."


def prompts(*texts: str) -> list[Prompt]:
    return [Prompt(f"id{i}", text, "1") for i, text in enumerate(texts, 1)]


def sentence(seed: int, n: int) -> str:
    draw = random.Random(seed)
    return " ".join("".join(draw.choices("abcdefgh", k=6)) for _ in range(n))


def test_equal_after_normalisation() -> None:
    (hit,) = contaminated(prompts("Other", "What  is 2 + 2?", "what is 2+2"), prompts("New", "WHAT is 2 + 2 ?"))
    assert (hit.kind, hit.evaluation, hit.train, hit.n_train) == ("exact", 1, 1, 2)
    assert contaminated(prompts("What is 2 + 2?"), prompts("What is 2 - 2?")) == []


def test_thirteen_words_in_a_row_and_not_twelve() -> None:
    shared = sentence(0, 13).split()
    other = prompts(f"{sentence(1, 20)} {' '.join(shared)} {sentence(2, 20)}")
    (hit,) = contaminated(prompts(f"{sentence(3, 9)} {' '.join(shared)}!"), other)
    assert (hit.kind, hit.shared) == ("overlap", " ".join(shared))
    assert contaminated(prompts(f"{sentence(3, 9)} {' '.join(shared[:12])}"), other) == []
    assert len(contaminated(prompts(f"{sentence(3, 9)} {' '.join(shared[:12])}"), other, n=12)) == 1


def test_a_short_prompt_counts_whole_and_a_very_short_one_only_if_equal() -> None:
    short, tiny = sentence(4, 9), sentence(5, 5)
    train = prompts(f"Before that: {short}. After it.", f"Before that: {tiny}. After it.")
    assert [(h.kind, h.evaluation) for h in contaminated(train, prompts(short, tiny))] == [("overlap", 0)]


def test_what_every_prompt_ends_with_is_not_contamination() -> None:
    train = prompts(*(sentence(i, 12) + ASK for i in range(20)))
    held_out = prompts(*(sentence(100 + i, 12) + ASK for i in range(20)))
    assert contaminated(train, held_out) == []
    (hit,) = contaminated(train, [*held_out, *prompts(sentence(7, 12) + ASK)])
    assert (hit.kind, hit.evaluation, hit.train) == ("exact", 20, 7)


def test_too_short_runs_are_refused() -> None:
    with pytest.raises(ValueError, match="n=7: runs of fewer than 8 words"):
        contaminated([], [], n=7)
