"""CPU mode: the CPU as one of verl's platforms, so that the whole engine can be tested without a GPU.

verl knows devices by `PlatformBase`, and lets others register platforms; this is one, chosen by VERL_PLATFORM=cpu.
Ray is told of one GPU that does not exist, because verl places its workers on GPUs. vLLM's part is in vllm.py.
Two places of verl take a platform other than a GPU's for granted to be impossible, and are met here:

- its training engine for FSDP is registered for "cuda" and "npu" only; VERL_ENGINE_DEVICE=cuda, verl's own switch for
  tests, chooses it (set by start.py);
- it asks torch for the process group "cpu:gloo,<device>:<backend>", which names the device twice here: `enable` puts
  "cpu:gloo" instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import psutil
import torch
import verl.utils.distributed
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


def enable() -> None:
    """Make the platform known to verl in this process, and its process groups possible."""
    PlatformRegistry.register(platform="cpu")(Cpu)
    original = verl.utils.distributed.initialize_global_process_group_ray

    def initialize_global_process_group_ray(timeout_second: int | None = None, backend: str | None = None) -> None:
        original(timeout_second=timeout_second, backend=backend or "cpu:gloo")

    verl.utils.distributed.initialize_global_process_group_ray = initialize_global_process_group_ray


def _device_module() -> ModuleType:
    """torch.cpu and what verl calls on torch.cuda: nothing to synchronise or empty; memory is the process's."""
    module = ModuleType("verl_cpu_device")
    module.__dict__.update({name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")})

    def nothing(*_args: Any, **_kwargs: Any) -> None: ...

    def resident(*_args: Any, **_kwargs: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def free_and_total(*_args: Any, **_kwargs: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return memory.available, memory.total

    for name in ("empty_cache", "ipc_collect", "synchronize", "set_device", "manual_seed", "manual_seed_all",
                 "reset_peak_memory_stats", "reset_accumulated_memory_stats",
                 "set_per_process_memory_fraction"):  # fmt: skip
        setattr(module, name, nothing)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, resident)
    rest = {
        "mem_get_info": free_and_total,
        "is_available": lambda: False,  # verl then leaves out what only a GPU has
        "device_count": lambda: 1,
        "current_device": lambda: torch.device("cpu"),
        "get_device_name": lambda *_: "cpu",
        "get_rng_state": torch.get_rng_state,
        "set_rng_state": torch.set_rng_state,
    }
    for name, value in rest.items():
        setattr(module, name, value)
    return module


class Cpu(PlatformBase):  # type: ignore[misc]
    """See PlatformBase for what each of these is asked for."""

    _module: ModuleType | None = None

    @property
    def device_name(self) -> str:
        return "cpu"

    @property
    def vendor_name(self) -> str:
        return "cpu"

    @property
    def device_module(self) -> ModuleType:
        if Cpu._module is None:
            Cpu._module = _device_module()
        return Cpu._module

    def is_available(self) -> bool:
        return False

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never found by itself, only chosen

    def current_device(self) -> str:
        return "cpu"  # verl passes it to Tensor.to

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"  # the one that Ray was told of

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        return False  # no memory of a GPU to share: weights go through shared memory

    def rollout_env_vars(self) -> dict[str, str]:
        names = ("VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS")
        return {name: os.environ[name] for name in names if name in os.environ}

    def cudart(self) -> None:
        return None
