"""Every chart, as a Vega-Lite spec over one flat table.

The specs (and the words for screen readers, which Streamlit puts into them) are constant and only the table changes,
so that a refresh moves the lines and does not draw the chart anew.
Tables have one column for each series, which the browser folds, and long runs are thinned to `MAX_POINTS` steps: a
screen shows no more, and the wire stays light.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, TypeVar

import pyarrow as pa
import streamlit as st

from api.schemas import BucketsAt, Difficulty, Flows, StepOut, Visit
from ui import palette
from ui.benchmarks import Measured
from ui.health import wilson

MAX_POINTS = 160
HEIGHT = 280
SHORT = "abs(datum.value) < 1000 ? format(datum.value, ',') : format(datum.value, '~s')"
POWERS = "datum.value < 10000 ? format(datum.value, ',') : format(datum.value, '.2~s')"  # 1,024 and 4,096, then 16k
QUARTERS = [0, 0.25, 0.5, 0.75, 1]
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
    rows = pa.table({name: _column(values) for name, values in table.items()})
    # By name: a table without one is handed over only after the chart was drawn once without rows, and on scales
    # without rows Vega warns.
    named = {"data": {"name": "rows"}, "datasets": {"rows": rows}}
    with st.container(key=key):
        st.vega_lite_chart(spec={**whole, **named}, height=height, alt=alt)


def placeholder(words: str, height: int = HEIGHT) -> None:
    """Where a chart will be; as high as the chart, so that nothing jumps when it comes."""
    st.html(f'<div class="pc-placeholder" style="height:{height}px">{escape(words)}</div>')


def _column(values: list[Any]) -> Any:
    text = any(isinstance(v, str) for v in values)
    whole = not text and bool(values) and all(isinstance(v, int) for v in values)
    number = pa.float32() if not whole else pa.int32() if max(map(abs, values)) < 2**31 else pa.int64()
    return pa.array(values, type=pa.string() if text else number)


def _x(title: str, field: str = "step") -> dict[str, Any]:
    axis: dict[str, Any] = {"labelExpr": SHORT, "tickMinStep": 1}
    return {"field": field, "type": "quantitative", "title": title, "axis": axis, "scale": {"nice": False}}


def _colour(field: str, colours: dict[str, str], legend: bool = True) -> dict[str, Any]:
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale, **({} if legend else {"legend": None})}


def _tip(field: str, title: str, form: str | None = None) -> dict[str, Any]:
    kind = "nominal" if form is None else "quantitative"
    return {"field": field, "title": title, "type": kind, **({"format": form} if form else {})}


def _fold(names: Sequence[str], value: str, series: str) -> list[dict[str, Any]]:
    return [{"fold": list(names), "as": [series, value]}]


def _crosshair(x: dict[str, Any], tips: list[Any]) -> dict[str, Any]:
    """A vertical rule that follows the pointer and tells every series' value at that place."""
    return {
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


def accuracy(points: Sequence[Measured], of: str, target: float | None = None, *, live: bool = True) -> None:
    """Accuracy of a benchmark against what was spent for it. target: where a line marks the accuracy that is wanted."""
    if not points:
        yet = "No evaluation yet. The first one comes before training starts."
        placeholder(yet if live else "The run ended before its first evaluation.")
        return
    rows = thin(points)
    table: Table = {
        "rollouts": [p.rollouts for p in rows],
        "step": [p.step for p in rows],
        "sampled": [p.accuracy for p in rows],
        "greedy": [p.greedy for p in rows],
        "stderr": [p.stderr for p in rows],
    }
    both = any(p.greedy is not None for p in points)  # not every benchmark is answered greedily, too
    colours = ACCURACY_SERIES if both else {"sampled": ACCURACY_SERIES["sampled"]}
    x = _x("training rollouts spent", "rollouts")
    y_axis = {"format": ".0%", "title": f"accuracy, {of}"}
    y = {"field": "accuracy", "type": "quantitative", "axis": y_axis, "scale": {"zero": False, "nice": True}}
    colour = {**_colour("series", colours), "legend": STROKES}
    fold = _fold(list(colours), "accuracy", "series")
    band = [
        {"calculate": "max(0, datum.sampled - datum.stderr)", "as": "low"},
        {"calculate": "min(1, datum.sampled + datum.stderr)", "as": "high"},
    ]
    dash = {"domain": list(colours), "range": [[1, 0], [5, 4]][: len(colours)]}
    layers: list[dict[str, Any]] = [
        {
            "transform": band,
            "mark": {"type": "area", "opacity": 0.18, "color": palette.ACCENT},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}},
        },
        {
            "transform": fold,
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {
                "x": x, "y": y, "color": colour,
                "strokeDash": {"field": "series", "type": "nominal", "legend": STROKES, "scale": dash},
            },
        },
        {
            "transform": fold,
            "mark": {"type": "point", "filled": True, "size": 36, "opacity": 1},
            "encoding": {
                "x": x, "y": y, "color": colour,
                "tooltip": [
                    _tip("sampled", "sampled", ".1%"), _tip("stderr", "± stderr", ".1%"),
                    *([_tip("greedy", "greedy", ".1%")] if both else []), _tip("step", "after step", ",d"),
                    _tip("rollouts", "rollouts spent", ",d"),
                ],
            },
        },
    ]  # fmt: skip
    if target is not None:
        mark = {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.5, "color": palette.TARGET}
        layers.append({"mark": mark, "encoding": {"y": {"datum": target}}})
    alt = f"Accuracy of {of}, {' and '.join(colours)}, against training rollouts spent"
    draw("chart-accuracy", table, {"layer": layers}, alt)


