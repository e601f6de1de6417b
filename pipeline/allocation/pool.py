"""The prompt pool: which prompt is looked at next, and in which bucket each one stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.allocation.types import Bucket, Ints

_BUCKETS = tuple(Bucket)
_CODE = {bucket: code for code, bucket in enumerate(_BUCKETS)}
_IS_OPEN = np.array([bucket not in (Bucket.EVICTED, Bucket.READY) for bucket in _BUCKETS])
_UNSIGNED = np.uint64


class Pool:
    """Prompts 0..n-1 in a new random order every epoch, each at most once per epoch and once per training step.

    An evicted prompt is never handed out again (`take_evicted` is for re-tests); a ready one not until it leaves the
    replay buffer; a deferred one not before the epoch in which it is due, the one after it was found too hard.

    The order of an epoch is a pseudo-random permutation of (seed, epoch) that is computed place by place. So neither
    the state nor the cost of a step depends on the pool's size: five bytes a prompt are all that is kept.
    """

    def __init__(self, n_prompts: int, seed: int) -> None:
        if n_prompts < 1:
            raise ValueError("a prompt pool needs at least one prompt")
        self.n_prompts = n_prompts
        self.seed = seed
        self.epoch = 1
        self._position = 0
        self._order = Order(n_prompts, seed, self.epoch)
        self._returned: list[int] = []  # to be handed out before the epoch's order goes on
        self._postponed: list[int] = []  # the same, from the next step on
        self._taken: set[int] = set()  # in this training step
        self._code = np.zeros(n_prompts, np.uint8)
        self._due = np.zeros(n_prompts, np.int32)  # first epoch in which a deferred prompt may be looked at again
        self.counts = dict.fromkeys(Bucket, 0) | {Bucket.UNSEEN: n_prompts}

    def bucket(self, prompt: int) -> Bucket:
        return _BUCKETS[int(self._code[prompt])]

    def due_epoch(self, prompt: int) -> int:
        """The first epoch in which a deferred prompt may be looked at again."""
        return int(self._due[prompt])

    def move(self, prompts: Sequence[int] | Ints, bucket: Bucket) -> None:
        """Put these (distinct) prompts into a bucket."""
        if len(prompts) == 0:
            return
        index = np.asarray(prompts)
        before = np.bincount(self._code[index], minlength=len(_BUCKETS))
        for code in np.flatnonzero(before):
            self.counts[_BUCKETS[code]] -= int(before[code])
        self.counts[bucket] += len(index)
        self._code[index] = _CODE[bucket]
        self._due[index] = self.epoch + 1 if bucket is Bucket.DEFERRED else 0

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
            prompt = self._returned.pop(0)
            if self._is_open(np.array([prompt]))[0]:
                self._offer(prompt, out)
        while len(out) < k:
            if self._position == self.n_prompts:
                if not self._any_left():
                    break
                self.epoch += 1
                self._order, self._position = Order(self.n_prompts, self.seed, self.epoch), 0
            # A window at a time: in a pool that is mostly evicted most of its prompts are passed over at once.
            end = min(self.n_prompts, self._position + max(512, 2 * (k - len(out))))
            prompts = self._order.at(self._position, end)
            for place in np.flatnonzero(self._is_open(prompts)):
                self._offer(int(prompts[place]), out)
                if len(out) == k:
                    end = self._position + int(place) + 1
                    break
            self._position = end
        return out

    def take_evicted(self, k: int, rng: np.random.Generator) -> list[int]:
        """Up to k evicted prompts that this step has not handed out yet, at random."""
        evicted = [p for p in np.flatnonzero(self._code == _CODE[Bucket.EVICTED]).tolist() if p not in self._taken]
        chosen = [evicted[i] for i in rng.permutation(len(evicted))[:k]]
        self._taken.update(chosen)
        return chosen

    def _is_open(self, prompts: Ints) -> npt.NDArray[np.bool_]:
        is_open: npt.NDArray[np.bool_] = _IS_OPEN[self._code[prompts]] & (self._due[prompts] <= self.epoch)
        return is_open

    def _any_left(self) -> bool:
        """Whether a new epoch has a prompt that this step has not seen; by then every deferred one is due."""
        n_open = self.n_prompts - self.counts[Bucket.EVICTED] - self.counts[Bucket.READY]
        taken = np.fromiter(self._taken, np.int64, len(self._taken))
        return n_open > int(_IS_OPEN[self._code[taken]].sum())

    def _offer(self, prompt: int, out: list[int]) -> None:
        if prompt in self._taken:
            self._postponed.append(prompt)
        else:
            self._taken.add(prompt)
            out.append(prompt)

    def state_dict(self) -> dict[str, Any]:
        """Between steps only. 9 bytes per prompt that has left `unseen`."""
        touched = np.flatnonzero(self._code)
        return {
            "epoch": self.epoch,
            "position": self._position,
            "returned": list(self._returned),
            "postponed": list(self._postponed),
            "touched": touched.astype(np.uint32),
            "buckets": self._code[touched],
            "due": self._due[touched],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self._position = int(state["epoch"]), int(state["position"])
        self._order = Order(self.n_prompts, self.seed, self.epoch)
        self._returned = [int(p) for p in state["returned"]]
        self._postponed = [int(p) for p in state["postponed"]]
        self._taken.clear()
        self._code[:] = 0
        self._code[state["touched"]] = state["buckets"]
        self._due[:] = 0
        self._due[state["touched"]] = state["due"]
        tally = np.bincount(self._code, minlength=len(_BUCKETS))
        self.counts = {bucket: int(tally[code]) for bucket, code in _CODE.items()}


class Order:
    """A pseudo-random permutation of 0..n-1 whose places are computed when they are asked for.

    A balanced Feistel network over the next power of four, with keys from (seed, epoch); values beyond n - 1 are put
    through it again until they fall below ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite Domains,
    2002), four times on average at most.
    """

    ROUNDS = 6

    def __init__(self, n: int, seed: int, epoch: int) -> None:
        self.n = n
        self._half = _UNSIGNED(max(1, ((n - 1).bit_length() + 1) // 2))
        self._mask = (_UNSIGNED(1) << self._half) - _UNSIGNED(1)
        self._keys = np.random.SeedSequence([seed, epoch]).generate_state(self.ROUNDS, np.uint64)

    def at(self, start: int, end: int) -> Ints:
        """The prompts at places start..end-1, int64."""
        values = self._mix(np.arange(start, end, dtype=np.uint64))
        while (outside := np.flatnonzero(values >= self.n)).size:
            values[outside] = self._mix(values[outside])
        return values.astype(np.int64)

    def _mix(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            # Multiplication and shift as in splitmix64: every bit of `right` reaches the low bits.
            mixed = (right + key) * _UNSIGNED(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> _UNSIGNED(29))) * _UNSIGNED(0xBF58476D1CE4E5B9)
            left, right = right, left ^ ((mixed >> _UNSIGNED(32)) & self._mask)
        return (left << self._half) | right
