"""Numbers, times and names as a person reads them."""

from __future__ import annotations

import datetime as dt
from html import escape
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st
import yaml as pyyaml

from ui.palette import METHODS


def number(value: float | None, digits: int = 3, short_from: float = 1e4) -> str:
    """1234 -> 1,234; 12345 -> 12.3k; 12345678 -> 12.3M; 0.18342 -> 0.183; -3 -> −3; None -> a dash."""
    if value is None:
        return "–"
    if value < 0:
        return f"−{number(-value, digits, short_from)}"
    if value >= short_from:
        value = float(f"{value:.3g}")  # first, or 999,600 would be 1000k
        size, suffix = next((s for s in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if value >= s[0]), (1e3, "k"))
        return f"{value / size:g}{suffix}"
    if float(value).is_integer():
        return f"{int(value):,}"
    if value < 1e-3:
        return f"{value:.2g}"
    return f"{value:,.{digits}g}" if value < 100 else f"{value:,.0f}"


def fixed(value: float | None, digits: int) -> str:
    """For columns, in which the points shall stand below each other: as HTML, with the exact value on hover."""
    if value is None:
        return "–"
    return f'<span title="{exact(value)}">{value:,.{digits}f}</span>'.replace(">-", ">−")


def hundredths(value: float) -> str:
    """An amount with two decimals; little is not told as nothing."""
    if value <= 0:
        return "–"
    return "<0.01" if value < 0.01 else f"{value:,.2f}"


def unit_of_hours(most: float) -> tuple[str, float]:
    """The unit to tell a column of hours in, of which the largest is `most`, and how many of it are an hour."""
    for unit, per_hour in (("hours", 1.0), ("minutes", 60.0)):
        if most * per_hour >= 1:
            return unit, per_hour
    return "seconds", 3600.0


def exact(value: float | None) -> str:
    """Every digit of a count; of what was measured or divided, six that count, and all before the point."""
    if value is None:
        return ""
    if float(value).is_integer() or abs(value) >= 1e6:
        return f"{value:,.0f}"
    return f"{float(f'{value:.6g}'):,}"


def hover(value: float | None, digits: int = 3) -> str:
    """The number as HTML: short, with its exact value on hover."""
    return f'<span title="{exact(value)}">{number(value, digits)}</span>'


def counted(n: int, one: str) -> str:
    """1 prompt, 12.3k prompts."""
    return f"{number(n)} {one}" if n == 1 else f"{number(n)} {one}s"


def size(n_bytes: float) -> str:
    """1300000 -> 1.3 MB."""
    for unit in ("B", "kB", "MB"):
        if n_bytes < 999.5:
            return f"{float(f'{n_bytes:.3g}'):g} {unit}"
        n_bytes /= 1000
    return f"{float(f'{n_bytes:.3g}'):g} GB"


def percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}%"


def share(part: int, whole: int) -> str:
    """In whole percents; few are not told as none."""
    if not whole:
        return "–"
    return "<1%" if 0 < part / whole < 0.01 else percent(part / whole, 0)


def points(change: float) -> str:
    """A change of an accuracy in percentage points."""
    return f"{100 * change:+.1f} pts".replace("-", "−")


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes < 10 else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def ago(then: dt.datetime | None) -> str:
    """'just now', '42 s ago', '3 h ago'."""
    if then is None:
        return "–"
    seconds = (now() - then).total_seconds()
    if seconds < 5:
        return "just now"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} ago"
    return f"{int(seconds)} s ago"


def when(then: dt.datetime | None) -> str:
    """As HTML: how long ago, with the exact time on hover."""
    return "–" if then is None else f'<span title="{moment(then)}">{ago(then)}</span>'


def since(then: dt.datetime) -> str:
    """As HTML: for how long by now, with the exact time on hover."""
    return f'<span title="since {moment(then)}">{duration((now() - then).total_seconds())}</span>'


def moment(then: dt.datetime) -> str:
    """2026-01-05 10:30:00 CET: in the time zone of the reader's browser, or UTC when it tells none."""
    try:
        zone: dt.tzinfo = ZoneInfo(st.context.timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError):
        zone = dt.UTC
    return f"{then.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"


def method(name: str) -> str:
    return METHODS.get(name, name)


def model(path: str) -> str:
    """The last part of a model's path, as HTML with the whole path on hover."""
    return f'<span title="{escape(path)}">{escape(path.rstrip("/").rsplit("/", 1)[-1])}</span>'


def markdown(words: str) -> str:
    """The words as Markdown that shows them as they are."""
    return "".join(f"\\{c}" if c in r"\`*_{}[]()<>#+-.!|:$~^=&" else c for c in words)


def sentence(words: str) -> str:
    """With a capital at its beginning; all else stays as it is, other than with capitalize()."""
    return words[:1].upper() + words[1:]


def shorten(words: str, most: int) -> str:
    """On one line, at most so many characters."""
    line = " ".join(words.split())
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def yaml(config: dict[str, Any]) -> str:
    """The config as YAML, in the config's own order."""
    return pyyaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=110)