def buckets(history: Sequence[BucketsAt], *, live: bool = True) -> None:
    """How many prompts lie in each bucket after every step."""
    if not history:
        placeholder(
            "No step yet. Buckets fill with the first pilots." if live else "The run ended before its first step."
        )
        return
    rows = thin(history)
    pool = sum(rows[0].counts.values())
    if rows[0].step == 1:  # before the first step every prompt is unseen
        rows.insert(0, BucketsAt(step=0, counts={"unseen": pool}))
    table: Table = {"step": [row.step for row in rows]}
    table |= {name: [row.counts.get(name, 0) for row in rows] for name in palette.STACK}
    colours = {name: palette.BUCKETS[name].colour for name in palette.STACK}
    x = _x("step")
    tips = [_tip("step", "after step", ",d"), *(_tip(name, name, ",d") for name in palette.STACK)]
    y = {
        "field": "prompts", "type": "quantitative", "title": "prompts", "stack": "zero",
        "axis": {"labelExpr": SHORT}, "scale": {"nice": False},
    }  # fmt: skip
    layer = {"calculate": f"indexof({list(palette.STACK)}, datum.bucket)", "as": "layer"}
    spec = {
        "layer": [
            {
                "transform": [*_fold(palette.STACK, "prompts", "bucket"), layer],
                "mark": {"type": "area", "opacity": 0.92},
                "encoding": {
                    "x": x, "y": y, "color": {**_colour("bucket", colours), "legend": {"columns": 3}},
                    "order": {"field": "layer", "type": "quantitative"},
                },
            },
            _crosshair(x, tips),
        ]
    }  # fmt: skip
    draw("chart-buckets", table, spec, "Prompts in each bucket over steps; the tiles tell the counts of now", 230)


