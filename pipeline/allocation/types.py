"""The words of allocation. Everything else in this folder is written in terms of these.

- A **prompt** is named here by its index into the run's pool. The pool's order is fixed by the prompts' content
  ids, so an index means the same prompt in every process that holds the same prompt set; the fingerprint of the
  pool is part of every saved state.
- A **rollout** is one sampled response. A **group** is one prompt's rollouts of one stage in one step.
- The **success rate** p of a group is the mean of `success` over the rollouts whose reward did not fail.

Shape suffixes: N rollouts of a group, G groups.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Stage(enum.StrEnum):
    PILOT = "pilot"
    COMMIT = "commit"


class Bucket(enum.StrEnum):
    """Where a prompt stands. A prompt is in exactly one bucket."""

    UNSEEN = "unseen"  # not judged yet, or what was sampled grew too old before it could train
    EVICTED = "evicted"  # solved, p >= p_solve: out of the pool
    SKIPPED = "skipped"  # too easy but not solved, p > p_upper: back next epoch
    DEFERRED = "deferred"  # too hard, p < p_lower: back next epoch
    READY = "ready"  # its rollouts wait in the replay buffer
    COMMITTED = "committed"  # trained on


class Mark(enum.StrEnum):
    """What a person wishes for a prompt. Each takes the place of the prompt's mark before, but for a re-test, which
    leaves a pin as it is."""

    PIN = "pin"  # first in every epoch and in the next step; skipped where it would be evicted
    EXCLUDE = "exclude"  # never handed out; what waits of it is discarded
    CLEAR = "clear"  # neither, and no re-test that is still to come
    RETEST = "retest"  # once: handed out first in the next step, whatever its bucket, and judged as usual


class Fate(enum.StrEnum):
    """What became of a sampled rollout. The fates of a run add up to what it sampled."""

    BUFFERED = "buffered"  # open: waits in the replay buffer; it gets a final fate later
    TRAINED = "trained"
    PILOT_SKIPPED = "pilot_skipped"
    PILOT_DEFERRED = "pilot_deferred"
    PILOT_EVICTED = "pilot_evicted"
    DOWNSAMPLED = "downsampled"  # left out by a selection such as PODS
    STALE = "stale"  # buffered for longer than max_age
    DISCARDED = "discarded"  # sampled and thrown away: DAPO's filtered and surplus groups, and what a mark took back
    FAILED = "failed"  # its reward could not be computed
    LOST = "lost"  # sampled after the last checkpoint of an attempt that crashed: sampled again


@dataclass(frozen=True, slots=True, eq=False)
class Rollouts:
    """N sampled responses of one prompt, as columns.

    rewards: float64 [N], what advantages are computed from. success: float64 [N], the accuracy signal in [0, 1] that
    judges the prompt. Both are NaN where the reward failed. n_tokens: int64 [N], response tokens, the end-of-sequence
    token included. steps: int64 [N], the training step whose policy sampled it. data: [N], the engine's own (token ids
    and log-probs, or keys into its store); opaque here, kept in checkpoints.
    """

    rewards: Floats
    success: Floats
    n_tokens: Ints
    steps: Ints
    data: Sequence[Any]

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def failed(self) -> npt.NDArray[np.bool_]:
        """bool [N]: the reward or the accuracy signal could not be computed."""
        failed: npt.NDArray[np.bool_] = np.isnan(self.rewards) | np.isnan(self.success)
        return failed

    def take(self, index: npt.NDArray[np.intp]) -> Rollouts:
        return Rollouts(
            self.rewards[index],
            self.success[index],
            self.n_tokens[index],
            self.steps[index],
            [self.data[i] for i in index],
        )

    def scored(self) -> Rollouts:
        """Those whose reward did not fail."""
        failed = self.failed
        return self.take(np.flatnonzero(~failed)) if failed.any() else self

    def __add__(self, other: Rollouts) -> Rollouts:
        return Rollouts(
            np.concatenate((self.rewards, other.rewards)),
            np.concatenate((self.success, other.success)),
            np.concatenate((self.n_tokens, other.n_tokens)),
            np.concatenate((self.steps, other.steps)),
            [*self.data, *other.data],
        )


@dataclass(frozen=True, slots=True)
class Request:
    """Sample `n` rollouts of one prompt."""

    prompt: int
    stage: Stage
    n: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The rollouts of one inference pass. Pilot and commit requests together are the paper's binding.

    step, round: which training step, and which pass of it, both from 1. requests is empty when nothing is left to
    sample for this step; observing it then ends the step with the prompts that were found.
    """

    step: int
    round: int
    requests: tuple[Request, ...]

    @property
    def n_rollouts(self) -> int:
        return sum(r.n for r in self.requests)


