"""The widened policy computes the bundled policy's function, and goes on doing so when both are trained."""

from __future__ import annotations

import torch

from pipeline.bundled.widen_policy import POLICY, widen
from pipeline.engines.torch.model import causal, load


def test_same_function_and_nothing_leaks_into_the_padding(tmp_path):
    narrow, wide = load(POLICY), load(widen(tmp_path / "policy"))
    assert wide.config.head_dim == 32 and wide.config.hidden_size == 128
    tokens = torch.randint(4, 260, (4, 40), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(40)[None].expand(4, -1)
    a, b = narrow(tokens, positions, causal), wide(tokens, positions, causal)
    assert torch.allclose(a, b, atol=1e-4) and a.std() > 1
    b.logsumexp(-1).sum().backward()
    for name, weight in wide.named_parameters():
        untouched = weight.detach() == 0
        if "norm" not in name:
            assert untouched.any(), f"{name} has no padding"
        assert not weight.grad[untouched].any(), f"{name} learns in its padding"
