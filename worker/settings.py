"""What the worker and its supervisors take from the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

APP_ROOT: Final = Path(__file__).resolve().parent.parent  # relative paths in run configs start here


@dataclass(frozen=True)
class Settings:
    """home: PILOT_HOME, where run directories and process records live.

    stop_grace_s: how long a trainer may take to finish its step and save before it is killed.
    lease_ttl_s: how long a run without a living supervisor stays untouched. sweep_s: seconds between sweeps.
    slots: runs that this host runs at once; the others wait in the queue.
    trainer: the trainer's command; the run directory and `--attempt N` are appended.
    """

    home: Path
    stop_grace_s: float = 60.0
    lease_ttl_s: float = 30.0
    sweep_s: float = 5.0
    slots: int = 2
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
            slots=int(_number("PILOT_SLOTS", cls.slots)),
            trainer=tuple(os.environ.get("PILOT_TRAINER", "").split()),
        )

    def run_dir(self, run_id: object) -> Path:
        return self.home / "runs" / str(run_id)


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else float(default)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{name}={text!r} is not a number above 0. Correct it, or unset it for {default:g}.")
    return value
