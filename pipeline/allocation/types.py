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
    """A prompt that changed its bucket without a visit: its pilots grew stale."""

    prompt: int
    bucket: Bucket


@dataclass(slots=True)
class Batch:
    """What one training step trains on, and the full account of how it came about.

    fates: change of every fate in this step as (rollouts, tokens); `buffered` may be negative. They sum to what
        the step sampled.
    buffer_size: ready prompts left for later steps.
    short_by: prompts missing to a full batch (the pool ran dry or max_rounds was reached); 0 normally.
    """

    step: int
    groups: tuple[TrainGroup, ...]
    visits: list[Visit] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    fates: dict[Fate, tuple[int, int]] = field(default_factory=dict)
    rounds: int = 0
    short_by: int = 0
    buffer_size: int = 0

    @property
    def ages(self) -> list[int]:
        """Per trained group, the steps since its oldest rollout was sampled."""
        return [self.step - min(r.step for r in group.rollouts) for group in self.groups]


class Allocator(Protocol):
    """A method of spending rollouts. One training step is plan/observe until observe returns a Batch.

    `plan(limit)` never asks for more than `limit` rollouts (None = unbounded): a pass that would, is not planned,
    and the step ends with the prompts that it has. `observe` takes exactly the groups that were planned, in order.
    """

    @property
    def step(self) -> int:
        """The step being planned, counted from 1; it advances when observe returns a Batch."""
        ...

    def plan(self, limit: int | None = None) -> Plan: ...

    def observe(self, groups: list[Group]) -> Batch | None: ...

    @property
    def epoch(self) -> int: ...

    @property
    def pool_is_solved(self) -> bool:
        """True when every prompt is evicted: no further step could train on anything."""
        ...

    @property
    def pass_rollouts(self) -> int:
        """The most rollouts that one inference pass asks for: a budget with less left starts no further step."""
        ...

    def bucket_counts(self) -> dict[Bucket, int]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
