"""How busy this host's devices are, for people. Nothing is decided by it, and what nothing tells is not known."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time

import psutil

from db.slots import Use

log = logging.getLogger(__name__)

_EVERY_S = 10.0
_AFTER_FAILURE_S = 300.0


class Sampler:
    """A sample covers the time since the one before, so the first one knows nothing of the CPU."""

    def __init__(self) -> None:
        self._use, self._next, self._sampled = Use(), 0.0, False
        self._gpus_next = 0.0

    def use(self) -> Use:
        """The newest sample, at most about ten seconds old."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _EVERY_S
            cpu = psutil.cpu_percent() / 100
            self._use = Use(cpu if self._sampled else None, self._gpus(now))
            self._sampled = True
        return self._use

    def _gpus(self, now: float) -> dict[str, float]:
        program = shutil.which("nvidia-smi")
        if program is None or now < self._gpus_next:
            return {}
        try:
            return asked_gpus(program)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            log.warning("nvidia-smi does not tell how busy the GPUs are: %s", error)
            self._gpus_next = now + _AFTER_FAILURE_S
            return {}


def asked_gpus(program: str) -> dict[str, float]:
    """Use by GPU number; without those that do not tell ("[N/A]" while a GPU is cut into MIG devices).

    Raises OSError, SubprocessError or ValueError.
    """
    query = [program, "--query-gpu=index,utilization.gpu", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout.splitlines()
    rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
    return {index: int(percent) / 100 for index, percent in rows if not percent.startswith("[")}
