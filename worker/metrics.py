"""Numbers of this worker for Prometheus, served on the port that PILOT_METRICS_PORT names; nowhere without it.

They hold no secrets, and nobody is asked for a token: the address is this machine's own unless PILOT_METRICS_HOST
gives another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from prometheus_client import Counter, Gauge, start_http_server

LAUNCHES: Final = Counter("pilot_worker_launches", "Supervisors started.")
SWEEPS: Final = Counter("pilot_worker_sweeps", "Sweeps by how they ended.", ["result"])
SWEPT_AT: Final = Gauge("pilot_worker_last_sweep_timestamp_seconds", "When the last sweep succeeded.")
SUPERVISORS: Final = Gauge("pilot_worker_supervisors", "Supervisors of this worker that run.")


def serve(supervisors: Callable[[], float]) -> None:
    """Raises ValueError when PILOT_METRICS_PORT is no port, and OSError when it cannot be used."""
    text = os.environ.get("PILOT_METRICS_PORT", "")
    if not text:
        return
    port = int(text) if text.isdecimal() else 0
    if not 0 < port < 65536:
        raise ValueError(f"PILOT_METRICS_PORT={text!r} is not a port from 1 to 65535. Correct it, or unset it.")
    SUPERVISORS.set_function(supervisors)
    start_http_server(port, addr=os.environ.get("PILOT_METRICS_HOST") or "127.0.0.1")
