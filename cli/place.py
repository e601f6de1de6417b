"""Where the platform is: the checkout, its data, its addresses."""

from __future__ import annotations

import json
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
    """PILOT_API_URL, or the address that the platform of this home last recorded, or the default one."""
    return os.environ.get("PILOT_API_URL") or _recorded_api(home()) or f"http://{LOOPBACK}:{API_PORT}"


def token() -> str | None:
    """PILOT_TOKEN, or the token of the platform of this home; the latter only for this platform's own address."""
    given = os.environ.get("PILOT_TOKEN")
    if given:
        return given.strip()
    return kept_token(home()) if api_url() == _recorded_api(home()) else None


def token_path(folder: Path) -> Path:
    """The file, readable by its owner alone, with which whoever started a platform administers it."""
    return folder / "token"


def dashboard_token_path(folder: Path) -> Path:
    """The file with the dashboard's own token."""
    return folder / "dashboard.token"


def kept_token(folder: Path) -> str | None:
    """The token in `token_path`; None when there is none, or it is another user's."""
    try:
        return token_path(folder).read_text().strip() or None
    except OSError:
        return None


def record_addresses(folder: Path, *, api: str, ui: str) -> None:
    """Write `<home>/addresses.json`, from which the command line finds the platform. Raises OSError."""
    path = _addresses(folder)
    draft = path.with_suffix(".json.new")
    draft.write_text(json.dumps({"api": api, "ui": ui}) + "\n")
    draft.replace(path)


def forget_addresses(folder: Path) -> None:
    """Remove what `record_addresses` wrote."""
    _addresses(folder).unlink(missing_ok=True)


def _addresses(folder: Path) -> Path:
    return folder / "addresses.json"


def _recorded_api(folder: Path) -> str | None:
    try:
        api = json.loads(_addresses(folder).read_text())["api"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # no platform runs from here, or another user's, or the file is damaged
    return api if isinstance(api, str) else None
