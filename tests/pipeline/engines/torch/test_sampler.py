"""The prefix tree is exact: right log-probs, right distribution, reproducible, greedy like transformers."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import Qwen2Config, Qwen2ForCausalLM

from pipeline.engines.torch import model as qwen2
from pipeline.engines.torch.sampler import Sample, sample

EOS = 1
PROMPTS = [[5, 7, 9, 2], [3], [5, 7, 9, 2], [8, 8, 4]]
COUNTS = [9, 30, 4, 17]


def small_model(vocab: int = 24, tied: bool = True, seed: int = 0, spread: float = 0.35) -> qwen2.Qwen2:
    torch.manual_seed(seed)
    raw = Qwen2Config(
        vocab_size=vocab, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied, initializer_range=spread, eos_token_id=EOS,
    ).to_dict()  # fmt: skip
    return qwen2.Qwen2(qwen2.Qwen2Config.from_hf(raw)).eval()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def forced_logprobs(model: qwen2.Qwen2, prompt: list[int], tokens: np.ndarray, temperature: float) -> np.ndarray:
    """Log-probs by one plain teacher-forced forward of this rollout alone."""
    row = torch.tensor([[*prompt, *tokens.tolist()]])
    with torch.no_grad():
        logits = model(row, torch.arange(row.shape[1])[None], qwen2.causal)[0, len(prompt) - 1 : -1]
    return F.log_softmax(logits / temperature, -1)[torch.arange(len(tokens)), row[0, len(prompt) :]].numpy()


def flat(groups: list[list[Sample]]) -> list[tuple[tuple[int, ...], tuple[float, ...], bool]]:
    return [(tuple(s.tokens.tolist()), tuple(s.logprobs.tolist()), s.finished) for g in groups for s in g]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_equal_teacher_forcing(tied: bool, temperature: float) -> None:
    model = small_model(tied=tied)
    groups = sample(model, PROMPTS, COUNTS, 12, temperature, 1.0, EOS, generator())
    assert [len(g) for g in groups] == COUNTS
    lengths = set()
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for s in group:
            assert s.tokens.dtype == np.int32 and s.logprobs.dtype == np.float32
            assert len(s.tokens) == len(s.logprobs)
            want = forced_logprobs(model, prompt, s.tokens, temperature)
            np.testing.assert_allclose(s.logprobs, want, atol=1e-4, rtol=1e-5)
            lengths.add(len(s.tokens))
    assert len(lengths) > 3, "the trees never branched or ended early: nothing was tested"


def test_ends_at_eos_and_at_the_limit() -> None:
    groups = sample(small_model(spread=0.2), PROMPTS, [200] * 4, 10, 1.0, 1.0, EOS, generator())
    seen = Counter()
    for s in itertools.chain(*groups):
        assert s.finished == (s.tokens[-1] == EOS)
        assert EOS not in s.tokens[:-1]
        assert s.finished or len(s.tokens) == 10
        seen[s.finished] += 1
    assert min(seen[True], seen[False]) > 20


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.5, 1.0), (2.0, 1.0), (1.0, 0.8), (1.5, 0.6)])
def test_distribution_by_exact_enumeration(temperature: float, top_p: float) -> None:
    """Chi-square of 20,000 rollouts, over two occurrences of a prompt, against all sequences of up to 3 tokens."""
    vocab, steps, prompt, n = 7, 3, [2, 4], 20_000
    model = small_model(vocab=vocab, tied=False, spread=0.15)
    probability: dict[tuple[int, ...], float] = {}

    def extend(prefix: tuple[int, ...], mass: float) -> None:
        row = torch.tensor([[*prompt, *prefix]])
        with torch.no_grad():
            p = F.softmax(model(row, torch.arange(row.shape[1])[None], qwen2.causal)[0, -1] / temperature, -1).double()
        order = p.argsort(descending=True)
        keep = order[: int((p[order].cumsum(0) < top_p).sum()) + 1] if top_p < 1 else order
        for token in keep.tolist():
            child, m = (*prefix, token), mass * float(p[token] / p[keep].sum())
            if token == EOS or len(child) == steps:
                probability[child] = m
            else:
                extend(child, m)

    extend((), 1.0)
    assert sum(probability.values()) == pytest.approx(1.0)
    groups = sample(model, [prompt, [3], prompt], [n // 2, 7, n // 2], steps, temperature, top_p, EOS, generator(3))
    seen = Counter(tuple(s.tokens.tolist()) for s in groups[0] + groups[2])
    assert set(seen) <= set(probability), "sampled outside the (top_p) support"
    common = {s: p for s, p in probability.items() if p * n >= 5}
    rest = (n - sum(seen[s] for s in common), n * (1 - sum(common.values())))
    cells = [(seen[s], n * p) for s, p in common.items()] + ([rest] if rest[1] >= 5 else [])
    chi2, dof = sum((o - e) ** 2 / e for o, e in cells), len(cells) - 1
    assert dof >= 2
    # Wilson-Hilferty: chi2/dof to the power 1/3 is close to normal. 4 sigma; the seed is fixed.
    z = ((chi2 / dof) ** (1 / 3) - (1 - 2 / (9 * dof))) / (2 / (9 * dof)) ** 0.5
    assert abs(z) < 4, f"chi2 {chi2:.1f} at {dof} degrees of freedom"


def test_top_p_reports_logprobs_of_the_whole_distribution() -> None:
    model = small_model()
    for prompt, group in zip(PROMPTS, sample(model, PROMPTS, COUNTS, 6, 0.8, 0.5, EOS, generator()), strict=True):
        for s in group:
            np.testing.assert_allclose(s.logprobs, forced_logprobs(model, prompt, s.tokens, 0.8), atol=1e-4)


def test_greedy_equals_transformers(tmp_path: Path) -> None:
    qwen2.save(small_model(spread=0.25), tmp_path)
    hf = Qwen2ForCausalLM.from_pretrained(tmp_path).eval()
    groups = sample(qwen2.load(tmp_path), PROMPTS, [2] * 4, 12, 1.0, 1.0, EOS, generator(), greedy=True)
    for prompt, (a, b) in zip(PROMPTS, groups, strict=True):
        out = hf.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False, max_new_tokens=12, eos_token_id=EOS, pad_token_id=0,
        )  # fmt: skip
        assert a.tokens.tolist() == b.tokens.tolist() == out[0, len(prompt) :].tolist()


def test_same_generator_state_same_rollouts() -> None:
    model = small_model()
    first, again = generator(7), generator(7)
    one = flat(sample(model, PROMPTS, COUNTS, 9, 1.0, 1.0, EOS, first))
    assert one == flat(sample(model, PROMPTS, COUNTS, 9, 1.0, 1.0, EOS, again))
    assert torch.equal(first.get_state(), again.get_state())
    assert one != flat(sample(model, PROMPTS, COUNTS, 9, 1.0, 1.0, EOS, first))


def test_small_blocks_and_a_growing_pool_change_no_logprob() -> None:
    model = small_model()
    groups = sample(model, PROMPTS, COUNTS, 12, 1.0, 1.0, EOS, generator(), token_budget=1)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for s in group:
            np.testing.assert_allclose(s.logprobs, forced_logprobs(model, prompt, s.tokens, 1.0), atol=1e-4)


def test_counts_of_zero() -> None:
    assert sample(small_model(), [[2], [3]], [0, 0], 4, 1.0, 1.0, EOS, generator()) == [[], []]
    assert [len(g) for g in sample(small_model(), [[2], [3]], [0, 2], 4, 1.0, 1.0, EOS, generator())] == [
        0,
        2,
    ]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0.0}, "greedy=True"),
        ({"top_p": 0.0}, "top_p"),
        ({"prompts": [[]]}, "empty prompt"),
        ({"counts": [1, 2]}, "1 prompts but 2 counts"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_senseless_calls_are_refused(change: dict[str, object], words: str) -> None:
    call: dict[str, object] = {
        "prompts": [[2]],
        "counts": [1],
        "max_new_tokens": 4,
        "temperature": 1.0,
        "top_p": 1.0,
        "eos_id": EOS,
        "generator": generator(),
    }
    with pytest.raises(ValueError, match=words):
        sample(small_model(), **(call | change))  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_the_gpu() -> None:
    model = small_model()
    groups = sample(model.cuda(), PROMPTS, COUNTS, 8, 1.0, 1.0, EOS, generator())
    model.cpu()
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for s in group:
            np.testing.assert_allclose(s.logprobs, forced_logprobs(model, prompt, s.tokens, 1.0), atol=1e-3)
