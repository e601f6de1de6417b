"""Allocation: which prompt gets how many rollouts, what trains, what is evicted, deferred and replayed.

Plain Python and NumPy: no I/O, no torch, no clock. The words are in `types`; each method is one file.
"""

from pipeline.allocation.advantages import group_advantages
from pipeline.allocation.grpo import Grpo
from pipeline.allocation.pilot_commit import PilotCommit
from pipeline.allocation.types import (
    Allocator,
    Batch,
    Bucket,
    Fate,
    Group,
    Plan,
    Request,
    Rollout,
    Stage,
    TrainGroup,
)

__all__ = [
    "Allocator",
    "Batch",
    "Bucket",
    "Fate",
    "Group",
    "Grpo",
    "PilotCommit",
    "Plan",
    "Request",
    "Rollout",
    "Stage",
    "TrainGroup",
    "group_advantages",
]
