"""A world to allocate in: every prompt has a true success rate, and rollouts are coin flips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.allocation import Allocator, Batch, Group, Plan, Rollouts


def rollouts(rewards: Sequence[float], step: int = 1, data: Sequence[Any] | None = None) -> Rollouts:
    """Rollouts of two tokens each, whose accuracy is their reward."""
    n = len(rewards)
    values = np.array(rewards, np.float64)
    return Rollouts(values, values, np.full(n, 2), np.full(n, step), data or [None] * n)


class World:
    """Answers plans. fail: share of rollouts whose reward fails. Deterministic per (seed, step, round, prompt)."""

    def __init__(self, rates: Sequence[float], fail: float = 0.0, seed: int = 0) -> None:
        self.rates, self.fail, self.seed = rates, fail, seed

    def generate(self, plan: Plan) -> list[Group]:
        groups = []
        for request in plan.requests:
            stage = 0 if request.stage == "pilot" else 1
            rng = np.random.default_rng([self.seed, plan.step, plan.round, request.prompt, stage])
            rewards = (rng.random(request.n) < self.rates[request.prompt]).astype(np.float64)
            rewards[rng.random(request.n) < self.fail] = math.nan
            names = [f"{plan.step}/{plan.round}/{request.prompt}/{stage}/{i}" for i in range(request.n)]
            tokens = rng.integers(1, 9, request.n)
            columns = Rollouts(rewards, rewards, tokens, np.full(request.n, plan.step), names)
            groups.append(Group(request, columns))
        return groups


def one_step(allocator: Allocator, world: World, limit: int | None = None) -> tuple[Batch, list[Plan]]:
    """The batch of one training step and the plans that led to it."""
    plans: list[Plan] = []
    while True:
        plans.append(allocator.plan(limit))
        batch = allocator.observe(world.generate(plans[-1]))
        if limit is not None:
            limit -= plans[-1].n_rollouts
        if batch is not None:
            return batch, plans


def told(batch: Batch) -> Any:
    """Everything that a batch says, comparable."""
    groups = [(g.prompt, g.rollouts.rewards.tolist(), list(g.rollouts.data)) for g in batch.groups]
    return batch.step, groups, batch.visits, batch.moves, batch.fates, batch.rounds, batch.short_by, batch.buffer_size
