"""A saved allocator only fits the settings that it was saved under, but for those that touch later decisions only."""

from __future__ import annotations

from typing import Any

HARMLESS = frozenset({"commit_order", "binding", "max_rounds", "pilot_prompts", "gen_prompts", "retest_rate"})
"""What may change between saving and loading: it decides what is sampled from now on, and says nothing about what the
state holds. Thresholds and rollouts per prompt are not among them: buckets and buffered groups were made by them."""


def refuse_other_settings(mine: dict[str, Any], saved: dict[str, Any]) -> None:
    """Raises ValueError that names every setting that differs, with both values, unless it is harmless."""
    differing = [
        f"{key} was {saved.get(key)!r}, is now {mine.get(key)!r}"
        for key in sorted((mine.keys() | saved.keys()) - HARMLESS)
        if mine.get(key) != saved.get(key)
    ]
    if differing:
        raise ValueError(
            "the checkpoint's allocation was made under other settings: "
            + "; ".join(differing)
            + ". Resume with the old settings, or start a new run"
        )
