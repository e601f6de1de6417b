"""The replay buffer: rollouts of ready prompts, oldest first, for `max_age` steps at most."""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.allocation.draft import Draft
from pipeline.allocation.pool import Pool
from pipeline.allocation.types import Bucket, Fate, Move, Rollouts


class ReplayBuffer(dict[int, Rollouts]):
    """prompt -> its waiting rollouts, all of one step. dicts keep insertion order: the oldest come first."""

    def drop_stale(self, step: int, max_age: int, pool: Pool, draft: Draft) -> None:
        """Age is the step now minus the step of sampling, at the time of training: age <= max_age, exactly.

        A prompt whose rollouts are dropped is `unseen` again and the first to be looked at.
        """
        for prompt, rollouts in list(self.items()):
            if step - int(rollouts.steps[0]) <= max_age:
                break  # the others are younger
            del self[prompt]
            pool.move([prompt], Bucket.UNSEEN)
            pool.give_back(prompt)
            draft.rebook(rollouts, Fate.BUFFERED, Fate.STALE)
            draft.moves.append(Move(prompt, Bucket.UNSEEN))

    def drop_marked(self, pool: Pool, draft: Draft) -> None:
        """An excluded prompt may not train, and one that is to be tested again gets new rollouts in place of these.

        It is `unseen` again.
        """
        for prompt in [p for p in self if pool.is_withdrawn(p)]:
            rollouts = self.pop(prompt)
            pool.move([prompt], Bucket.UNSEEN)
            draft.rebook(rollouts, Fate.BUFFERED, Fate.DISCARDED)
            draft.moves.append(Move(prompt, Bucket.UNSEEN))

    def state(self) -> list[dict[str, Any]]:
        return [
            {
                "prompt": prompt,
                "rewards": rollouts.rewards,
                "success": rollouts.success,
                "n_tokens": rollouts.n_tokens.astype(np.int32),
                "step": int(rollouts.steps[0]),
                "data": list(rollouts.data),
            }
            for prompt, rollouts in self.items()
        ]

    def load(self, state: list[dict[str, Any]]) -> None:
        self.clear()
        for entry in state:
            self[int(entry["prompt"])] = Rollouts(
                np.asarray(entry["rewards"], np.float64),
                np.asarray(entry["success"], np.float64),
                np.asarray(entry["n_tokens"], np.int64),
                np.full(len(entry["rewards"]), int(entry["step"])),
                entry["data"],
            )
