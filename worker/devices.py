"""What this host has for runs: CPU slots by its settings, GPUs by nvidia-smi or by its settings."""

from __future__ import annotations

import logging
import shutil
import subprocess
from functools import cache

from db.slots import Device
from worker.settings import Settings

log = logging.getLogger(__name__)


def devices(settings: Settings) -> list[Device]:
    """In the order in which they are given away."""
    gpus = found_gpus() if settings.gpus is None else [Device("cuda", name, _label(name)) for name in settings.gpus]
    return [Device("cpu", str(i), f"CPU slot {i}") for i in range(settings.slots)] + gpus


def environment(held: list[Device]) -> dict[str, str]:
    """What a trainer sees of the host's GPUs: those that it holds. Without any, as on the CPU, none."""
    return {
        "CUDA_VISIBLE_DEVICES": ",".join(device.name for device in held if device.kind == "cuda"),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # nvidia-smi's numbers; CUDA's own put the fastest first
    }


@cache
def found_gpus() -> list[Device]:
    """Those of nvidia-smi, by number: not everything that reads CUDA_VISIBLE_DEVICES takes its longer names."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
        rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
        return [Device("cuda", index, f"{name}, {int(memory) // 1024} GiB") for index, name, memory in rows]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.error("nvidia-smi does not tell the GPUs of this host, so no run gets one: %s", error)
        return []


def _label(name: str) -> str:
    return next((gpu.label for gpu in found_gpus() if gpu.name == name), f"GPU {name}")
