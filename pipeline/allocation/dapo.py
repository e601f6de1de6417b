"""DAPO's dynamic sampling (arXiv 2503.14476, section 3.2): sample until enough groups have both right and wrong.

A step samples `gen_prompts` prompts, n rollouts each, drops the groups whose rewards are all equal, and repeats until
`batch_prompts` groups are left. The reference throws away the groups beyond that. Here they wait for the next step
(`keep_surplus`), max_age steps at most, and a further pass samples only what is still missing; keep_surplus=False is
the reference. After max_rounds passes the step trains on the groups that it has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pipeline.allocation.buffer import ReplayBuffer
from pipeline.allocation.draft import Draft, Stats
from pipeline.allocation.pool import Pool
from pipeline.allocation.settings import refuse_other_settings
from pipeline.allocation.types import Batch, Bucket, Fate, Group, Mark, Move, Plan, Request, Rollouts, Stage, TrainGroup


class Dapo:
    """`buffer` holds the mixed groups that have not trained yet; within a step those of this step come last."""

    def __init__(
        self,
        *,
        n_prompts: int,
        batch_prompts: int,
        seed: int,
        n: int,
        gen_prompts: int | None,
        keep_surplus: bool,
        max_age: int,
        max_rounds: int,
    ) -> None:
        given = {k: v for k, v in locals().items() if k != "self"}
        self.settings: dict[str, Any] = {"name": "dapo", **given}
        self.batch_prompts, self.n = batch_prompts, n
        self.gen_prompts = gen_prompts or 3 * batch_prompts
        self.keep_surplus, self.max_age, self.max_rounds = keep_surplus, max_age, max_rounds
        self.pool = Pool(n_prompts, seed)
        self.buffer = ReplayBuffer()
        self.step = 1
        self._begin_step()

    def _begin_step(self) -> None:
        self._draft = Draft(self.step)
        self._sampled: list[Group] = []  # of this step; their prompts' buckets are known when it ends

    @property
    def epoch(self) -> int:
        return self.pool.epoch

    @property
    def pool_is_solved(self) -> bool:
        return not self.pool.any_left()  # nothing is ever evicted, but all may be excluded

    @property
    def pass_rollouts(self) -> int:
        return min(self.gen_prompts, self.pool.n_prompts) * self.n

    @property
    def waiting(self) -> Iterable[Rollouts]:
        return self.buffer.values()

    def mark(self, prompts: Sequence[int], mark: Mark) -> None:
        self.pool.mark(prompts, mark)

    def plan(self, limit: int | None = None) -> Plan:
        draft = self._draft
        draft.rounds += 1
        if draft.rounds == 1:
            self.buffer.drop_stale(self.step, self.max_age, self.pool, draft)
            self.buffer.drop_marked(self.pool, draft)
            self.pool.begin_step()
        over_limit = limit is not None and limit < self.pass_rollouts
        if draft.rounds > self.max_rounds or over_limit:
            return Plan(self.step, draft.rounds, ())
        missing = max(0, self.batch_prompts - len(self.buffer))
        share = missing / self.batch_prompts if self.keep_surplus or not missing else 1.0
        # A re-test that is wished for does not wait until groups are missing.
        wanted = max(math.ceil(share * self.gen_prompts), min(self.pool.n_retests, self.gen_prompts))
        prompts = self.pool.take(wanted)
        return Plan(self.step, draft.rounds, tuple(Request(p, Stage.COMMIT, self.n) for p in prompts))

    def observe(self, groups: list[Group]) -> Batch | None:
        draft = self._draft
        if groups:
            self._sampled += groups
            stats = Stats.of(groups)
            draft.book_failed(stats)
            known = stats.n > stats.n_failed
            # Equal rewards are recognised by comparing them: the variance of equal ones may be a rounding error.
            mixed = np.array([k and not _all_equal(g) for g, k in zip(groups, known, strict=True)])
            easy = known & ~mixed & (stats.success_rate >= 0.5)
            hard = known & ~mixed & ~easy
            draft.book_scored(stats, mixed, Fate.BUFFERED)
            draft.book_scored(stats, easy | hard, Fate.DISCARDED)
            self.pool.move(stats.prompt[easy], Bucket.SKIPPED)
            self.pool.move(stats.prompt[hard], Bucket.DEFERRED)
            self.pool.move(stats.prompt[mixed], Bucket.READY)
            for group, keep in zip(groups, mixed, strict=True):
                if keep:
                    self.buffer[group.request.prompt] = group.rollouts.scored()
            if len(self.buffer) < self.batch_prompts:
                return None
        return self._finish()

    def _finish(self) -> Batch:
        draft, sampled = self._draft, {g.request.prompt for g in self._sampled}
        for prompt in list(self.buffer)[: self.batch_prompts]:
            rollouts = self.buffer.pop(prompt)
            draft.rebook(rollouts, Fate.BUFFERED, Fate.TRAINED)
            draft.groups.append(TrainGroup(prompt, rollouts))
            self.pool.move([prompt], Bucket.COMMITTED)
            if prompt not in sampled:
                draft.moves.append(Move(prompt, Bucket.COMMITTED))
        if not self.keep_surplus:
            for prompt, rollouts in self.buffer.items():
                draft.rebook(rollouts, Fate.BUFFERED, Fate.DISCARDED)
                self.pool.move([prompt], Bucket.UNSEEN)
            self.buffer.clear()
        if self._sampled:
            buckets = [self.pool.bucket(g.request.prompt) for g in self._sampled]
            draft.visit(self._sampled, Stats.of(self._sampled), buckets)
        batch = draft.finish(self.batch_prompts, buffer_size=len(self.buffer))
        self.step += 1
        self._begin_step()
        return batch

    def bucket_counts(self) -> dict[Bucket, int]:
        return dict(self.pool.counts)

    def state_dict(self) -> dict[str, Any]:
        if self._draft.rounds:
            raise RuntimeError("the state can only be saved between training steps")
        pool, buffer = self.pool.state_dict(), self.buffer.state()
        return {"settings": self.settings, "step": self.step, "pool": pool, "buffer": buffer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        refuse_other_settings(self.settings, state["settings"])
        self.step = int(state["step"])
        self._begin_step()
        self.pool.load_state_dict(state["pool"])
        self.buffer.load(state["buffer"])


def _all_equal(group: Group) -> bool:
    rewards = group.rollouts.scored().rewards
    return bool((rewards == rewards[0]).all())
