"""A saved allocator only fits the settings that it was saved under."""

from __future__ import annotations

from typing import Any


def refuse_other_settings(mine: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raises ValueError that names every setting that differs, with both values."""
    differing = [
        f"{key} was {saved.get(key)!r}, is now {mine.get(key)!r}"
        for key in sorted(mine.keys() | saved.keys())
        if mine.get(key) != saved.get(key)
    ]
    if differing:
        raise ValueError(
            "the checkpoint's allocation was made under other settings: "
            + "; ".join(differing)
            + ". Resume with the old settings, or start a new run"
        )
