"""`pilot compare`: runs side by side in the terminal."""

from __future__ import annotations

from typing import Any

from api.client import Client
from api.schemas import Comparison, RunGroup
from cli.failure import told
from cli.table import table
from cli.watch import accuracy, run_of


def compare(client: Client, run_ids: list[str], by: str, target: float | None, baseline: str | None) -> Comparison:
    """Raises Failure, also when the baseline is none of the runs."""
    runs = [run_of(client, run_id) for run_id in run_ids]
    with told():
        return client.compare(
            runs, points=2, target=target, by=by, baseline=None if baseline is None else run_of(client, baseline)
        )


def told_of(found: Comparison) -> str:
    """A table of groups, and one of the config fields in which they differ."""
    base = found.groups[found.baseline].name
    target = "No target: not every run was evaluated." if found.target is None else f"Target: {found.target:.0%}."
    rows = [("RUNS", "REACHED", "ROLLOUTS", "TOKENS", "STEPS", "HOURS", "TIMES FEWER", "ACCURACY", "BEST")]
    for at, group in enumerate(found.groups):
        costs = group.to_target
        rows.append((
            group.name, f"{group.reached}/{len(group.runs)}", _count(costs.rollouts), _count(costs.tokens),
            _count(costs.steps), "never" if costs.hours is None else f"{costs.hours:.2f}",
            "baseline" if at == found.baseline else _ratio(group), accuracy(group.accuracy),
            accuracy(group.best_accuracy),
        ))  # fmt: skip
    ratios = f"times fewer {found.by} than {base}, with 95% intervals from three seeds on."
    words = f"{target} Medians until it is reached; {ratios}"
    parts = [table(rows), "", words]
    if found.differences:
        head = ("CONFIG", *(group.name for group in found.groups))
        parts += ["", table([head, *((d.field, *map(_value, d.values)) for d in found.differences)])]
    return "\n".join(parts)


def _count(cost: float | None) -> str:
    return "never" if cost is None else f"{cost:,.0f}"


def _ratio(group: RunGroup) -> str:
    found = group.against
    if found is None:
        return "-"
    if found.value is None:
        return "the baseline never does"
    if found.low is None and found.high is None:
        return f"{found.value:.2f}"
    low, high = (f"{end:.2f}" if end is not None else "?" for end in (found.low, found.high))
    return f"{found.value:.2f} ({low}-{high})"


def _value(value: Any) -> str:
    return "-" if value is None else str(value)
