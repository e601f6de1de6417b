"""Pilot-Commit (arXiv 2605.26606): a few pilot rollouts judge a prompt; the rest of the budget goes where they differ.

A training step, with `bt` prompts to train on:

    plan     commit up to bt ready prompts (n_commit rollouts each), and pilot new ones (n_pilot each) in the same
             inference pass: the paper's binding of this step's commits with the next step's pilots
    observe  p = success rate of a prompt's pilots
             p >= p_solve  evicted: solved, never sampled again
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
from typing import Any

import numpy as np

from pipeline.allocation.draft import Draft, success_rate
from pipeline.allocation.pool import Pool
from pipeline.allocation.settings import refuse_other_settings
from pipeline.allocation.types import (
    Batch,
    Bucket,
    Fate,
    Group,
    Move,
    Plan,
    Request,
    Rollout,
    Stage,
    TrainGroup,
)


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
    ) -> None:
        given = {k: v for k, v in locals().items() if k != "self"}
        self.settings: dict[str, Any] = {"name": "pilot_commit", **given}
        self.batch_prompts, self.seed = batch_prompts, seed
        self.n_pilot, self.n_commit = n_pilot, n_commit
        self.pilot_prompts = pilot_prompts or 3 * batch_prompts
        self.p_lower, self.p_upper, self.p_solve = p_lower, p_upper, p_solve
        self.max_age, self.commit_order = max_age, commit_order
        self.binding, self.max_rounds = binding, max_rounds
        self.pool = Pool(n_prompts, seed)
        self.buffer: dict[int, tuple[Rollout, ...]] = {}
        self.step = 1
        self._draft = Draft(self.step)

    @property
    def epoch(self) -> int:
        return self.pool.epoch

    @property
    def pool_is_solved(self) -> bool:
        return self.pool.counts[Bucket.EVICTED] == self.pool.n_prompts

    @property
    def pass_rollouts(self) -> int:
        n_prompts = self.pool.n_prompts
        return min(self.batch_prompts, n_prompts) * self.n_commit + min(self.pilot_prompts, n_prompts) * self.n_pilot

    def plan(self, limit: int | None = None) -> Plan:
        draft = self._draft
        draft.rounds += 1
        if draft.rounds == 1:
            self._drop_stale()
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
        pilots = self.pool.take(math.ceil(share * self.pilot_prompts))
        return Plan(
            self.step,
            draft.rounds,
            tuple(Request(p, Stage.COMMIT, self.n_commit) for p in commits)
            + tuple(Request(p, Stage.PILOT, self.n_pilot) for p in pilots),
        )

    def observe(self, groups: list[Group]) -> Batch | None:
        draft = self._draft
        for group in groups:
            scored = tuple(r for r in group.rollouts if not r.failed)
            draft.book((r for r in group.rollouts if r.failed), Fate.FAILED)
            if group.request.stage is Stage.PILOT:
                self._judge(group, scored)
            else:
                self._commit(group, scored)
        if groups and len(draft.groups) < self.batch_prompts:
            return None
        batch = draft.finish(self.batch_prompts, buffer_size=len(self.buffer))
        self.step += 1
        self._draft = Draft(self.step)
        return batch

    def _judge(self, group: Group, pilots: tuple[Rollout, ...]) -> None:
        prompt = group.request.prompt
        p = success_rate(list(pilots))
        if p is None:  # every reward failed: nothing is known, so the prompt stays where it was
            self._draft.visit(group, self.pool.bucket(prompt))
            return
        if p >= self.p_solve:
            bucket, fate = Bucket.EVICTED, Fate.PILOT_EVICTED
        elif p > self.p_upper:
            bucket, fate = Bucket.SKIPPED, Fate.PILOT_SKIPPED
        elif p < self.p_lower:
            bucket, fate = Bucket.DEFERRED, Fate.PILOT_DEFERRED
        else:
            bucket, fate = Bucket.READY, Fate.BUFFERED
            self.buffer[prompt] = pilots
        self.pool.move(prompt, bucket)
        self._draft.book(pilots, fate)
        self._draft.visit(group, bucket)

    def _commit(self, group: Group, commits: tuple[Rollout, ...]) -> None:
        prompt = group.request.prompt
        pilots = self.buffer.pop(prompt)
        self.pool.claim(prompt)  # once per step and batch
        self.pool.move(prompt, Bucket.COMMITTED)
        self._draft.rebook(pilots, Fate.BUFFERED, Fate.TRAINED)
        self._draft.book(commits, Fate.TRAINED)
        self._draft.groups.append(TrainGroup(prompt, pilots + commits))
        self._draft.visit(group, Bucket.COMMITTED)

    def _drop_stale(self) -> None:
        """Age is the current step minus the step of sampling, at the time of training: age <= max_age, exactly."""
        for prompt, pilots in list(self.buffer.items()):
            if self.step - pilots[0].step > self.max_age:
                del self.buffer[prompt]
                self.pool.move(prompt, Bucket.UNSEEN)
                self.pool.give_back(prompt)
                self._draft.rebook(pilots, Fate.BUFFERED, Fate.STALE)
                self._draft.moves.append(Move(prompt, Bucket.UNSEEN))

    def _choose(self, k: int) -> list[int]:
        """The k ready prompts to commit next. dicts keep insertion order: the buffer is oldest first."""
        ready = list(self.buffer)
        match self.commit_order:
            case "newest":
                ready.reverse()
            case "max_variance":
                # Newest first among equals, for their pilots are the least off-policy: the sort is stable.
                ready.reverse()
                ready.sort(key=lambda p: -np.var([r.reward for r in self.buffer[p]]))
            case "random":
                rng = np.random.default_rng([self.seed, self.step, self._draft.rounds])
                ready = [ready[i] for i in rng.permutation(len(ready))]
        return ready[:k]

    def bucket_counts(self) -> dict[Bucket, int]:
        return dict(self.pool.counts)

    def state_dict(self) -> dict[str, Any]:
        """Between steps only: after observe returned a Batch and before the next plan."""
        if self._draft.rounds:
            raise RuntimeError("the state can only be saved between training steps")
        buffer = [
            {
                "prompt": prompt,
                "reward": np.array([r.reward for r in pilots]),
                "success": np.array([r.success for r in pilots]),
                "n_tokens": np.array([r.n_tokens for r in pilots], np.int32),
                "step": pilots[0].step,
                "data": [r.data for r in pilots],
            }
            for prompt, pilots in self.buffer.items()
        ]
        return {
            "settings": self.settings,
            "step": self.step,
            "pool": self.pool.state_dict(),
            "buffer": buffer,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError naming the settings that differ from those under which the state was saved."""
        refuse_other_settings(self.settings, state["settings"])
        self.step = int(state["step"])
        self._draft = Draft(self.step)
        self.pool.load_state_dict(state["pool"])
        self.buffer = {
            int(entry["prompt"]): tuple(
                Rollout(float(reward), float(success), int(n_tokens), int(entry["step"]), data)
                for reward, success, n_tokens, data in zip(
                    entry["reward"], entry["success"], entry["n_tokens"], entry["data"], strict=True
                )
            )
            for entry in state["buffer"]
        }
