"""Charts as SVG: axes with titles, a legend in words, and a description for who cannot see them.

Text and lines take the colour of the page's text, so that a chart suits light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH, HEIGHT = 440, 250
LEFT, RIGHT, TOP, BOTTOM = 52, 20, 10, 40
_INSIDE_W, _INSIDE_H = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM


class Series(NamedTuple):
    """values: one for each x. filled: an area from the series before (or from 0), which adds up; else a line."""

    name: str
    colour: str
    values: Sequence[float]
    filled: bool = False


def over_x(
    xs: Sequence[float], series: Sequence[Series], x_title: str, y_title: str, top: float | None, percent: bool = False
) -> str:
    """Series over a numeric x. top: where the y axis ends; None: a little above the largest value."""
    most = top or _round_up(max((v for s in series for v in s.values), default=1.0))
    first, last = xs[0], xs[-1]
    width = (last - first) or 1.0

    def place(x: float, y: float) -> str:
        return f"{LEFT + (x - first) / width * _INSIDE_W:.1f},{TOP + (1 - y / most) * _INSIDE_H:.1f}"

    drawn, below = [], [0.0] * len(xs)
    for s in series:
        if s.filled:
            above = [b + v for b, v in zip(below, s.values, strict=True)]
            edge = [place(x, y) for x, y in zip(xs, above, strict=True)]
            base = [place(x, y) for x, y in zip(reversed(xs), reversed(below), strict=True)]
            drawn.append(f'<polygon points="{" ".join(edge + base)}" fill="{s.colour}" fill-opacity="0.85"/>')
            below = above
        elif len(xs) == 1:
            x, y = place(xs[0], s.values[0]).split(",")
            drawn.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{s.colour}"/>')
        else:
            points = " ".join(place(x, y) for x, y in zip(xs, s.values, strict=True))
            drawn.append(f'<polyline points="{points}" fill="none" stroke="{s.colour}" stroke-width="2"/>')
    ticks = _ticks(first, last)
    x_axis = "".join(_x_tick(LEFT + (t - first) / width * _INSIDE_W, _number(t)) for t in ticks)
    words = "; ".join(
        f"{s.name} from {_value(s.values[0], percent)} to {_value(s.values[-1], percent)}" for s in series
    )
    axes = _axes(most, percent, x_title, y_title) + x_axis
    return _svg(axes + "".join(drawn), f"{y_title} over {x_title}: {words}") + legend(series)


def map_of(cells: Sequence[tuple[float, float, int, str, int, str]], x_title: str, y_title: str) -> str:
    """Bubbles: (x from, x to, row, rows' label, count, colour) with x in [0, 1]; a bubble's area is the count."""
    rows = sorted({(row, label) for _, _, row, label, _, _ in cells})
    place_of = {row: i for i, (row, _) in enumerate(rows)}
    high = _INSIDE_H / max(1, len(rows))
    most = max((count for *_, count, _ in cells), default=1)
    radius = min(_INSIDE_W / 40 * 1.6, high / 2 * 0.95)
    drawn = []
    for x_from, x_to, row, _, count, colour in cells:
        x = LEFT + (x_from + x_to) / 2 * _INSIDE_W
        y = TOP + _INSIDE_H - (place_of[row] + 0.5) * high
        r = max(1.5, radius * math.sqrt(count / most))
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}" fill="{colour}" fill-opacity="0.85">'
            f"<title>{count:,} prompts, success rate {x_from:.0%} to {x_to:.0%}</title></circle>"
        )
    labels = "".join(
        f'<text x="{LEFT - 6}" y="{TOP + _INSIDE_H - (i + 0.5) * high + 4:.1f}" text-anchor="end">{label}</text>'
        for i, (_, label) in enumerate(rows)
    )
    ticks = "".join(_x_tick(LEFT + t * _INSIDE_W, f"{t:.0%}") for t in (0, 0.25, 0.5, 0.75, 1))
    frame = f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{TOP + _INSIDE_H}" y2="{TOP + _INSIDE_H}" class="a-line"/>'
    total = sum(count for *_, count, _ in cells)
    body = frame + labels + ticks + _titles(x_title, y_title) + "".join(drawn)
    return _svg(body, f"{total:,} prompts by {x_title} and {y_title}")


def legend(series: Sequence[Series]) -> str:
    return '<div class="a-legend">' + "".join(dot(s.colour, s.name) for s in series) + "</div>"


def dot(colour: str, words: str) -> str:
    return f'<span class="a-dot"><i style="background:{colour}"></i>{escape(words)}</span>'


def stack(parts: Sequence[tuple[str, str, float]]) -> str:
    """(name, colour, share) as one bar."""
    words = ", ".join(f"{name} {share:.0%}" for name, _, share in parts if share >= 0.005)
    bars = "".join(
        f'<i style="flex:{share:.4f};background:{colour}" title="{escape(name)} {share:.1%}"></i>'
        for name, colour, share in parts
        if share > 0
    )
    return f'<span class="a-stack" role="img" aria-label="{escape(words)}">{bars}</span>'


def _svg(body: str, words: str) -> str:
    return (
        f'<svg class="a-chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(words)}">{body}</svg>'
    )  # fmt: skip


def _axes(most: float, percent: bool, x_title: str, y_title: str) -> str:
    lines = []
    for i in range(5):
        y = TOP + (1 - i / 4) * _INSIDE_H
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="a-line"/>'
            f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_value(most * i / 4, percent)}</text>'
        )
    return "".join(lines) + _titles(x_title, y_title)


def _titles(x_title: str, y_title: str) -> str:
    middle = TOP + _INSIDE_H / 2
    return (
        f'<text x="{LEFT + _INSIDE_W / 2}" y="{HEIGHT - 6}" text-anchor="middle" class="a-faint">'
        f"{escape(x_title)}</text>"
        f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})" class="a-faint">'
        f"{escape(y_title)}</text>"
    )


def _x_tick(x: float, words: str) -> str:
    return f'<text x="{x:.1f}" y="{TOP + _INSIDE_H + 16}" text-anchor="middle">{words}</text>'


def _ticks(first: float, last: float) -> list[float]:
    if last <= first:
        return [first]
    step = 10.0 ** math.floor(math.log10((last - first) / 2))
    step *= next(m for m in (1, 2, 5, 10) if (last - first) / (m * step) <= 5)
    begin = math.ceil(first / step)
    return [i * step for i in range(begin, math.floor(last / step) + 1)]


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    return next(m * size for m in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if m * size >= value)


def _value(value: float, percent: bool) -> str:
    return f"{value:.0%}" if percent else f"{value:.3g}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) < 1e5 else f"{value / 1000:,.0f}k"
