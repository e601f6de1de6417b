"""The prompt pool: which prompt is looked at next, and in which bucket each one stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.allocation.types import Bucket, Ints, Mark

_BUCKETS = tuple(Bucket)
_CODE = {bucket: code for code, bucket in enumerate(_BUCKETS)}
_IS_OPEN = np.array([bucket not in (Bucket.EVICTED, Bucket.READY) for bucket in _BUCKETS])
_UNSIGNED = np.uint64


class Pool:
    """Prompts 0..n-1 in a new random order every epoch, each at most once per epoch and once per training step.

    An evicted prompt is never handed out again (`take_evicted` is for re-tests); a ready one not until it leaves the
    replay buffer; a deferred one not before the epoch in which it is due, the one after it was found too hard.

    Marks go before all that: an excluded prompt is not handed out; a pinned one comes first in the step after it was
    pinned and in every epoch, unless it is ready; one that is to be tested again comes before these, once.

    The order of an epoch is a pseudo-random permutation of (seed, epoch) that is computed place by place. So neither
    the state nor the cost of a step depends on the pool's size: seven bytes a prompt are all that is kept.
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
        self._retests: dict[int, None] = {}  # wished for and not handed out yet, in order
        self._marked: set[int] = set()  # pinned or excluded
        self._pinned, self._excluded = np.zeros(n_prompts, np.bool_), np.zeros(n_prompts, np.bool_)
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

    def mark(self, prompts: Sequence[int] | Ints, mark: Mark) -> None:
        """Between steps. Marking twice changes nothing; a re-test of an excluded prompt does not either."""
        index = np.asarray(prompts, np.int64)
        if mark is Mark.RETEST:
            self._retests |= dict.fromkeys(index[~self._excluded[index]].tolist())
            return
        if mark is Mark.PIN:
            coming = {*self._postponed, *self._returned}
            self._postponed += [p for p in index[~self._pinned[index]].tolist() if p not in coming]
        self._pinned[index], self._excluded[index] = mark is Mark.PIN, mark is Mark.EXCLUDE
        self._marked = self._marked - {*index.tolist()} if mark is Mark.CLEAR else self._marked | {*index.tolist()}
        for prompt in index.tolist():
            self._retests.pop(prompt, None)

    def pinned(self, prompts: Ints) -> npt.NDArray[np.bool_]:
        """bool, one for each of these prompts."""
        return self._pinned[prompts]

    def is_withdrawn(self, prompt: int) -> bool:
        """Whether rollouts of it that wait may not train: it is excluded, or to be tested again."""
        return bool(self._excluded[prompt]) or prompt in self._retests

    @property
    def n_retests(self) -> int:
        """How many re-tests that were wished for are still to be handed out."""
        return len(self._retests)

    def any_left(self, evicted_too: bool = False) -> bool:
        """Whether any prompt may be handed out, now or in a later epoch. evicted_too: `take_evicted` is used."""
        marked = self._marked_ones()
        evicted = self._code[marked] == _CODE[Bucket.EVICTED]
        out = 0 if evicted_too else self.counts[Bucket.EVICTED] - int(evicted.sum())
        shut = self._excluded[marked] | (evicted & ~self._pinned[marked] & (not evicted_too))
        return bool(self._retests) or self.n_prompts - out - int(shut.sum()) > 0

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
        out = list(self._retests)[:k]
        for prompt in out:
            del self._retests[prompt]
        self._taken.update(out)
        self._returned = [p for p in self._returned if p not in self._taken] if out else self._returned
        while len(out) < k:
            if self._returned:
                prompt = self._returned.pop(0)
                if self._may_return(prompt):
                    self._offer(prompt, out)
                continue
            if self._position == self.n_prompts:
                if not self._any_unseen():
                    break
                self.epoch += 1
                self._order, self._position = Order(self.n_prompts, self.seed, self.epoch), 0
                self._returned = [p for p in sorted(self._marked) if self._pinned[p]]
                continue
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
        evicted = np.flatnonzero((self._code == _CODE[Bucket.EVICTED]) & ~self._excluded).tolist()
        evicted = [p for p in evicted if p not in self._taken and p not in self._retests]
        chosen = [evicted[i] for i in rng.permutation(len(evicted))[:k]]
        self._taken.update(chosen)
        return chosen

    def _is_open(self, prompts: Ints) -> npt.NDArray[np.bool_]:
        """Whether the epoch's order hands them out. Pinned ones have had their turn before it."""
        is_open: npt.NDArray[np.bool_] = _IS_OPEN[self._code[prompts]] & (self._due[prompts] <= self.epoch)
        return is_open & ~self._pinned[prompts] & ~self._excluded[prompts]

    def _may_return(self, prompt: int) -> bool:
        if self._pinned[prompt]:
            return self.bucket(prompt) is not Bucket.READY
        return bool(self._is_open(np.array([prompt]))[0])

    def _any_unseen(self) -> bool:
        """Whether a new epoch has a prompt that this step has not seen; by then every deferred one is due."""
        marked = self._marked_ones()
        n_open = self.n_prompts - self.counts[Bucket.EVICTED] - self.counts[Bucket.READY]
        n_open += int(self._is_open_later(marked).sum()) - int(_IS_OPEN[self._code[marked]].sum())
        taken = np.fromiter(self._taken, np.int64, len(self._taken))
        return n_open > int(self._is_open_later(taken).sum())

    def _is_open_later(self, prompts: Ints) -> npt.NDArray[np.bool_]:
        """Whether a new epoch hands them out."""
        code = self._code[prompts]
        kept: npt.NDArray[np.bool_] = _IS_OPEN[code] | (self._pinned[prompts] & (code == _CODE[Bucket.EVICTED]))
        return kept & ~self._excluded[prompts]

    def _marked_ones(self) -> Ints:
        return np.fromiter(self._marked, np.int64, len(self._marked))

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
            "retests": list(self._retests),
            "pinned": np.flatnonzero(self._pinned).astype(np.uint32),
            "excluded": np.flatnonzero(self._excluded).astype(np.uint32),
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
        self._retests = {int(p): None for p in state.get("retests", [])}  # older checkpoints know no marks
        self._pinned[:] = self._excluded[:] = False
        self._pinned[state.get("pinned", [])] = self._excluded[state.get("excluded", [])] = True
        self._marked = set(np.flatnonzero(self._pinned | self._excluded).tolist())
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
