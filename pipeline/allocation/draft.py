"""The account of a training step while it is being made: what each rollout became, and how each group was judged."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pipeline.allocation.types import Batch, Bucket, Fate, Group, Move, Rollout, TrainGroup, Visit


class Draft:
    """Collects one step's groups, visits, moves and fates; `finish` makes the Batch.

    Every rollout that is sampled is booked once when it arrives; a later change of its fate is a `rebook`. So the
    fates of a step always sum to what the step sampled.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.groups: list[TrainGroup] = []
        self.visits: list[Visit] = []
        self.moves: list[Move] = []
        self.rounds = 0
        self._fates: dict[Fate, tuple[int, int]] = {}

    def book(self, rollouts: Iterable[Rollout], fate: Fate, sign: int = 1) -> None:
        count, tokens = self._fates.get(fate, (0, 0))
        for rollout in rollouts:
            count += sign
            tokens += sign * rollout.n_tokens
        self._fates[fate] = (count, tokens)

    def rebook(self, rollouts: tuple[Rollout, ...], old: Fate, new: Fate) -> None:
        self.book(rollouts, old, sign=-1)
        self.book(rollouts, new)

    def visit(self, group: Group, bucket: Bucket) -> None:
        scored = [r for r in group.rollouts if not r.failed]
        self.visits.append(
            Visit(
                prompt=group.request.prompt,
                stage=group.request.stage,
                n=len(group.rollouts),
                n_failed=len(group.rollouts) - len(scored),
                success_rate=success_rate(scored),
                reward_variance=float(np.var([r.reward for r in scored])) if scored else None,
                tokens=sum(r.n_tokens for r in group.rollouts),
                bucket=bucket,
            )
        )

    def finish(self, wanted: int, buffer_size: int) -> Batch:
        return Batch(
            step=self.step,
            groups=tuple(self.groups),
            visits=self.visits,
            moves=self.moves,
            fates={fate: count for fate, count in self._fates.items() if count != (0, 0)},
            rounds=self.rounds,
            short_by=max(0, wanted - len(self.groups)),
            buffer_size=buffer_size,
        )


def success_rate(scored: list[Rollout]) -> float | None:
    return float(np.mean([r.success for r in scored])) if scored else None
