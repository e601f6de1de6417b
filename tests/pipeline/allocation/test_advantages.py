from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.allocation import group_advantages


def test_worked_example():
    """Rewards 1, 0, 0, 0: mean 1/4, sample standard deviation 1/2."""
    assert group_advantages(np.array([1.0, 0, 0, 0])) == pytest.approx([1.5, -0.5, -0.5, -0.5], rel=1e-5)
    assert group_advantages(np.array([1.0, 0, 0, 0]), normalise_std=False) == pytest.approx([0.75, -0.25, -0.25, -0.25])


@given(st.floats(-1e6, 1e6), st.integers(1, 64))
def test_equal_rewards_give_exact_zeros(reward, n):
    """0.1 * 3 summed is not 0.3: a float threshold on the deviation would not do."""
    assert (group_advantages(np.full(n, reward)) == 0).all()


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=40))
def test_centred_and_scaled(rewards):
    advantages = group_advantages(np.array(rewards))
    assert advantages.sum() == pytest.approx(0, abs=1e-6)
    if np.std(rewards) > 1e-3:
        assert advantages.std(ddof=1) == pytest.approx(1, abs=1e-2)


def test_failed_rewards_are_refused():
    with pytest.raises(ValueError, match="finite"):
        group_advantages(np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="at least one"):
        group_advantages(np.array([]))
