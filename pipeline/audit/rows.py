"""What every reader of logs gives: rows, and faults that name file and row."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

EXCERPT = 160
"""Characters of a prompt that a report shows."""


class BadLog(ValueError):
    """The log cannot be audited. The message is for a person: what is wrong, where, and what to do."""


class Row(NamedTuple):
    """One rollout. prompt: what makes it the same prompt, hashed later. text: how a person recognises it.

    reward: NaN where it failed. success: in [0, 1]; None where the log has none. tokens: None where nobody counted.
    """

    step: int
    prompt: str
    text: str
    reward: float
    success: float | None
    tokens: int | None


class Fault(NamedTuple):
    """A row that cannot be used. row: from 1; 0 is the file as a whole."""

    file: Path
    row: int
    why: str

    def __str__(self) -> str:
        return printable(f"{self.file.name}{f', row {self.row}' if self.row else ''}: {self.why}")


class Columns(NamedTuple):
    """What the user said about columns; empty and None: what the format says."""

    reward: Sequence[str]
    success: str | None


def printable(text: str) -> str:
    """What terminals, JSON and HTML take: other characters, such as escape sequences and lone surrogates, become �."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


def number(value: Any, name: str) -> float:
    """A number of a log; None is NaN, failed. Raises ValueError."""
    if value is None:
        return math.nan
    if isinstance(value, str):  # verl writes what JSON has no word for with str()
        value = {"true": 1.0, "false": 0.0}.get(value.strip().lower(), value)
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name!r} is {_shown(value)}, not a number") from None
    if math.isinf(found):
        raise ValueError(f"{name!r} is {found}, not a finite number")
    return found


def step_of(value: Any) -> int:
    """Raises ValueError unless it is a whole number from 0 to 2^31 - 1."""
    found = number(value, "step")
    if not (found.is_integer() and 0 <= found < 2**31):
        raise ValueError(f"'step' is {_shown(value)}, not a whole number from 0 to 2147483647")
    return int(found)


def success_of(value: Any, name: str) -> float:
    found = number(value, name)
    if not (math.isnan(found) or 0 <= found <= 1):
        raise ValueError(f"{name!r} is {_shown(value)}; success lies between 0 (wrong) and 1 (right)")
    return found


def tokens_of(value: Any, name: str) -> int | None:
    found = number(value, name)
    if math.isnan(found):
        return None
    if not (found.is_integer() and 0 <= found < 2**31):
        raise ValueError(f"{name!r} is {_shown(value)}, not a count")
    return int(found)


def prompt_of(value: Any) -> tuple[str, str]:
    """A prompt as text or chat -> what makes it the same prompt, and what to show: the last thing a user said.

    Raises ValueError for anything else.
    """
    if isinstance(value, str):
        return value, value
    if isinstance(value, list) and value and all(isinstance(message, dict) for message in value):
        said = [m for m in value if m.get("role") == "user"] or value
        content = said[-1].get("content")
        if isinstance(content, list):  # parts of a multimodal message
            content = " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
        return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str), str(content or "")
    raise ValueError(f"'prompt' is {_shown(value)}, neither a text nor a list of messages")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