def flows(moved: Flows | None) -> None:
    """Which prompts changed their bucket: from the one on the left into the one on the right, as wide as many."""
    ways = [] if moved is None else [f for f in moved.flows if f.source != f.target]
    if moved is None or not ways:
        placeholder("No prompt has changed its bucket in these steps." if moved else "No step yet.")
        return
    order = {name: at for at, name in enumerate(palette.STACK)}
    ways.sort(key=lambda f: (order.get(f.source, 9), order.get(f.target, 9)))
    total = sum(f.prompts for f in ways)
    left = _stacked([(f.source, f.prompts / total) for f in ways])
    by_target = sorted(range(len(ways)), key=lambda i: (order.get(ways[i].target, 9), order.get(ways[i].source, 9)))
    placed = _stacked([(ways[i].target, ways[i].prompts / total) for i in by_target])
    right = dict(zip(by_target, placed, strict=True))
    table: Table = {
        "flow": list(range(len(ways))),
        "source": [f.source for f in ways],
        "target": [f.target for f in ways],
        "prompts": [f.prompts for f in ways],
        "width": [f.prompts / total for f in ways],
        "left": left,
        "right": [right[i] for i in range(len(ways))],
    }
    colours = {name: palette.BUCKETS[name].colour for name in palette.STACK}
    scale = {"domain": [-0.02, 1 + _GAP * len(palette.STACK)], "reverse": True, "nice": False}
    y = {"type": "quantitative", "axis": None, "scale": scale}
    x = {"type": "quantitative", "axis": None, "scale": {"domain": [-0.6, 1.6], "nice": False}}
    tips = [_tip("source", "from"), _tip("target", "to"), _tip("prompts", "prompts", ",d")]
    curve = [
        {"calculate": "sequence(0, 1.001, 0.0625)", "as": "t"},
        {"flatten": ["t"]},
        {"calculate": "datum.left + (datum.right - datum.left) * datum.t * datum.t * (3 - 2 * datum.t)", "as": "top"},
        {"calculate": "datum.top + datum.width", "as": "bottom"},
    ]

    def ends(bucket: str, at: str, position: float) -> list[dict[str, Any]]:
        """The buckets of one side, and their names."""
        count = [
            {
                "aggregate": [
                    {"op": "sum", "field": "prompts", "as": "n"}, {"op": "sum", "field": "width", "as": "height"},
                    {"op": "min", "field": at, "as": "top"},
                ],
                "groupby": [bucket],
            },
            {"calculate": "datum.top + datum.height", "as": "bottom"},
            {"calculate": "datum.top + datum.height / 2", "as": "middle"},
            {"calculate": f"datum.{bucket} + '  ' + format(datum.n, ',')", "as": "label"},
        ]  # fmt: skip
        side = -1 if position == 0 else 1
        colour = {"field": bucket, "type": "nominal", "scale": _colour("", colours)["scale"], "legend": None}
        return [
            {
                "transform": count,
                "mark": {"type": "rect", "opacity": 1},
                "encoding": {
                    "x": {**x, "datum": position}, "x2": {"datum": position + side * 0.025},
                    "y": {**y, "field": "top"}, "y2": {"field": "bottom"}, "color": colour,
                },
            },
            {
                "transform": count,
                "mark": {
                    "type": "text", "align": "right" if side < 0 else "left", "dx": side * 4, "fontSize": 11,
                    "color": palette.NEUTRAL,
                },
                "encoding": {
                    "x": {**x, "datum": position + side * 0.025}, "y": {**y, "field": "middle"},
                    "text": {"field": "label", "type": "nominal"},
                },
            },
        ]  # fmt: skip

    spec = {
        "layer": [
            {
                "transform": curve,
                "mark": {"type": "area", "opacity": 0.45},
                "encoding": {
                    "x": {**x, "field": "t"}, "y": {**y, "field": "top"}, "y2": {"field": "bottom"},
                    "detail": {"field": "flow", "type": "nominal"},
                    "color": {**_colour("source", colours), "legend": None}, "tooltip": tips,
                },
            },
            *ends("source", "left", 0.0),
            *ends("target", "right", 1.0),
        ]
    }  # fmt: skip
    draw("chart-flows", table, spec, "Prompts that changed their bucket, from left to right")


_GAP = 0.04  # between two buckets of a side, of the whole height


def _stacked(parts: Sequence[tuple[str, float]]) -> list[float]:
    """Where each part begins when they lie on each other in the given order, with a gap where the bucket changes."""
    begins, at = [], 0.0
    for before, (bucket, size) in zip([None, *parts], parts, strict=False):
        if before is not None and before[0] != bucket:
            at += _GAP
        begins.append(at)
        at += size
    return begins


VARIANCE_SERIES = {"trained groups": palette.BUCKETS["committed"].colour, "uniform sampling": palette.NEUTRAL}


def variance(steps: Sequence[StepOut]) -> None:
    """The learning signal bought: reward variance of what was trained, against uniform sampling on the same prompts."""
    names = dict(zip(VARIANCE_SERIES, ("reward_variance", "uniform_reward_variance"), strict=True))
    if not any(s.metrics.get(n) is not None for s in steps for n in names.values()):
        placeholder("No trained group yet.")
        return
    rows = thin(steps)
    table: Table = {"step": [s.step for s in rows]}
    table |= {label: [s.metrics.get(name) for s in rows] for label, name in names.items()}
    x = _x("step")
    y = {
        "field": "variance", "type": "quantitative", "title": "mean reward variance",
        "axis": {"format": ".2f"}, "scale": {"zero": True, "nice": True},
    }  # fmt: skip
    colour = {**_colour("series", VARIANCE_SERIES), "legend": STROKES}
    fold = _fold(list(VARIANCE_SERIES), "variance", "series")
    window = [{"op": "mean", "field": "variance", "as": "smooth"}]
    smooth = {"window": window, "groupby": ["series"], "sort": [{"field": "step"}], "frame": [-4, 0]}
    tips = [_tip("step", "step", ",d"), *(_tip(label, label, ".3f") for label in names)]
    spec = {
        "layer": [
            {
                "transform": [*fold, smooth],
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": {"x": x, "y": {**y, "field": "smooth"}, "color": colour},
            },
            {
                "transform": fold,
                "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.35},
                "encoding": {"x": x, "y": y, "color": colour},
            },
            _crosshair(x, tips),
        ]
    }
    draw("chart-variance", table, spec, "Reward variance of trained groups and of uniform sampling over steps")


