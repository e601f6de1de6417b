"""The comparison's chart as an SVG file, for papers and slides: the same lines and bands as on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from api.schemas import Comparison
from ui import palette, text
from ui.compared import AXES, DASHES, By, band, spent

WIDTH, HEIGHT = 900, 500
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 20, 60
INK = "#1F2430"

Point = tuple[float, float]


def svg(compared: Comparison, by: By) -> str:
    """Accuracy against what was spent, on white. Empty axes where nothing was evaluated."""
    runs = {run.run.id: run.evaluations for run in compared.runs}
    lines: list[tuple[list[Point], str, str]] = []
    bands: list[tuple[list[Point], str]] = []
    for at, group in enumerate(compared.groups):
        curves = [runs[run_id] for run_id in group.runs if runs[run_id].accuracy]
        colour = palette.SERIES[at % len(palette.SERIES)]
        dash = " ".join(map(str, DASHES[at // len(palette.SERIES)])) if at >= len(palette.SERIES) else "none"
        if len(curves) == 1:
            lines.append((list(zip(spent(curves[0], by), curves[0].accuracy, strict=True)), colour, dash))
        elif curves:
            places = band(curves, by)
            lines.append(([(p["x"], p["accuracy"]) for p in places], colour, dash))
            upper, lower = [(p["x"], p["high"]) for p in places], [(p["x"], p["low"]) for p in reversed(places)]
            bands.append((upper + lower, colour))
    everything = [p for points, _, _ in lines for p in points] + [p for points, _ in bands for p in points]
    xs = [x for x, _ in everything] or [0.0, 1.0]
    ys = [y for _, y in everything] + ([] if compared.target is None else [compared.target]) or [0.0, 1.0]
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))

    parts = []
    for y in y_ticks:
        (left, level), (right, _) = place(x_ticks[0], y), place(x_ticks[-1], y)
        parts.append(f'<path d="M{left:.1f} {level:.1f}H{right:.1f}" stroke="#E3E6EC"/>')
        parts.append(f'<text x="{left - 8:.1f}" y="{level + 4:.1f}" text-anchor="end">{100 * y:g}%</text>')
    for x in x_ticks:
        across, bottom = place(x, y_ticks[0])
        label = text.number(x, short_from=1000)  # all ticks short, or none
        parts.append(f'<text x="{across:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{label}</text>')
    parts += [f'<polygon points="{path(points)}" fill="{colour}" fill-opacity="0.15"/>' for points, colour in bands]
    for points, colour, dash in lines:
        stroke = f'stroke="{colour}" stroke-width="2.2" stroke-dasharray="{dash}"'
        parts.append(f'<polyline points="{path(points)}" fill="none" {stroke}/>')
    if compared.target is not None:
        parts.append(
            f'<polyline points="{path([(x_ticks[0], compared.target), (x_ticks[-1], compared.target)])}" fill="none" '
            f'stroke="{palette.NEUTRAL}" stroke-dasharray="3 4"/>'
        )
    middle = (HEIGHT - BOTTOM + TOP) / 2
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 18}" text-anchor="middle">{AXES[by]}</text>')
    parts.append(
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">held-out accuracy, sampled</text>'
    )
    rows = [_legend(at, group.name, len(group.runs)) for at, group in enumerate(compared.groups)]
    height = HEIGHT + 20 * len(rows) + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}"><rect width="100%" height="100%" fill="#FFFFFF"/>'
        f"{''.join(parts)}{''.join(rows)}</svg>"
    )


def _legend(at: int, name: str, n_runs: int) -> str:
    y = HEIGHT + 20 * at
    seeds = "" if n_runs == 1 else f", median and range of {n_runs} seeds"
    return (
        f'<rect x="{LEFT}" y="{y}" width="22" height="4" fill="{palette.SERIES[at % len(palette.SERIES)]}"/>'
        f'<text x="{LEFT + 30}" y="{y + 7}">{escape(name)}{seeds}</text>'
    )


def _ticks(low: float, high: float) -> list[float]:
    """Four to nine round numbers from at most `low` to at least `high`."""
    span = max(high - low, 1e-9)
    unit = 10 ** math.floor(math.log10(span / 4))
    step = next(unit * m for m in (1, 2, 5, 10) if span / (unit * m) <= 7)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [round(i * step, 12) for i in range(first, last + 1)]
