"""PODS down-sampling against brute force, and what `prepare` books."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.allocation import Batch, Fate, TrainGroup, choose, group_advantages, prepare
from tests.pipeline.allocation.stream import rollouts

REWARDS = st.lists(
    st.one_of(st.sampled_from([0.0, 1.0]), st.floats(-5, 5), st.floats(1e6, 1e6 + 1)), min_size=1, max_size=12
)


@settings(max_examples=200, deadline=None)
@given(rewards=REWARDS, data=st.data())
def test_max_variance_is_the_best_of_all_subsets(rewards, data):
    m = data.draw(st.integers(1, len(rewards)))
    values = np.array(rewards)
    kept = choose("max_variance", values, m, np.random.default_rng(0))
    assert len(set(kept.tolist())) == m
    best = max(np.var(values[list(subset)]) for subset in itertools.combinations(range(len(values)), m))
    assert np.var(values[kept]) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_the_papers_binary_case():
    """n = 64 with k right: half right and half wrong when both suffice, else all of the rarer kind."""
    for right in (1, 5, 8, 30, 60, 64):
        values = np.array([1.0] * right + [0.0] * (64 - right))
        kept = choose("max_variance", values, 16, np.random.default_rng(0))
        assert values[kept].sum() == min(max(8, 16 - (64 - right)), right)


def test_other_rules():
    values, rng = np.array([3.0, 1.0, 2.0, 5.0, 4.0, 0.0]), np.random.default_rng(0)
    assert set(choose("max_reward", values, 2, rng)) == {3, 4}
    assert [values[i] for i in choose("percentile", values, 3, rng)] == [1, 3, 5]
    assert len(set(choose("random", values, 4, rng).tolist())) == 4
    with pytest.raises(ValueError, match="unknown rule"):
        choose("best", values, 2, rng)
    with pytest.raises(ValueError, match="cannot keep 7 of 6"):
        choose("random", values, 7, rng)


def test_equal_rewards_are_chosen_among_at_random():
    """Always the first ones would always be the pilots."""
    chosen = {tuple(choose("max_variance", np.ones(8), 4, np.random.default_rng(s)).tolist()) for s in range(20)}
    assert len(chosen) > 5


def batch(*rewards):
    groups = tuple(TrainGroup(i, rollouts(r, data=list(range(len(r))))) for i, r in enumerate(rewards))
    n = sum(map(len, rewards))
    return Batch(step=3, groups=groups, fates={Fate.TRAINED: (n, 2 * n), Fate.FAILED: (1, 2)})


def test_without_a_rule_everything_trains_with_its_groups_advantages():
    out = prepare(batch([1, 0, 0, 0], [1, 1]), 0, True)
    assert out.groups[0].advantages == pytest.approx(group_advantages(np.array([1.0, 0, 0, 0])))
    assert (out.groups[1].advantages == 0).all() and Fate.DOWNSAMPLED not in out.fates


@pytest.mark.parametrize("advantages", ["kept", "group"])
def test_down_sampling_books_what_it_leaves_out(advantages):
    rewards = [1.0] * 2 + [0.0] * 8
    out = prepare(batch(rewards, [1.0, 0.0]), 0, True, rule="max_variance", keep=4, advantages=advantages)
    big, small = out.groups
    assert sorted(big.rollouts.rewards) == [0, 0, 1, 1] and len(small.rollouts) == 2
    assert out.fates == {Fate.TRAINED: (6, 12), Fate.DOWNSAMPLED: (6, 12), Fate.FAILED: (1, 2)}
    whole = group_advantages(np.array(rewards))[list(big.rollouts.data)]
    kept = group_advantages(big.rollouts.rewards)
    assert big.advantages == pytest.approx(kept if advantages == "kept" else whole)
    assert not np.allclose(kept, whole)
    again = prepare(batch(rewards, [1.0, 0.0]), 0, True, rule="max_variance", keep=4, advantages=advantages)
    assert list(again.groups[0].rollouts.data) == list(big.rollouts.data), "the choice depends on seed and step only"
