"""Every chart, as a Vega-Lite spec over one flat table.

The specs (and the words for screen readers, which Streamlit puts into them) are constant and only the table changes,
so that a refresh moves the lines and does not draw the chart anew.
Long runs are thinned to `MAX_POINTS` steps: a screen shows no more, and the wire stays light.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

import pyarrow as pa
import streamlit as st

from api.schemas import BucketsAt, EvaluationOut, StepOut, Visit
from ui import palette

MAX_POINTS = 300
HEIGHT = 230
SHORT = "abs(datum.value) < 10000 ? format(datum.value, ',') : format(datum.value, '~s')"
STROKES = {"symbolType": "stroke", "symbolStrokeWidth": 2.5, "symbolOpacity": 1, "symbolSize": 220}
_T = TypeVar("_T")
Table = dict[str, list[Any]]


def thin(points: Sequence[_T], most: int = MAX_POINTS) -> list[_T]:
    """At most `most` of the points, evenly spread; the first and the last are always among them."""
    if len(points) <= most:
        return list(points)
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def draw(key: str, table: Table, spec: dict[str, Any], alt: str, height: int = HEIGHT) -> None:
    axes = {"labelOverlap": True, "tickCount": 5, "titlePadding": 8, "domain": False, "ticks": False}
    whole = {
        **spec,
        "config": {
            "axis": axes,
            "axisX": {"grid": False},
            "legend": {"orient": "top", "title": None, "symbolSize": 80, "offset": 4, "padding": 0},
            "view": {"stroke": None},
        },
        "padding": {"left": 2, "right": 8, "top": 2, "bottom": 2},
    }
    data = pa.table({name: _column(values) for name, values in table.items()})
    with st.container(key=key):
        st.vega_lite_chart(data, whole, height=height, alt=alt)


def placeholder(words: str, height: int = HEIGHT) -> None:
    """Where a chart will be; as high as the chart, so that nothing jumps when it comes."""
    st.html(f'<div class="pc-placeholder" style="height:{height}px">{escape(words)}</div>')


def _column(values: list[Any]) -> Any:
    text = any(isinstance(v, str) for v in values)
    whole = not text and bool(values) and all(isinstance(v, int) for v in values)
    return pa.array(values, type=pa.string() if text else pa.int64() if whole else pa.float64())


def _x(title: str, field: str = "step") -> dict[str, Any]:
    axis: dict[str, Any] = {"labelExpr": SHORT, "tickMinStep": 1}
    return {"field": field, "type": "quantitative", "title": title, "axis": axis, "scale": {"nice": False}}


def _colour(field: str, colours: dict[str, str], legend: bool = True) -> dict[str, Any]:
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, **({} if legend else {"legend": None})}


def _tip(field: str, title: str, form: str | None = None) -> dict[str, Any]:
    kind = "nominal" if form is None else "quantitative"
    return {"field": field, "title": title, "type": kind, **({"format": form} if form else {})}


def _crosshair(x: dict[str, Any], pivot: str, value: str, groupby: list[str], tips: list[Any]) -> dict[str, Any]:
    """A vertical rule that follows the pointer and tells every series' value at that place."""
    return {
        "transform": [{"pivot": pivot, "value": value, "groupby": groupby}],
        "mark": {"type": "rule", "color": palette.NEUTRAL, "strokeWidth": 1},
        "params": [
            {
                "name": "at",
                "select": {
                    "type": "point", "fields": [x["field"]], "nearest": True,
                    "on": "pointermove", "clear": "pointerout",
                },
            }
        ],
        "encoding": {
            "x": x,
            "opacity": {"condition": {"param": "at", "empty": False, "value": 0.8}, "value": 0},
            "tooltip": tips,
        },
    }  # fmt: skip


ACCURACY_SERIES = {"sampled": palette.ACCENT, "greedy": palette.NEUTRAL}


