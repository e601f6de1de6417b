"""Allocation: which prompt gets how many rollouts, what trains, what is evicted, deferred and replayed.

Plain Python and NumPy: no I/O, no torch, no clock. The words are in `types`; each method is one file, and
`selection` is what any method can carry.
"""

from pipeline.allocation.advantages import group_advantages
from pipeline.allocation.dapo import Dapo
from pipeline.allocation.grpo import Grpo
from pipeline.allocation.pilot_commit import PilotCommit
from pipeline.allocation.selection import choose, prepare
from pipeline.allocation.types import (
    Allocator,
    Batch,
    Bucket,
    Fate,
    Group,
    Mark,
    Plan,
    Request,
    Rollouts,
    Stage,
    TrainGroup,
)

__all__ = [
    "Allocator",
    "Batch",
    "Bucket",
    "Dapo",
    "Fate",
    "Group",
    "Grpo",
    "Mark",
    "PilotCommit",
    "Plan",
    "Request",
    "Rollouts",
    "Stage",
    "TrainGroup",
    "choose",
    "group_advantages",
    "prepare",
]
