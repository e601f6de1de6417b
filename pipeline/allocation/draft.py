"""The account of a training step while it is being made: what each rollout became, and how each group was judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.allocation.types import Batch, Bucket, Fate, Floats, Group, Ints, Move, Rollouts, TrainGroup, Visit


@dataclass(frozen=True, slots=True)
class Stats:
    """Groups in numbers, all [G]. success_rate and reward_variance are NaN where every reward failed."""

    prompt: Ints
    n: Ints
    n_failed: Ints
    success_rate: Floats
    reward_variance: Floats
    tokens: Ints
    scored_tokens: Ints

    @classmethod
    def of(cls, groups: Sequence[Group]) -> Stats:
        """One pass over the columns of all groups together: a step has hundreds of them. At least one group."""
        n = np.array([len(g.rollouts) for g in groups])
        start = np.concatenate(([0], np.cumsum(n)[:-1]))
        rewards = np.concatenate([g.rollouts.rewards for g in groups])
        success = np.concatenate([g.rollouts.success for g in groups])
        tokens = np.concatenate([g.rollouts.n_tokens for g in groups])
        failed = np.isnan(rewards) | np.isnan(success)
        n_failed = np.add.reduceat(failed.astype(np.int64), start)
        scored = np.where(n > n_failed, n - n_failed, np.nan)
        mean = np.add.reduceat(np.where(failed, 0.0, rewards), start) / scored
        centred = np.where(failed, 0.0, rewards - np.repeat(mean, n))
        return cls(
            prompt=np.array([g.request.prompt for g in groups]),
            n=n,
            n_failed=n_failed,
            success_rate=np.add.reduceat(np.where(failed, 0.0, success), start) / scored,
            reward_variance=np.add.reduceat(centred * centred, start) / scored,
            tokens=np.add.reduceat(tokens, start),
            scored_tokens=np.add.reduceat(np.where(failed, 0, tokens), start),
        )


class Draft:
    """Collects one step's groups, visits, moves and fates; `finish` makes the Batch.

    Every rollout that is sampled is booked once when it arrives; a later change of its fate is a `rebook`. So the
    fates of a step always sum to what the step sampled.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.groups: list[TrainGroup] = []
        self.moves: list[Move] = []
        self.rounds = 0
        self._visits: list[Visit] = []
        self._fates: dict[Fate, tuple[int, int]] = {}

    def book(self, fate: Fate, rollouts: int, tokens: int) -> None:
        before = self._fates.get(fate, (0, 0))
        self._fates[fate] = (before[0] + rollouts, before[1] + tokens)

    def book_scored(self, stats: Stats, which: npt.NDArray[np.bool_], fate: Fate) -> None:
        """Book the rollouts with a reward of some groups (bool [G])."""
        self.book(fate, int((stats.n - stats.n_failed)[which].sum()), int(stats.scored_tokens[which].sum()))

    def book_failed(self, stats: Stats) -> None:
        self.book(Fate.FAILED, int(stats.n_failed.sum()), int((stats.tokens - stats.scored_tokens).sum()))

    def rebook(self, rollouts: Rollouts, old: Fate, new: Fate) -> None:
        tokens = int(rollouts.n_tokens.sum())
        self.book(old, -len(rollouts), -tokens)
        self.book(new, len(rollouts), tokens)

    def visit(self, groups: Sequence[Group], stats: Stats, buckets: Sequence[Bucket]) -> None:
        """Record the groups, with the buckets where their prompts stand now."""
        columns = (stats.n, stats.n_failed, stats.success_rate, stats.reward_variance, stats.tokens)
        for group, bucket, n, n_failed, p, variance, tokens in zip(
            groups, buckets, *(column.tolist() for column in columns), strict=True
        ):
            known = n > n_failed
            self._visits.append(
                Visit(
                    group.request.prompt,
                    group.request.stage,
                    n,
                    n_failed,
                    p if known else None,
                    variance if known else None,
                    tokens,
                    bucket,
                )
            )

    def finish(self, wanted: int, buffer_size: int) -> Batch:
        return Batch(
            step=self.step,
            groups=tuple(self.groups),
            visits=tuple(self._visits),
            moves=tuple(self.moves),
            fates={fate: count for fate, count in self._fates.items() if count != (0, 0)},
            rounds=self.rounds,
            short_by=max(0, wanted - len(self.groups)),
            buffer_size=buffer_size,
        )