def accuracy(evaluations: Sequence[EvaluationOut]) -> None:
    """Held-out accuracy against what was spent for it."""
    if not evaluations:
        placeholder("No evaluation yet. The first one comes before training starts.")
        return
    rows = thin(evaluations)
    both = [(e, kind) for kind in ACCURACY_SERIES for e in rows]
    table: Table = {
        "rollouts": [e.rollouts_spent for e, _ in both],
        "step": [e.step for e, _ in both],
        "series": [kind for _, kind in both],
        "accuracy": [e.sampled_accuracy if kind == "sampled" else e.greedy_accuracy for e, kind in both],
        "low": [max(0.0, e.sampled_accuracy - e.stderr) if kind == "sampled" else None for e, kind in both],
        "high": [min(1.0, e.sampled_accuracy + e.stderr) if kind == "sampled" else None for e, kind in both],
        "stderr": [e.stderr if kind == "sampled" else None for e, kind in both],
    }
    x = _x("training rollouts spent", "rollouts")
    y_axis = {"format": ".0%", "title": "held-out accuracy"}
    y = {"field": "accuracy", "type": "quantitative", "axis": y_axis, "scale": {"zero": False, "nice": True}}
    colour = {**_colour("series", ACCURACY_SERIES), "legend": STROKES}
    spec = {
        "layer": [
            {
                "transform": [{"filter": "datum.series == 'sampled'"}],
                "mark": {"type": "area", "opacity": 0.18, "color": palette.ACCENT},
                "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
            },
            {
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {
                    "x": x, "y": y, "color": colour,
                    "strokeDash": {
                        "field": "series", "type": "nominal", "legend": STROKES,
                        "scale": {"domain": list(ACCURACY_SERIES), "range": [[1, 0], [5, 4]]},
                    },
                },
            },
            {
                "mark": {"type": "point", "filled": True, "size": 36, "opacity": 1},
                "encoding": {
                    "x": x, "y": y, "color": colour,
                    "tooltip": [
                        _tip("series", "accuracy"), _tip("accuracy", "value", ".1%"), _tip("stderr", "± stderr", ".1%"),
                        _tip("step", "after step", ",d"), _tip("rollouts", "rollouts spent", ",d"),
                    ],
                },
            },
        ]
    }  # fmt: skip
    draw("chart-accuracy", table, spec, "Held-out accuracy, sampled and greedy, against training rollouts spent")


def buckets(history: Sequence[BucketsAt]) -> None:
    """How many prompts lie in each bucket after every step."""
    if not history:
        placeholder("No step yet. Buckets fill with the first pilots.")
        return
    rows = thin(history)
    pool = sum(rows[0].counts.values())
    if rows[0].step == 1:  # before the first step every prompt is unseen
        rows.insert(0, BucketsAt(step=0, counts={"unseen": pool}))
    flat = [(row, i, name) for i, name in enumerate(palette.STACK) for row in rows]
    table: Table = {
        "step": [row.step for row, _, _ in flat],
        "bucket": [name for _, _, name in flat],
        "layer": [i for _, i, _ in flat],
        "prompts": [row.counts.get(name, 0) for row, _, name in flat],
    }
    colours = {name: palette.BUCKETS[name].colour for name in palette.STACK}
    x = _x("step")
    tips = [_tip("step", "after step", ",d"), *(_tip(name, name, ",d") for name in palette.STACK)]
    y = {
        "field": "prompts", "type": "quantitative", "title": "prompts", "stack": "zero",
        "axis": {"labelExpr": SHORT}, "scale": {"nice": False},
    }  # fmt: skip
    spec = {
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.92},
                "encoding": {
                    "x": x, "y": y, "color": {**_colour("bucket", colours), "legend": {"columns": 3}},
                    "order": {"field": "layer", "type": "quantitative"},
                },
            },
            _crosshair(x, "bucket", "prompts", ["step"], tips),
        ]
    }  # fmt: skip
    draw("chart-buckets", table, spec, "Prompts in each bucket over steps; the tiles tell the counts of now")


VARIANCE_SERIES = {"trained groups": palette.BUCKETS["committed"].colour, "uniform sampling": palette.NEUTRAL}