def phases(steps: Sequence[StepOut], height: int = 150) -> None:
    """Where the time of a step goes."""
    if not steps:
        placeholder("No step yet.", height)
        return
    rows = thin(steps)
    table: Table = {"step": [s.step for s in rows]}
    table |= {phase: [s.metrics.get(f"seconds_{phase}") for s in rows] for phase in palette.PHASES}
    x = _x("step")
    y = {"field": "seconds", "type": "quantitative", "title": "seconds", "stack": "zero", "axis": {"tickCount": 3}}
    tips = [_tip("step", "step", ",d"), *(_tip(phase, f"{phase} (s)", ".2f") for phase in palette.PHASES)]
    spec = {
        "layer": [
            {
                "transform": _fold(list(palette.PHASES), "seconds", "phase"),
                "mark": {"type": "area", "opacity": 0.9},
                "encoding": {"x": x, "y": y, "color": _colour("phase", palette.PHASES)},
            },
            _crosshair(x, tips),
        ]
    }  # fmt: skip
    draw("chart-phases", table, spec, "Seconds per step in generation, reward and update", height)


def throughput(steps: Sequence[StepOut], height: int = 90) -> None:
    """Tokens a second, between the ends of steps of one attempt."""
    rates = [
        (b.step, (b.tokens - a.tokens) / seconds)
        for a, b in zip(steps, steps[1:], strict=False)
        if a.attempt == b.attempt and (seconds := (b.finished_at - a.finished_at).total_seconds()) > 0
    ]
    if not rates:
        return
    rows = thin(rates)
    x = _x("step")
    y = {"field": "rate", "type": "quantitative", "title": "tok/s", "axis": {"tickCount": 2, "labelExpr": SHORT}}
    spec = {
        "layer": [
            {"mark": {"type": "line", "strokeWidth": 1.5, "color": palette.ACCENT}, "encoding": {"x": x, "y": y}},
            _crosshair(x, [_tip("step", "step", ",d"), _tip("rate", "tokens/s", ",.0f")]),
        ]
    }
    table: Table = {"step": [step for step, _ in rows], "rate": [rate for _, rate in rows]}
    draw("chart-throughput", table, spec, "Tokens per second over steps", height)


def _rate(bin: int, bins: int) -> float:
    """Where a bin is drawn. With one for each rate that a group of n can have (bins = n + 1) it is this rate; else it
    lies within the bin, and the first and the last are 0% and 100% all the same.
    """
    return bin / (bins - 1)


def rates_over_time(found: Difficulty, parts: int, bins: int) -> None:
    """How success rates were spread in each part of the run: darker where more groups lay."""
    if not found.over_time:
        placeholder("No group has been judged yet.", 260)
        return
    totals: dict[int, int] = {}
    for cell in found.over_time:
        totals[cell.part] = totals.get(cell.part, 0) + cell.groups
    width = (found.last - found.first + 1) / parts
    cells = found.over_time
    half = 0.5 / (bins - 1)
    begins = [max(1, round(found.first + c.part * width)) for c in cells]
    table: Table = {
        "from": begins,
        # One step at least: of a run with fewer steps than parts a cell would have no width.
        "to": [
            max(begin + 1, round(found.first + (c.part + 1) * width)) for begin, c in zip(begins, cells, strict=True)
        ],
        "rate": [_rate(c.rate, bins) for c in cells],
        "low": [_rate(c.rate, bins) - half for c in cells],
        "high": [_rate(c.rate, bins) + half for c in cells],
        "share": [c.groups / totals[c.part] for c in cells],
        "groups": [c.groups for c in cells],
    }
    x = {**_x("step", "from"), "scale": {"nice": False, "zero": False}}
    y = {
        "field": "low", "type": "quantitative", "title": "success rate",
        "axis": {"format": ".0%", "values": QUARTERS}, "scale": {"domain": [-half, 1 + half], "nice": False},
    }  # fmt: skip
    spec = {
        "mark": {"type": "rect"},
        "encoding": {
            "x": x, "x2": {"field": "to"}, "y": y, "y2": {"field": "high"},
            "color": {
                "field": "share", "type": "quantitative",
                "scale": {"range": ["#6366E80A", palette.ACCENT], "zero": True}, "legend": None,
            },
            "tooltip": [
                _tip("from", "from step", ",d"), _tip("to", "to step", ",d"), _tip("rate", "success rate near", ".1~%"),
                _tip("groups", "groups", ",d"), _tip("share", "of these steps", ".0%"),
            ],
        },
    }  # fmt: skip
    draw("chart-rates", table, spec, "Success rates of judged groups over steps, as a heat map", 260)


