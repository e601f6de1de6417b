"""The last thing before the update: which rollouts of each group train (PODS), and their advantages.

PODS (arXiv 2504.13818) samples many rollouts and updates on few. Its rule keeps, of n rollouts, the m whose rewards
have the greatest variance. The paper's Theorem 1: that subset is the i highest and the m - i lowest rewards for some i,
so sorting and prefix sums find it in O(n log n).
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from pipeline.allocation.advantages import group_advantages
from pipeline.allocation.types import Batch, Fate, Floats, TrainGroup

Index = npt.NDArray[np.intp]


def prepare(
    batch: Batch, seed: int, normalise_std: bool, rule: str | None = None, keep: int = 0, advantages: str = "kept"
) -> Batch:
    """The batch as it trains: of each group the `keep` rollouts that `rule` chooses, with advantages.

    rule: max_variance, max_reward, percentile or random (PODS, section 3.2); None trains on all. A group with no more
    than `keep` rollouts is kept whole. advantages: "kept" computes them over the kept rollouts, "group" over the whole
    group. What is left out has the fate `downsampled`. Among equal rewards the choice is random, of (seed, step).
    """
    groups, left_out, left_out_tokens = [], 0, 0
    for i, group in enumerate(batch.groups):
        rewards = group.rollouts.rewards
        if rule is None or len(rewards) <= keep:
            groups.append(dataclasses.replace(group, advantages=group_advantages(rewards, normalise_std)))
            continue
        kept = np.sort(choose(rule, rewards, keep, np.random.default_rng([seed, batch.step, i])))
        whole = group_advantages(rewards, normalise_std)[kept] if advantages == "group" else None
        rollouts = group.rollouts.take(kept)
        groups.append(
            TrainGroup(
                group.prompt,
                rollouts,
                whole if whole is not None else group_advantages(rollouts.rewards, normalise_std),
            )
        )
        left_out += len(rewards) - keep
        left_out_tokens += int(group.rollouts.n_tokens.sum() - rollouts.n_tokens.sum())
    fates = dict(batch.fates)
    if left_out:
        trained, tokens = fates[Fate.TRAINED]
        fates[Fate.TRAINED] = (trained - left_out, tokens - left_out_tokens)
        fates[Fate.DOWNSAMPLED] = (left_out, left_out_tokens)
    return dataclasses.replace(batch, groups=tuple(groups), fates=fates)


def choose(rule: str, rewards_N: Floats, m: int, rng: np.random.Generator) -> Index:
    """Indices of the m rollouts that the rule keeps, in no order. Raises ValueError for an unknown rule or m.

    max_variance: the subset of greatest reward variance. max_reward: the m highest. percentile: the rewards at the
    percentiles 0.5/m, 1.5/m, ... random: any m.
    """
    n = len(rewards_N)
    if not 1 <= m <= n:
        raise ValueError(f"cannot keep {m} of {n} rollouts")
    shuffled = rng.permutation(n)  # equal rewards in random order, for the sort below is stable
    order = shuffled[np.argsort(rewards_N[shuffled], kind="stable")]
    match rule:
        case "random":
            return shuffled[:m]
        case "max_reward":
            return order[n - m :]
        case "percentile":
            return order[((np.arange(m) + 0.5) / m * n).astype(np.intp)]
        case "max_variance":
            return _max_variance(rewards_N, order, m)
        case _:
            raise ValueError(f"unknown rule {rule!r}; known: max_variance, max_reward, percentile, random")


def _max_variance(rewards_N: Floats, order: Index, m: int) -> Index:
    """PODS, Theorem 1 and Algorithm 2: try every i of the i highest and m - i lowest, by prefix sums."""
    n = len(order)
    ranked = rewards_N[order]
    ranked = ranked - ranked.mean()  # sums of squares of values far from zero would cancel
    low, low2 = _prefix(ranked), _prefix(ranked**2)
    high, high2 = _prefix(ranked[::-1]), _prefix(ranked[::-1] ** 2)
    i = np.arange(m + 1)
    variance = (low2[m - i] + high2[i]) / m - ((low[m - i] + high[i]) / m) ** 2
    best = int(np.argmax(variance))
    return np.concatenate((order[: m - best], order[n - best :]))


def _prefix(values: Floats) -> Floats:
    """[0, v0, v0 + v1, ...]"""
    return np.concatenate(([0.0], np.cumsum(values)))
