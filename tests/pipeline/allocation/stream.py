"""A world to allocate in: every prompt has a true success rate, and rollouts are coin flips."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pipeline.allocation import Allocator, Batch, Group, Plan, Rollout


class World:
    """Answers plans. fail: share of rollouts whose reward fails. Deterministic per (seed, step, round, prompt)."""

    def __init__(self, rates: Sequence[float], fail: float = 0.0, seed: int = 0) -> None:
        self.rates, self.fail, self.seed = rates, fail, seed

    def generate(self, plan: Plan) -> list[Group]:
        groups = []
        for request in plan.requests:
            stage = 0 if request.stage == "pilot" else 1
            rng = np.random.default_rng([self.seed, plan.step, plan.round, request.prompt, stage])
            rollouts = []
            for i in range(request.n):
                reward = float(rng.random() < self.rates[request.prompt])
                if rng.random() < self.fail:
                    reward = math.nan
                name = f"{plan.step}/{plan.round}/{request.prompt}/{stage}/{i}"
                rollouts.append(Rollout(reward, reward, int(rng.integers(1, 9)), plan.step, {"text": name}))
            groups.append(Group(request, tuple(rollouts)))
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
