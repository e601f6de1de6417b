"""Loaded by every process that imports verl (VERL_USE_EXTERNAL_MODULES names it), through verl's own registries.

Trainer and vLLM hand weights over on a Unix socket that verl names by the Ray job's number. Every private Ray counts
its jobs from 1, so two runs on one machine would take each other's weights: `vllm.py` names the socket by the run's
own Ray as well. In CPU mode `cpu.py` makes the CPU a platform of verl's.
"""

from __future__ import annotations

import os

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

if os.environ.get("VERL_PLATFORM") == "cpu":
    from pipeline.engines.verl import cpu

    cpu.enable()


def _replica() -> type:
    from pipeline.engines.verl.vllm import Replica  # vLLM takes seconds to import: only where a server is started

    return Replica


RolloutReplicaRegistry.register("vllm", _replica)
_ROLLOUT_REGISTRY["vllm", "async"] = "pipeline.engines.verl.vllm.Adapter"
