"""The prompt pool: which prompt is looked at next, and in which bucket each one stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.allocation.types import Bucket

_BUCKETS = tuple(Bucket)
_CODE = {bucket: code for code, bucket in enumerate(_BUCKETS)}


class Pool:
    """Prompts 0..n-1 in a new random order every epoch, each at most once per epoch and once per training step.

    The order of an epoch depends on (seed, epoch) only, so the state needs no random generator. An evicted prompt is
    never handed out again; a ready one not until it leaves the replay buffer; a deferred one is due again in the
    next epoch, because this epoch has passed it.
    """

    def __init__(self, n_prompts: int, seed: int) -> None:
        if n_prompts < 1:
            raise ValueError("a prompt pool needs at least one prompt")
        self.n_prompts = n_prompts
        self.seed = seed
        self.epoch = 1
        self._position = 0
        self._order = self._permutation()
        self._returned: list[int] = []  # to be handed out before the epoch's order goes on
        self._postponed: list[int] = []  # the same, from the next step on
        self._taken: set[int] = set()  # in this training step
        self._code = np.zeros(n_prompts, np.uint8)
        self.counts = dict.fromkeys(Bucket, 0) | {Bucket.UNSEEN: n_prompts}

    def _permutation(self) -> npt.NDArray[np.int64]:
        return np.random.default_rng([self.seed, self.epoch]).permutation(self.n_prompts)

    def bucket(self, prompt: int) -> Bucket:
        return _BUCKETS[int(self._code[prompt])]

    def move(self, prompt: int, bucket: Bucket) -> None:
        self.counts[self.bucket(prompt)] -= 1
        self.counts[bucket] += 1
        self._code[prompt] = _CODE[bucket]

    def begin_step(self) -> None:
        self._taken.clear()
        self._returned = self._postponed + self._returned
        self._postponed = []

    def claim(self, prompt: int) -> None:
        """Keep `take` from handing this prompt out for the rest of the step."""
        self._taken.add(prompt)

    def give_back(self, prompt: int) -> None:
        """Hand this prompt out again, before the others, from the next step on."""
        self._postponed.append(prompt)

    def take(self, k: int) -> list[int]:
        """Up to k prompts; fewer only when every prompt that may be looked at was handed out in this step already.

        An epoch may end on the way. A prompt of the new epoch that this step has seen already keeps its turn: it
        comes first in the next step.
        """
        out: list[int] = []
        while self._returned and len(out) < k:
            self._offer(self._returned.pop(0), out)
        while len(out) < k:
            if self._position == self.n_prompts:
                if not self._any_left():
                    break
                self.epoch += 1
                self._order, self._position = self._permutation(), 0
            self._offer(int(self._order[self._position]), out)
            self._position += 1
        return out

    def _open(self, prompt: int) -> bool:
        return self.bucket(prompt) not in (Bucket.EVICTED, Bucket.READY)

    def _any_left(self) -> bool:
        n_open = self.n_prompts - self.counts[Bucket.EVICTED] - self.counts[Bucket.READY]
        return n_open > sum(self._open(p) for p in self._taken)

    def _offer(self, prompt: int, out: list[int]) -> None:
        if not self._open(prompt):
            return
        if prompt in self._taken:
            self._postponed.append(prompt)
        else:
            self._taken.add(prompt)
            out.append(prompt)

    def state_dict(self) -> dict[str, Any]:
        """Between steps only. 5 bytes per prompt that has left `unseen`."""
        touched = np.flatnonzero(self._code)
        return {
            "n_prompts": self.n_prompts,
            "seed": self.seed,
            "epoch": self.epoch,
            "position": self._position,
            "returned": list(self._returned),
            "postponed": list(self._postponed),
            "touched": touched.astype(np.uint32),
            "buckets": self._code[touched],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = self._permutation()
        self._returned = [int(p) for p in state["returned"]]
        self._postponed = [int(p) for p in state["postponed"]]
        self._taken.clear()
        self._code[:] = 0
        self._code[state["touched"]] = state["buckets"]
        tally = np.bincount(self._code, minlength=len(_BUCKETS))
        self.counts = {bucket: int(tally[code]) for bucket, code in _CODE.items()}
