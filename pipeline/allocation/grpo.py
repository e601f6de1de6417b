"""GRPO's allocation: every prompt in turn, the same number of rollouts each, everything trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.allocation.draft import Draft, Stats
from pipeline.allocation.pool import Pool
from pipeline.allocation.settings import refuse_other_settings
from pipeline.allocation.types import Batch, Bucket, Fate, Group, Mark, Plan, Request, Rollouts, Stage, TrainGroup


class Grpo:
    """Uniform allocation (GRPO, arXiv 2402.03300): the baseline that the others are measured against."""

    def __init__(self, *, n_prompts: int, batch_prompts: int, seed: int, n: int) -> None:
        self.settings = {"name": "grpo", "n_prompts": n_prompts, "batch_prompts": batch_prompts, "seed": seed, "n": n}
        self.batch_prompts, self.n = batch_prompts, n
        self.pool = Pool(n_prompts, seed)
        self.step = 1

    @property
    def epoch(self) -> int:
        return self.pool.epoch

    @property
    def pool_is_solved(self) -> bool:
        return not self.pool.any_left()  # nothing is ever evicted, but all may be excluded

    @property
    def pass_rollouts(self) -> int:
        return min(self.batch_prompts, self.pool.n_prompts) * self.n

    @property
    def waiting(self) -> Iterable[Rollouts]:
        return ()

    def mark(self, prompts: Sequence[int], mark: Mark) -> None:
        self.pool.mark(prompts, mark)

    def plan(self, limit: int | None = None) -> Plan:
        if limit is not None and limit < self.pass_rollouts:
            return Plan(self.step, 1, ())
        self.pool.begin_step()
        prompts = self.pool.take(self.batch_prompts)
        return Plan(self.step, 1, tuple(Request(p, Stage.COMMIT, self.n) for p in prompts))

    def observe(self, groups: list[Group]) -> Batch:
        draft = Draft(self.step)
        draft.rounds = 1
        if groups:
            stats = Stats.of(groups)
            known = stats.n > stats.n_failed
            draft.book_failed(stats)
            draft.book_scored(stats, known, Fate.TRAINED)
            self.pool.move(stats.prompt[known], Bucket.COMMITTED)
            draft.groups += [
                TrainGroup(g.request.prompt, g.rollouts.scored()) for g, k in zip(groups, known, strict=True) if k
            ]
            draft.visit(groups, stats, [self.pool.bucket(g.request.prompt) for g in groups])
        self.step += 1
        return draft.finish(self.batch_prompts, buffer_size=0)

    def bucket_counts(self) -> dict[Bucket, int]:
        return dict(self.pool.counts)

    def state_dict(self) -> dict[str, Any]:
        return {"settings": self.settings, "step": self.step, "pool": self.pool.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_other_settings(self.settings, state["settings"])
        self.step = int(state["step"])
        self.pool.load_state_dict(state["pool"])
