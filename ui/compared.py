"""Curves of runs that are compared: one line a group, with the range of its seeds; and the same as CSV."""

from __future__ import annotations

import csv
import io
from bisect import bisect_right
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from api.schemas import AccuracyCurve, ComparedRun, Comparison, RunGroup
from ui import palette
from ui.charts import SHORT, STROKES, Table, draw, placeholder, thin

By = Literal["rollouts", "tokens", "steps", "hours"]
AXES: dict[By, str] = {
    "rollouts": "training rollouts spent",
    "tokens": "training tokens spent",
    "steps": "training steps",
    "hours": "hours that trainers ran",
}
GRID = 60
DASHES = ([1, 0], [6, 3], [2, 3])


def spent(curve: AccuracyCurve, by: By) -> Sequence[float]:
    """What had been spent at each evaluation."""
    return curve.step if by == "steps" else getattr(curve, by)


def chart(compared: Comparison, by: By) -> None:
    """Sampled accuracy against what was spent. Groups of several runs show their median, and its range over seeds."""
    runs = {run.run.id: run for run in compared.runs}
    if not any(run.evaluations.accuracy for run in compared.runs):
        placeholder("None of these runs was evaluated yet. The first evaluation comes before training starts.", 420)
        return
    rows: list[dict[str, Any]] = []
    for at, group in enumerate(compared.groups):
        members = [runs[run_id] for run_id in group.runs if runs[run_id].evaluations.accuracy]
        dash = str(at // len(palette.SERIES))
        for run in members:
            rows += _points(run, group.name, dash, by, "run" if len(members) > 1 else "middle")
        if len(members) > 1:
            rows += [{"group": group.name, "dash": dash, "kind": "middle", "line": group.name} | place
                     for place in band([run.evaluations for run in members], by)]  # fmt: skip
    if compared.target is not None:
        rows.append({"kind": "target", "accuracy": compared.target, "line": f"target {compared.target:.0%}"})
    names = ("group", "dash", "kind", "line", "x", "accuracy", "low", "high", "seed", "step", "stderr")
    table: Table = {name: [row.get(name) for row in rows] for name in names}
    words = f"Accuracy of {len(compared.groups)} groups of runs against {AXES[by]}; the table below has the numbers"
    # Only layers with rows: of one without Vega says that its scales have no end.
    there = {"band" for row in rows if "low" in row} | {"points" for row in rows if "step" in row}
    layers = _layers([group.name for group in compared.groups], by)
    drawn = [layer for of, layer in layers if of in there | {row["kind"] for row in rows}]
    draw("chart-compare", table, {"layer": drawn}, words, 420)


def band(curves: Sequence[AccuracyCurve], by: By) -> list[dict[str, float]]:
    """Median, smallest and largest accuracy where all of the curves are known; straight lines between evaluations."""
    ends = [(spent(curve, by)[0], spent(curve, by)[-1]) for curve in curves]
    first, last = max(low for low, _ in ends), min(high for _, high in ends)
    if last <= first:
        return []
    grid = [first + (last - first) * i / (GRID - 1) for i in range(GRID)]
    found = []
    for x in grid:
        values = [_at(spent(curve, by), curve.accuracy, x) for curve in curves]
        found.append({"x": x, "accuracy": median(values), "low": min(values), "high": max(values)})
    return found


def _at(xs: Sequence[float], ys: Sequence[float], x: float) -> float:
    after = min(max(bisect_right(xs, x), 1), len(xs) - 1)
    if len(xs) == 1 or xs[after] == xs[after - 1]:
        return ys[-1]
    share = (x - xs[after - 1]) / (xs[after] - xs[after - 1])
    return ys[after - 1] + min(1.0, max(0.0, share)) * (ys[after] - ys[after - 1])


def _points(run: ComparedRun, group: str, dash: str, by: By, kind: str) -> list[dict[str, Any]]:
    curve = run.evaluations
    return [
        {"group": group, "dash": dash, "kind": kind, "line": run.run.name, "x": spent(curve, by)[i],
         "accuracy": curve.accuracy[i], "seed": run.config.get("seed", 0), "step": curve.step[i],
         "stderr": curve.stderr[i]}
        for i in thin(range(len(curve.accuracy)), 200)
    ]  # fmt: skip


def _layers(groups: Sequence[str], by: By) -> list[tuple[str, dict[str, Any]]]:
    """Each with what its rows are."""
    x = {
        "field": "x", "type": "quantitative", "title": AXES[by], "axis": {"labelExpr": SHORT},
        "scale": {"nice": False, "zero": by != "hours"},
    }  # fmt: skip
    y = {
        "field": "accuracy", "type": "quantitative", "scale": {"zero": False, "nice": True},
        "axis": {"format": ".0%", "title": "held-out accuracy, sampled"},
    }  # fmt: skip
    colours = [palette.SERIES[at % len(palette.SERIES)] for at in range(len(groups))]
    colour = {
        "field": "group", "type": "nominal", "scale": {"domain": list(groups), "range": colours},
        "legend": {**STROKES, "columns": 3, "labelLimit": 320},
    }  # fmt: skip
    dash = {
        "field": "dash", "type": "nominal", "legend": None,
        "scale": {"domain": [str(i) for i in range(len(DASHES))], "range": list(DASHES)},
    }  # fmt: skip
    tips = [
        {"field": "group", "title": "group"}, {"field": "line", "title": "run"}, {"field": "seed", "title": "seed"},
        {"field": "accuracy", "title": "accuracy", "type": "quantitative", "format": ".1%"},
        {"field": "stderr", "title": "± stderr", "type": "quantitative", "format": ".1%"},
        {"field": "step", "title": "after step", "type": "quantitative", "format": ",d"},
        {"field": "x", "title": by, "type": "quantitative", "format": ",.4~g" if by == "hours" else ",d"},
    ]  # fmt: skip
    level = {"y": {"field": "accuracy", "type": "quantitative"}}
    return [
        ("band", {
            "transform": [{"filter": "isValid(datum.low)"}],
            "mark": {"type": "area", "opacity": 0.15},
            "encoding": {"x": x, "y": {**y, "field": "low"}, "y2": {"field": "high"}, "color": colour},
        }),
        ("run", {
            "transform": [{"filter": "datum.kind == 'run'"}],
            "mark": {"type": "line", "strokeWidth": 1, "opacity": 0.3},
            "encoding": {"x": x, "y": y, "color": colour, "detail": {"field": "line", "type": "nominal"}},
        }),
        ("middle", {
            "transform": [{"filter": "datum.kind == 'middle'"}],
            "mark": {"type": "line", "strokeWidth": 2.4},
            "encoding": {"x": x, "y": y, "color": colour, "strokeDash": dash},
        }),
        ("points", {
            "transform": [{"filter": "isValid(datum.step)"}],
            "mark": {"type": "point", "filled": True, "size": 26, "opacity": 0.75},
            "encoding": {"x": x, "y": y, "color": colour, "tooltip": tips},
        }),
        ("target", {
            "transform": [{"filter": "datum.kind == 'target'"}],
            "mark": {"type": "rule", "strokeDash": [3, 4], "color": palette.NEUTRAL},
            "encoding": level,
        }),
        ("target", {
            "transform": [{"filter": "datum.kind == 'target'"}],
            "mark": {
                "type": "text", "align": "left", "baseline": "bottom", "dx": 4, "dy": -3, "fontSize": 11,
                "color": palette.NEUTRAL,
            },
            "encoding": {**level, "x": {"value": 0}, "text": {"field": "line", "type": "nominal"}},
        }),
    ]  # fmt: skip


def curves_csv(compared: Comparison) -> str:
    """Every evaluation of every run, a row each."""
    groups = {run_id: group.name for group in compared.groups for run_id in group.runs}
    columns = ("step", "rollouts", "tokens", "hours", "accuracy", "stderr", "greedy_accuracy")
    rows: list[list[Any]] = [["group", "run", "name", "seed", *columns]]
    for run in compared.runs:
        values = zip(*(getattr(run.evaluations, name) for name in columns), strict=True)
        rows += [[groups[run.run.id], run.run.id, run.run.name, run.config.get("seed", 0), *row] for row in values]
    return _csv(rows)


def table_csv(compared: Comparison) -> str:
    """What the table of groups shows, a row a group; an empty cell where it never reaches the target."""
    rows: list[list[Any]] = [
        ["group", "runs", "seeds", "target", "reached", "rollouts", "tokens", "steps", "hours",
         f"times fewer {compared.by} than {compared.groups[compared.baseline].name}", "low", "high", "accuracy",
         "best accuracy", "reward variance"]
    ]  # fmt: skip
    for group in compared.groups:
        rows.append([
            group.name, len(group.runs), " ".join(map(str, group.seeds)), compared.target, group.reached,
            *group.to_target.model_dump().values(), *_ratio(group), group.accuracy, group.best_accuracy,
            group.reward_variance,
        ])  # fmt: skip
    return _csv(rows)


def _ratio(group: RunGroup) -> list[float | None]:
    found = group.against
    return [found.value, found.low, found.high] if found else [None, None, None]


def _csv(rows: list[list[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
