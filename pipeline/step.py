"""The training step. Every method and every engine goes through these few lines."""

from __future__ import annotations

from typing import Any, Protocol

from pipeline.allocation import Allocator, Batch, Dapo, Group, Grpo, PilotCommit, Plan, prepare
from pipeline.config import DapoMethod, GrpoMethod, PilotCommitMethod, RunConfig


class Engine(Protocol):
    """What samples and what learns."""

    def generate(self, plan: Plan) -> list[Group]:
        """Sample plan.requests, in order: rollouts with token log-probs, rewards, failed rewards marked."""
        ...

    def update(self, batch: Batch) -> dict[str, float | None]:
        """Train on batch.groups: group advantages, PPO clip, off-policy correction. Returns metrics."""
        ...


def training_step(
    allocator: Allocator, engine: Engine, config: RunConfig, limit: int | None = None
) -> tuple[Batch, dict[str, float | None]]:
    """One step: sample until the allocator has its batch, select and weigh its rollouts, then update.

    limit: rollouts that this step may sample at most; None is unbounded. Returns the batch and the update's metrics.
    """
    batch = None
    while batch is None:
        plan = allocator.plan(limit)
        groups = engine.generate(plan)
        batch = allocator.observe(groups)
        if limit is not None:
            limit -= plan.n_rollouts
    selection = config.selection.model_dump(exclude={"name"})
    batch = prepare(batch, config.seed, config.update.normalise_std, **selection)
    return batch, engine.update(batch)


def build_allocator(config: RunConfig, n_prompts: int) -> Allocator:
    """The allocator that config.method names, for a pool of n_prompts."""
    common: dict[str, Any] = {"n_prompts": n_prompts, "batch_prompts": config.update.batch_prompts, "seed": config.seed}
    settings = config.method.model_dump(exclude={"name"})
    match config.method:
        case GrpoMethod():
            return Grpo(**common, **settings)
        case DapoMethod():
            return Dapo(**common, **settings)
        case PilotCommitMethod():
            return PilotCommit(**common, **settings)
