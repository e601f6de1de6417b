"""Pilot-Commit (arXiv 2605.26606): a few pilot rollouts judge a prompt; the rest of the budget goes where they differ.

A training step, with `bt` prompts to train on:

    plan     commit up to bt ready prompts (n_commit rollouts each), and pilot new ones (n_pilot each) in the same
             inference pass: the paper's binding of this step's commits with the next step's pilots
    observe  p = success rate of a prompt's pilots
             p >= p_solve  evicted: solved, out of the pool (retest_rate > 0 looks at some of them again); a pinned
                           prompt is skipped instead
             p >  p_upper  skipped: too easy to teach, back next epoch
             p <  p_lower  deferred: too hard, back next epoch
             else          ready: its pilots wait in the replay buffer, max_age steps at most
             a commit joins its prompt's pilots: n_pilot + n_commit rollouts train as one group

It repeats until bt prompts are committed, the pool has nothing more to offer in this step, or max_rounds is reached;
then the step trains on the prompts that it has and says how many were missing.

docs/allocation.md tells where the published reference does otherwise, and why this does not.
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
from pipeline.allocation.types import Batch, Bucket, Fate, Group, Mark, Plan, Request, Rollouts, Stage, TrainGroup


class PilotCommit:
    """Who owns what: the pool says which prompts may be piloted, `buffer` holds the pilots of ready prompts in the
    order in which they were sampled, and the draft is the account of the step under way."""

    def __init__(
        self,
        *,
        n_prompts: int,
        batch_prompts: int,
        seed: int,
        n_pilot: int,
        n_commit: int,
        pilot_prompts: int | None,
        p_lower: float,
        p_upper: float,
        p_solve: float,
        max_age: int,
        commit_order: str,
        binding: bool,
        max_rounds: int,
        retest_rate: float = 0.0,
    ) -> None:
        given = {k: v for k, v in locals().items() if k != "self"}
        self.settings: dict[str, Any] = {"name": "pilot_commit", **given}
        self.batch_prompts, self.seed = batch_prompts, seed
        self.n_pilot, self.n_commit = n_pilot, n_commit
        self.pilot_prompts = pilot_prompts or 3 * batch_prompts
        self.p_lower, self.p_upper, self.p_solve = p_lower, p_upper, p_solve
        self.max_age, self.commit_order = max_age, commit_order
        self.binding, self.max_rounds = binding, max_rounds
        self.retest_rate = retest_rate
        self.pool = Pool(n_prompts, seed)
        self.buffer = ReplayBuffer()
        self.step = 1
        self._draft = Draft(self.step)

    @property
    def epoch(self) -> int:
        return self.pool.epoch

    @property
    def pool_is_solved(self) -> bool:
        return not self.pool.any_left(evicted_too=self.retest_rate > 0)

    @property
    def pass_rollouts(self) -> int:
        n_prompts = self.pool.n_prompts
        return min(self.batch_prompts, n_prompts) * self.n_commit + min(self.pilot_prompts, n_prompts) * self.n_pilot

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
        missing = self.batch_prompts - len(draft.groups)
        commits = self._choose(missing)
        # Pilots for the prompts that this step still misses and, bound, for the next step's batch: a full set of
        # pilots when all are missing, its share when some are ready already. Never more than one set per pass.
        wanted = missing + (self.batch_prompts if self.binding else 0) - len(self.buffer)
        share = min(1.0, max(0, wanted) / self.batch_prompts)
        wished = min(self.pool.n_retests, self.pilot_prompts)  # these wait for nothing
        n_pilots = max(math.ceil(share * self.pilot_prompts), wished)
        retests: list[int] = []
        if self.retest_rate:
            retests = self.pool.take_evicted(int(self.retest_rate * (n_pilots - wished)), self._rng())
        pilots = self.pool.take(n_pilots - len(retests)) + retests
        return Plan(
            self.step,
            draft.rounds,
            tuple(Request(p, Stage.COMMIT, self.n_commit) for p in commits)
            + tuple(Request(p, Stage.PILOT, self.n_pilot) for p in pilots),
        )

    def observe(self, groups: list[Group]) -> Batch | None:
        draft = self._draft
        commits = [g for g in groups if g.request.stage is Stage.COMMIT]
        pilots = [g for g in groups if g.request.stage is Stage.PILOT]
        if commits:
            self._commit(commits)
        if pilots:
            self._judge(pilots)
        if groups and len(draft.groups) < self.batch_prompts:
            return None
        batch = draft.finish(self.batch_prompts, buffer_size=len(self.buffer))
        self.step += 1
        self._draft = Draft(self.step)
        return batch

    def _judge(self, pilots: Sequence[Group]) -> None:
        stats = Stats.of(pilots)
        p = stats.success_rate
        # NaN where every reward failed: nothing is known, no comparison holds, and the prompt stays where it was.
        mastered, pinned = p >= self.p_solve, self.pool.pinned(stats.prompt)
        solved = mastered & ~pinned
        easy = ((p > self.p_upper) & ~mastered) | (mastered & pinned)
        hard = p < self.p_lower
        ready = (p >= self.p_lower) & (p <= self.p_upper) & ~mastered
        self._draft.book_failed(stats)
        for which, bucket, fate in (
            (solved, Bucket.EVICTED, Fate.PILOT_EVICTED),
            (easy, Bucket.SKIPPED, Fate.PILOT_SKIPPED),
            (hard, Bucket.DEFERRED, Fate.PILOT_DEFERRED),
            (ready, Bucket.READY, Fate.BUFFERED),
        ):
            self.pool.move(stats.prompt[which], bucket)
            self._draft.book_scored(stats, which, fate)
        for i in np.flatnonzero(ready):
            self.buffer[pilots[i].request.prompt] = pilots[i].rollouts.scored()
        self._draft.visit(pilots, stats, [self.pool.bucket(g.request.prompt) for g in pilots])

    def _commit(self, commits: Sequence[Group]) -> None:
        stats = Stats.of(commits)
        self._draft.book_failed(stats)
        self._draft.book_scored(stats, stats.n > stats.n_failed, Fate.TRAINED)
        for group in commits:
            prompt = group.request.prompt
            pilots = self.buffer.pop(prompt)
            self._draft.rebook(pilots, Fate.BUFFERED, Fate.TRAINED)
            self._draft.groups.append(TrainGroup(prompt, pilots + group.rollouts.scored()))
            self.pool.claim(prompt)  # once per step and batch
        self.pool.move(stats.prompt, Bucket.COMMITTED)
        self._draft.visit(commits, stats, [Bucket.COMMITTED] * len(commits))

    def _choose(self, k: int) -> list[int]:
        """The k ready prompts to commit next. The buffer is oldest first."""
        ready = list(self.buffer)
        match self.commit_order:
            case "newest":
                ready.reverse()
            case "max_variance":
                # Newest first among equals, for their pilots are the least off-policy: the sort is stable.
                ready.reverse()
                ready.sort(key=lambda p: -float(self.buffer[p].rewards.var()))
            case "random":
                ready = [ready[i] for i in self._rng().permutation(len(ready))]
        return ready[:k]

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.step, self._draft.rounds])

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
        self._draft = Draft(self.step)
        self.pool.load_state_dict(state["pool"])
        self.buffer.load(state["buffer"])
