"""What the worker and its supervisors take from the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GPU: Final = re.compile(r"\d{1,3}|(GPU|MIG)-[\w/-]+")
APP_ROOT: Final = Path(__file__).resolve().parent.parent  # relative paths in run configs start here


@dataclass(frozen=True)
class Settings:
    """home: PILOT_HOME, where run directories and process records live.

    stop_grace_s: how long a trainer may take to finish its step and save before it is killed.
    lease_ttl_s: how long a run without a living supervisor stays untouched. sweep_s: seconds between sweeps.
    slots: runs of the CPU engine that this host runs at once; the others wait in the queue. 0: none.
    gpus: what CUDA_VISIBLE_DEVICES calls the GPUs that runs may use, one run each; None: all that nvidia-smi finds.
    trainer: the trainer's command; the run directory and `--attempt N` are appended.
    """

    home: Path
    stop_grace_s: float = 60.0
    lease_ttl_s: float = 30.0
    sweep_s: float = 5.0
    slots: int = 2
    gpus: tuple[str, ...] | None = None
    trainer: tuple[str, ...] = ()

    @classmethod
    def from_environment(cls) -> Settings:
        """Raises ValueError that names the variable and what it must be."""
        home = Path(os.environ.get("PILOT_HOME") or APP_ROOT / ".pilot").expanduser().resolve()
        return cls(
            home=home,
            stop_grace_s=_number("PILOT_STOP_GRACE_S", cls.stop_grace_s),
            lease_ttl_s=_number("PILOT_LEASE_TTL_S", cls.lease_ttl_s),
            sweep_s=_number("PILOT_SWEEP_S", cls.sweep_s),
            slots=_slots(cls.slots),
            gpus=_gpus(),
            trainer=tuple(os.environ.get("PILOT_TRAINER", "").split()),
        )

    def run_dir(self, run_id: object) -> Path:
        return self.home / "runs" / str(run_id)


def _slots(default: int) -> int:
    text = os.environ.get("PILOT_SLOTS", "")
    if text and not (text.isascii() and text.isdigit() and int(text) <= 1000):
        raise ValueError(f"PILOT_SLOTS={text!r} is not a whole number from 0 to 1000. Correct it, or unset it for 2.")
    return int(text) if text else default


def _gpus() -> tuple[str, ...] | None:
    """PILOT_GPUS, else what the worker itself may see (CUDA_VISIBLE_DEVICES, as a cluster's scheduler sets it)."""
    for name in ("PILOT_GPUS", "CUDA_VISIBLE_DEVICES"):
        text = os.environ.get(name)
        if text is None or text == "auto":
            continue
        names = tuple(part.strip() for part in text.split(",")) if text not in ("", "none", "-1") else ()
        if len(set(names)) < len(names) or not all(_GPU.fullmatch(part) for part in names):
            raise ValueError(
                f"{name}={text!r} is not a list of different GPUs such as 0,1 or GPU-8a5c...,MIG-3e1f... "
                "Correct it; `none` for no GPU, unset it for all."
            )
        return names
    return None


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={text!r} is not a number above 0. Correct it, or unset it for {default:g}.")
    return value