def spend_map(found: Difficulty, bins: int, size: str) -> None:
    """Prompts by success rate and visits. size: `prompts` or `tokens`, what a circle's area stands for."""
    if not found.spend:
        placeholder("No prompt has been visited yet.", 260)
        return
    cells = found.spend
    table: Table = {
        "rate": [_rate(c.rate, bins) for c in cells],
        "visits": [2**c.visits * (1 if c.visits == 0 else 1.4) for c in cells],
        "least": [2**c.visits for c in cells],
        "most": [2 ** (c.visits + 1) - 1 for c in cells],
        "prompts": [c.prompts for c in cells],
        "tokens": [c.tokens for c in cells],
        "each": [c.tokens / c.prompts for c in cells],
        "bucket": [c.bucket for c in cells],
    }
    colours = {name: b.colour for name, b in palette.BUCKETS.items() if name != "unseen"}
    spec = {
        "mark": {"type": "circle", "opacity": 0.8},
        "encoding": {
            "x": {
                "field": "rate", "type": "quantitative", "title": "success rate at the last visit",
                "axis": {"format": ".0%", "grid": False, "values": QUARTERS},
                "scale": {"domain": [-0.05, 1.05], "nice": False},  # room for the circles of 0 and 1
            },
            "y": {
                "field": "visits", "type": "quantitative", "title": "visits",
                "scale": {"type": "log", "base": 2, "nice": False, "padding": 14},
                "axis": {"labelExpr": POWERS},
            },
            "size": {"field": size, "type": "quantitative", "scale": {"range": [12, 900]}, "legend": None},
            "color": {**_colour("bucket", colours), "legend": {"columns": 3}},
            "tooltip": [
                _tip("rate", "success rate near", ".1~%"), _tip("least", "visits from", ",d"),
                _tip("most", "to", ",d"), _tip("prompts", "prompts", ",d"), _tip("tokens", "tokens", ",d"),
                _tip("each", "tokens per prompt", ",.0f"), _tip("bucket", "most are"),
            ],
        },
    }  # fmt: skip
    draw("chart-spend", table, spec, "Prompts by success rate and visits", 260)


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
    intervals = [wilson(v.success_rate or 0.0, v.n - v.n_failed) for v in rows]
    table: Table = {
        "step": [*(v.step for v in rows), *empty],
        "rate": [*(v.success_rate for v in rows), *empty],
        "low": [*(low for low, _ in intervals), *empty],
        "high": [*(high for _, high in intervals), *empty],
        "stage": [*(v.stage for v in rows), *empty],
        "bucket": [*(v.bucket for v in rows), *empty],
        "rollouts": [*(v.n for v in rows), *empty],
        "tokens": [*(v.tokens for v in rows), *empty],
        "variance": [*(v.reward_variance for v in rows), *empty],
        "threshold": [*([None] * len(rows)), *(value for _, value in marks)],
        "name": [*([None] * len(rows)), *(f"{name} {100 * value:g}%" for name, value in marks)],
    }
    x = {**_x("step"), "scale": {"nice": True, "zero": False, "padding": 12}}
    y = {
        "field": "rate", "type": "quantitative", "title": "success rate",
        "axis": {"format": ".0%", "values": QUARTERS}, "scale": {"domain": [0, 1.1], "nice": False},
    }  # fmt: skip
    is_visit, is_threshold = [{"filter": "isValid(datum.rate)"}], [{"filter": "isValid(datum.threshold)"}]
    colour = {**_colour("bucket", colours), "legend": {"columns": 3, "symbolOpacity": 1}}
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
                "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.35},
                "encoding": {
                    "x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"},
                    "color": colour,
                },
            },
            {
                "transform": is_visit,
                "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
                "encoding": {
                    "x": x, "y": y, "color": colour,
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
                        _tip("rate", "success rate", ".1%"), _tip("low", "95% from", ".1%"),
                        _tip("high", "to", ".1%"), _tip("variance", "reward variance", ".3f"),
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
