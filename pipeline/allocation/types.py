"""The words of allocation. Everything else in this folder is written in terms of these.

- A **prompt** is named here by its index into the run's pool. The pool's order is fixed by the prompts' content
  ids, so an index means the same prompt in every process that holds the same prompt set; the fingerprint of the
  pool is part of every saved state.
- A **rollout** is one sampled response. A **group** is one prompt's rollouts of one stage in one step.
- The **success rate** p of a group is the mean of `success` over the rollouts whose reward did not fail.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from typing import Any, Protocol


class Stage(enum.StrEnum):
    PILOT = "pilot"
    COMMIT = "commit"


class Bucket(enum.StrEnum):
    """Where a prompt stands. A prompt is in exactly one bucket."""

    UNSEEN = "unseen"  # not piloted yet, or its pilot grew too old before it could be committed
    EVICTED = "evicted"  # solved, p >= p_solve: out of the pool
    SKIPPED = "skipped"  # too easy but not solved, p > p_upper: back next epoch
    DEFERRED = "deferred"  # too hard, p < p_lower: back next epoch
    READY = "ready"  # its pilots wait in the replay buffer
    COMMITTED = "committed"  # trained on


class Fate(enum.StrEnum):
    """What became of a sampled rollout. The fates of a run add up to what it sampled."""

    BUFFERED = "buffered"  # open: a pilot in the replay buffer; it gets a final fate later
    TRAINED = "trained"
    PILOT_SKIPPED = "pilot_skipped"
    PILOT_DEFERRED = "pilot_deferred"
    PILOT_EVICTED = "pilot_evicted"
    DOWNSAMPLED = "downsampled"
    STALE = "stale"  # a buffered pilot older than max_age
    DISCARDED = "discarded"
    FAILED = "failed"  # its reward could not be computed
    LOST = "lost"  # sampled after the last checkpoint of an attempt that crashed: sampled again


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled response as allocation sees it.

    reward: what the advantage is computed from; NaN when the reward failed.
    success: the accuracy signal in [0, 1] that judges the prompt; NaN when the reward failed.
    n_tokens: response tokens, end-of-sequence token included.
    step: the training step whose policy sampled it.
    data: the engine's own (token ids and log-probs, or a key into its store); opaque here, kept in checkpoints.
    """

    reward: float
    success: float
    n_tokens: int
    step: int
    data: Any = None

    @property
    def failed(self) -> bool:
        return math.isnan(self.reward) or math.isnan(self.success)


@dataclass(frozen=True, slots=True)
class Request:
    """Sample `n` rollouts of one prompt."""

    prompt: int
    stage: Stage
    n: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The rollouts of one inference pass. Pilot and commit requests together are the paper's binding."""

    step: int
    requests: tuple[Request, ...]

    @property
    def n_rollouts(self) -> int:
        return sum(r.n for r in self.requests)


@dataclass(frozen=True, slots=True)
class Group:
    """The answer to one Request: `rollouts` holds request.n of them, failed ones included."""

    request: Request
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class TrainGroup:
    """One prompt's rollouts for the update: its pilots (maybe of earlier steps) and its commits, none failed."""

    prompt: int
    rollouts: tuple[Rollout, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """One group as judged: what the per-prompt history records.

    n counts all rollouts of the group, n_failed those without a reward; success_rate and reward_variance
    (population variance of `reward`) are over the others and None when there are none. bucket is where the
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
    """A prompt that changed its bucket without a visit (its pilots grew stale, or an epoch began)."""

    prompt: int
    bucket: Bucket


@dataclass(slots=True)
class Batch:
    """What one training step trains on, and the full account of how it came about.

    fates: change of every fate's (rollouts, tokens) in this step; `buffered` may be negative. They sum to what
        the step sampled.
    short_by: prompts missing to a full batch (the pool ran dry or max_rounds was reached); 0 normally.
    """

    step: int
    groups: tuple[TrainGroup, ...]
    visits: list[Visit] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    fates: dict[Fate, tuple[int, int]] = field(default_factory=dict)
    rounds: int = 0
    short_by: int = 0


class Allocator(Protocol):
    """A method of spending rollouts. One training step is plan/observe until observe returns a Batch."""

    @property
    def step(self) -> int:
        """The step being planned, counted from 1; it advances when observe returns a Batch."""
        ...

    def plan(self) -> Plan: ...

    def observe(self, groups: list[Group]) -> Batch | None: ...

    def most_rollouts(self) -> int:
        """Upper bound of the rollouts that the coming step can sample: budgets are checked against it."""
        ...

    def bucket_counts(self) -> dict[Bucket, int]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
