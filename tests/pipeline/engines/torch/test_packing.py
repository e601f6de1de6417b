"""Packed groups give the plain computation's log-probs and gradients."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pipeline.engines.torch import model as qwen2
from pipeline.engines.torch.packing import microbatches, pack, packed_logprobs

PROMPTS = [[5, 7, 9, 2], [3], [8, 8, 4, 4, 4, 6, 2], [3]]


def small_model(seed: int = 0) -> qwen2.Qwen2:
    torch.manual_seed(seed)
    raw = {
        "model_type": "qwen2", "vocab_size": 24, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True, "initializer_range": 0.35,
    }  # fmt: skip
    return qwen2.Qwen2(qwen2.Qwen2Config.from_hf(raw))


def some_responses(seed: int = 0) -> list[list[list[int]]]:
    """Few symbols, so that prefixes and whole responses repeat; lengths 1 to 9; one prefix of another."""
    rng = np.random.default_rng(seed)
    groups = [[rng.integers(2, 5, rng.integers(1, 10)).tolist() for _ in range(12)] for _ in PROMPTS]
    groups[0][:3] = [[2, 2, 3], [2, 2], [2, 2, 3]]
    return groups


def group_logprobs(
    model: qwen2.Qwen2, prompts: list[list[int]], responses: list[list[list[int]]]
) -> list[list[Tensor]]:
    """`packed_logprobs` cut up: per group, per response."""
    flat_T = packed_logprobs(model, prompts, responses).logprobs
    pieces = iter(torch.split_with_sizes(flat_T, [len(r) for group in responses for r in group]))
    return [[next(pieces) for _ in group] for group in responses]


def plain_logprobs(model: qwen2.Qwen2, prompt: list[int], response: list[int], temperature: float) -> Tensor:
    """One row for one rollout."""
    row = torch.tensor([[*prompt, *response]])
    logits = model(row, torch.arange(row.shape[1])[None], qwen2.causal)[0, len(prompt) - 1 : -1]
    return F.log_softmax(logits / temperature, -1)[torch.arange(len(response)), row[0, len(prompt) :]]


def gradients(model: qwen2.Qwen2, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(("token_budget", "row_tokens"), [(16384, 2048), (40, 2048), (1, 15)])
def test_values_and_gradients_equal_the_plain_computation(
    temperature: float, token_budget: int, row_tokens: int
) -> None:
    model, responses = small_model(), some_responses()
    weights = [[torch.randn(len(r)) for r in group] for group in responses]
    stats = packed_logprobs(model, PROMPTS, responses, temperature, token_budget, row_tokens)
    plain = [plain_logprobs(model, p, r, temperature) for p, g in zip(PROMPTS, responses, strict=True) for r in g]
    torch.testing.assert_close(stats.logprobs, torch.cat(plain), atol=1e-5, rtol=1e-5)
    flat_weights = torch.cat([w for group in weights for w in group])
    got = gradients(model, (stats.logprobs * flat_weights).sum())
    want = gradients(model, (torch.cat(plain) * flat_weights).sum())
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5 * float(b.abs().max()) + 1e-6, rtol=1e-4)


def test_entropy_is_that_of_the_drawing_distribution() -> None:
    model = small_model()
    stats = packed_logprobs(model, [[5, 7]], [[[2, 3]]], temperature=0.5)
    logits = model(torch.tensor([[5, 7, 2]]), torch.arange(3)[None], qwen2.causal)[0, 1:]
    want = torch.distributions.Categorical(logits=logits / 0.5).entropy()
    torch.testing.assert_close(stats.entropy, want.detach(), atol=1e-5, rtol=1e-5)
    assert not stats.entropy.requires_grad


def test_cut_up_per_rollout() -> None:
    model, responses = small_model(), some_responses()
    flat = packed_logprobs(model, PROMPTS, responses).logprobs
    cut = group_logprobs(model, PROMPTS, responses)
    assert [[len(t) for t in group] for group in cut] == [[len(r) for r in group] for group in responses]
    assert torch.equal(torch.cat([t for group in cut for t in group]), flat)


def test_a_group_is_one_row_without_repeats() -> None:
    row = pack([5, 6], [[2, 3, 4], [2, 3, 7], [2, 3, 4], [2]])
    assert row.tokens.tolist() == [5, 6, 2, 3]  # the last token of a response is predicted, not run
    assert row.positions.tolist() == [0, 1, 2, 3]
    assert [i.tolist() for i in row.index] == [[0, 1, 2], [0, 1, 3], [0, 1, 2], [0]]
    apart = pack([5], [[2, 3, 4], [6, 3, 4]])
    assert apart.positions.tolist() == [0, 1, 2, 1, 2]
    assert apart.see[4].tolist() == [True, False, False, True, True]


def test_groups_without_responses_and_empty_responses() -> None:
    model = small_model()
    assert packed_logprobs(model, [[3]], [[]]).logprobs.shape == (0,)
    assert [len(t) for t in group_logprobs(model, [[3], [4]], [[[]], [[2, 5], []]])[1]] == [2, 0]
    with pytest.raises(ValueError, match="empty prompt"):
        packed_logprobs(model, [[]], [[[2]]])


def test_microbatches_keep_order_and_budget() -> None:
    prompts, responses = [[1] * 5] * 4, [[[2] * 5], [[2] * 5], [[2] * 100], [[2] * 5]]
    assert microbatches(prompts, responses, 20) == [[0, 1], [2], [3]]
    assert microbatches([], [], 20) == []
