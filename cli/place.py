"""Where the platform is: the checkout, its data, its addresses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
"""The application's folder; everything that the launcher starts runs in it."""

LOOPBACK: Final = "127.0.0.1"
API_PORT: Final = 8700
UI_PORT: Final = 8701


def home() -> Path:
    """PILOT_HOME, or `.pilot` in the checkout: database, runs, logs, process records."""
    return Path(os.environ.get("PILOT_HOME") or ROOT / ".pilot").expanduser().resolve()


def api_url() -> str:
    return os.environ.get("PILOT_API_URL") or f"http://{LOOPBACK}:{API_PORT}"
