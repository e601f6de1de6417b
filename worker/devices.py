"""What this host has for runs: CPU slots by its settings, GPUs by nvidia-smi or by its settings."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
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


def found_gpus() -> list[Device]:
    """Those of nvidia-smi; none while it fails, and then it is asked again every minute: a driver may come late."""
    global _ask_again_at
    if time.monotonic() < _ask_again_at:
        return []
    try:
        return _asked_gpus()
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        log.error("nvidia-smi does not tell the GPUs of this host, so no run gets one: %s", error)
        _ask_again_at = time.monotonic() + 60
        return []


_ask_again_at = 0.0


@cache
def _asked_gpus() -> list[Device]:
    """By number: not everything that reads CUDA_VISIBLE_DEVICES takes the longer names."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    query = [program, "--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
    return [Device("cuda", index, f"{name}, {int(memory) // 1024} GiB") for index, name, memory in rows]


def _label(name: str) -> str:
    return next((gpu.label for gpu in found_gpus() if gpu.name == name), f"GPU {name}")