@dataclass(frozen=True, slots=True)
class Group:
    """The answer to one Request: request.n rollouts, failed ones included."""

    request: Request
    rollouts: Rollouts


@dataclass(frozen=True, slots=True, eq=False)
class TrainGroup:
    """One prompt's rollouts for the update, none failed: its commits and, from maybe earlier steps, its pilots.

    advantages: float64 [N], of each rollout; empty until `selection.prepare` has filled them in.
    """

    prompt: int
    rollouts: Rollouts
    advantages: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True, slots=True)
class Visit:
    """One group as judged: what the per-prompt history records.

    n counts all rollouts of the group, n_failed those without a reward; success_rate and reward_variance
    (population variance of the rewards) are over the others and None when there are none. bucket is where the
    prompt stands after the visit. tokens is the sum of response tokens.
    """

    prompt: int
    stage: Stage
    n: int
    n_failed: int
    success_rate: float | None
    reward_variance: float | None
    tokens: int
    bucket: Bucket


@dataclass(frozen=True, slots=True)
class Move:
    """A prompt that changed its bucket without a visit: its rollouts grew stale, were taken back by a mark, or were
    trained on from the buffer."""

    prompt: int
    bucket: Bucket


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What one training step trains on, and the full account of how it came about.

    fates: change of every fate in this step as (rollouts, tokens); `buffered` may be negative. They sum to what
        the step sampled.
    short_by: prompts missing to a full batch (the pool ran dry or max_rounds was reached); 0 normally.
    buffer_size: ready prompts left for later steps.
    """

    step: int
    groups: tuple[TrainGroup, ...]
    visits: tuple[Visit, ...] = ()
    moves: tuple[Move, ...] = ()
    fates: dict[Fate, tuple[int, int]] = field(default_factory=dict)
    rounds: int = 0
    short_by: int = 0
    buffer_size: int = 0

    @property
    def ages(self) -> list[int]:
        """Per trained group, the steps since its oldest rollout was sampled."""
        return [self.step - int(group.rollouts.steps.min()) for group in self.groups]


class Allocator(Protocol):
    """A method of spending rollouts. One training step is plan/observe until observe returns a Batch.

    `plan(limit)` never asks for more than `limit` rollouts (None = unbounded): a pass that would, is not planned,
    and the step ends with the prompts that it has. `observe` takes exactly the groups that were planned, in order.
    """

    @property
    def step(self) -> int:
        """The step being planned, counted from 1; it advances when observe returns a Batch."""
        ...

    @property
    def epoch(self) -> int: ...

    @property
    def pool_is_solved(self) -> bool:
        """True when every prompt is evicted or excluded: no further step could train on anything."""
        ...

    @property
    def pass_rollouts(self) -> int:
        """The most rollouts that one inference pass asks for: a budget with less left starts no further step."""
        ...

    @property
    def waiting(self) -> Iterable[Rollouts]:
        """Rollouts that a later step may train on: the replay buffer."""
        ...

    def mark(self, prompts: Sequence[int], mark: Mark) -> None:
        """Between steps: how these prompts are treated from the next step on. Doing it twice changes nothing."""
        ...

    def plan(self, limit: int | None = None) -> Plan: ...

    def observe(self, groups: list[Group]) -> Batch | None: ...

    def bucket_counts(self) -> dict[Bucket, int]: ...

    def state_dict(self) -> dict[str, Any]:
        """Everything, as plain values and NumPy vectors. Between steps only."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError naming the settings that differ from those under which the state was saved."""
        ...