def variance(steps: Sequence[StepOut]) -> None:
    """The learning signal bought: reward variance of what was trained, against uniform sampling on the same prompts."""
    names = dict(zip(VARIANCE_SERIES, ("reward_variance", "uniform_reward_variance"), strict=True))
    if not any(s.metrics.get(n) is not None for s in steps for n in names.values()):
        placeholder("No trained group yet.")
        return
    rows = thin(steps)
    flat = [(s, label) for label in names for s in rows]
    table: Table = {
        "step": [s.step for s, _ in flat],
        "series": [label for _, label in flat],
        "variance": [s.metrics.get(names[label]) for s, label in flat],
    }
    x = _x("step")
    y = {
        "field": "variance", "type": "quantitative", "title": "mean reward variance",
        "axis": {"format": ".2f"}, "scale": {"zero": True, "nice": True},
    }  # fmt: skip
    colour = {**_colour("series", VARIANCE_SERIES), "legend": STROKES}
    window = [{"op": "mean", "field": "variance", "as": "smooth"}]
    smooth = {"window": window, "groupby": ["series"], "sort": [{"field": "step"}], "frame": [-4, 0]}
    tips = [_tip("step", "step", ",d"), *(_tip(label, label, ".3f") for label in names)]
    spec = {
        "layer": [
            {
                "transform": [smooth],
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": {**y, "field": "smooth"}, "color": colour},
            },
            {
                "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.35},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            _crosshair(x, "series", "variance", ["step"], tips),
        ]
    }
    draw("chart-variance", table, spec, "Reward variance of trained groups and of uniform sampling over steps")


def phases(steps: Sequence[StepOut], height: int = 150) -> None:
    """Where the time of a step goes."""
    if not steps:
        placeholder("No step yet.", height)
        return
    rows = thin(steps, 120)
    flat = [(s, phase) for phase in palette.PHASES for s in rows]
    table: Table = {
        "step": [s.step for s, _ in flat],
        "phase": [phase for _, phase in flat],
        "seconds": [s.metrics.get(f"seconds_{phase}") for s, phase in flat],
    }
    x = _x("step")
    y = {"field": "seconds", "type": "quantitative", "title": "seconds", "stack": "zero", "axis": {"tickCount": 3}}
    tips = [_tip("step", "step", ",d"), *(_tip(phase, f"{phase} (s)", ".2f") for phase in palette.PHASES)]
    spec = {
        "layer": [
            {
                "mark": {"type": "area", "opacity": 0.9},
                "encoding": {"x": x, "y": y, "color": _colour("phase", palette.PHASES)},
            },
            _crosshair(x, "phase", "seconds", ["step"], tips),
        ]
    }  # fmt: skip
    draw("chart-phases", table, spec, "Seconds per step in generation, reward and update", height)


def visits(history: Sequence[Visit], thresholds: dict[str, float]) -> None:
    """One prompt's success rate at every visit. thresholds: name -> success rate at which buckets change."""
    known = [v for v in history if v.success_rate is not None]
    if not known:
        placeholder("Not sampled yet. The prompt is unseen.")
        return
    rows = thin(known)
    colours = {name: b.colour for name, b in palette.BUCKETS.items() if name != "unseen"}
    marks = sorted(thresholds.items())
    empty = [None] * len(marks)
    table: Table = {
        "step": [*(v.step for v in rows), *empty],
        "rate": [*(v.success_rate for v in rows), *empty],
        "stage": [*(v.stage for v in rows), *empty],
        "bucket": [*(v.bucket for v in rows), *empty],
        "rollouts": [*(v.n for v in rows), *empty],
        "tokens": [*(v.tokens for v in rows), *empty],
        "variance": [*(v.reward_variance for v in rows), *empty],
        "threshold": [*([None] * len(rows)), *(value for _, value in marks)],
        "name": [*([None] * len(rows)), *(f"{name} {value:g}" for name, value in marks)],
    }
    x = {**_x("step"), "scale": {"nice": True, "zero": False, "padding": 12}}
    y = {
        "field": "rate", "type": "quantitative", "title": "success rate",
        "axis": {"format": ".0%", "values": [0, 0.25, 0.5, 0.75, 1]}, "scale": {"domain": [0, 1.1], "nice": False},
    }  # fmt: skip
    is_visit, is_threshold = [{"filter": "isValid(datum.rate)"}], [{"filter": "isValid(datum.threshold)"}]
    level = {"field": "threshold", "type": "quantitative"}
    spec = {
        "layer": [
            {
                "transform": is_threshold,
                "mark": {"type": "rule", "strokeDash": [3, 4], "color": palette.NEUTRAL, "opacity": 0.8},
                "encoding": {"y": level},
            },
            {
                "transform": is_threshold,
                "mark": {
                    "type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -3, "color": palette.NEUTRAL,
                    "fontSize": 11,
                },
                "encoding": {"y": level, "x": {"value": 0}, "text": {"field": "name", "type": "nominal"}},
            },
            {
                "transform": is_visit,
                "mark": {"type": "line", "strokeWidth": 1, "color": palette.NEUTRAL},
                "encoding": {"x": x, "y": y},
            },
            {
                "transform": is_visit,
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "x": x, "y": y, "color": {**_colour("bucket", colours), "legend": {"columns": 3}},
                    "shape": {
                        "field": "stage", "type": "nominal",
                        "scale": {"domain": ["pilot", "commit"], "range": ["circle", "diamond"]},
                        "legend": {
                            "orient": "bottom", "symbolFillColor": palette.NEUTRAL,
                            "symbolStrokeColor": palette.NEUTRAL,
                        },
                    },
                    "tooltip": [
                        _tip("step", "step", ",d"), _tip("stage", "stage"), _tip("bucket", "bucket after it"),
                        _tip("rate", "success rate", ".1%"), _tip("variance", "reward variance", ".3f"),
                        _tip("rollouts", "rollouts", ",d"), _tip("tokens", "tokens", ",d"),
                    ],
                },
            },
        ]
    }  # fmt: skip
    newest = known[-1]
    draw(
        "chart-visits", table, spec, f"Success rate at {len(known)} visits; {newest.success_rate:.0%} at the last", 280
    )
