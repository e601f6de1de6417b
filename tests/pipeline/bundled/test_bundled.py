"""The bundled prompts and policy hold together: no repeats, answers true, one folder for every reader."""

import random
from fractions import Fraction

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from pipeline.bundled.make_prompts import HERE, SIZES, Problem, generate, read
from pipeline.engines.torch.model import causal, load

TRAIN, EVAL = read(HERE / "prompts.train.jsonl"), read(HERE / "prompts.eval.jsonl")


def test_no_prompt_twice() -> None:
    prompts = [p.prompt for p in TRAIN + EVAL]
    assert len(set(prompts)) == len(prompts)
    assert len(TRAIN) >= 2000 and len(EVAL) >= 300


@pytest.mark.parametrize("problem_set", [TRAIN, EVAL], ids=["train", "eval"])
def test_generated_answers_are_true(problem_set: list[Problem]) -> None:
    for p in problem_set:
        if p.family != "gsm8k":
            assert eval(p.prompt[:-1]) == int(p.answer), p
        else:
            assert Fraction(p.answer).denominator == 1, p


@pytest.mark.parametrize("kind", SIZES, ids="-".join)
def test_generator_is_right_and_reproducible(kind: tuple[str, str]) -> None:
    for seed in range(200):
        p = generate(*kind, random.Random(seed))
        assert eval(p.prompt[:-1]) == int(p.answer) >= 0
        assert p == generate(*kind, random.Random(seed))


def test_policy_is_read_alike_by_us_and_by_transformers() -> None:
    tokenizer = AutoTokenizer.from_pretrained(HERE / "policy")
    chat = [{"role": "user", "content": "12+7="}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert text == "<|user|>12+7=<|assistant|>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert len(ids) == len("12+7=") + 2
    assert tokenizer.eos_token == "<|end|>" and tokenizer.pad_token == "<|pad|>"
    tokens = torch.tensor([ids])
    with torch.no_grad():
        ours = load(HERE / "policy")(tokens, torch.arange(len(ids))[None], causal)
        theirs = AutoModelForCausalLM.from_pretrained(HERE / "policy")(tokens).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
