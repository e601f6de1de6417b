"""What several runs tell together: which differ by their seed only, what each such group spent until it reached an
accuracy, against one of them as the baseline, and in what their configs differ.

bench/rollouts_to_target.py measures with the same two functions, `first_reached` and `interval`.
"""

from __future__ import annotations

import json
import math
import os.path
import re
from collections.abc import Sequence
from statistics import median, median_low
from typing import Any, Literal, NamedTuple

from api.schemas import ComparedRun, ConfigDifference, Costs, Ratio, RunGroup

Measure = Literal["rollouts", "tokens", "steps", "hours"]
MEASURES: tuple[Measure, ...] = ("rollouts", "tokens", "steps", "hours")
NEVER = 1e300  # in place of infinity, so that two that never get there are equal: their ratio is 1
RESAMPLES = 4000
FEWEST_SEEDS = 3  # of an interval: the bootstrap of two has three outcomes, and says little of other seeds


class Interval(NamedTuple):
    value: float
    low: float
    high: float


def first_reached(spent: Sequence[float], accuracy: Sequence[float], target: float) -> float:
    """What was spent when the accuracy first reached the target, between evaluations by a straight line; infinity when
    it never does. spent[i] belongs to accuracy[i].
    """
    points = list(zip(spent, accuracy, strict=True))
    for (before, low), (after, high) in zip(points, points[1:], strict=False):
        if high >= target:
            share = (target - low) / (high - low) if high > low else 0.0
            return before + max(0.0, share) * (after - before)
    return math.inf


def interval(mine: Sequence[float], theirs: Sequence[float], *, paired: bool = True) -> Interval:
    """theirs / mine of the medians (above 1: mine needs less), with a 95% bootstrap interval over seeds.

    paired: value i of both is of the same seed, and both are resampled together; else each by itself.
    """
    import numpy as np  # only here: an API that compares nothing is smaller without it

    rng = np.random.default_rng(0)
    a, b = np.minimum(mine, NEVER), np.minimum(theirs, NEVER)
    index = rng.integers(0, len(a), (RESAMPLES, len(a)))
    other = index if paired else rng.integers(0, len(b), (RESAMPLES, len(b)))
    # The middle two of an even number of seeds are halved first: two that are NEVER must not overflow.
    with np.errstate(divide="ignore", invalid="ignore"):  # the target may be reached before anything is spent
        ratios = _median(b[other]) / _median(a[index])
        value = _median(b[None])[0] / _median(a[None])[0]
        low, high = np.quantile(ratios, [0.025, 0.975])
    return Interval(float(value), float(low), float(high))


def _median(rows: Any) -> Any:
    """The median of each row."""
    import numpy as np

    ordered, n = np.sort(rows, axis=1), rows.shape[1]
    return ordered[:, (n - 1) // 2] / 2 + ordered[:, n // 2] / 2


def grouped(runs: Sequence[ComparedRun]) -> list[list[ComparedRun]]:
    """Runs whose configs are the same but for seed and name, together; in the order in which they are first named."""
    found: dict[str, list[ComparedRun]] = {}
    for run in runs:
        rest = {key: value for key, value in run.config.items() if key not in ("seed", "name")}
        found.setdefault(json.dumps(rest, sort_keys=True), []).append(run)
    return list(found.values())


def differences(groups: Sequence[Sequence[ComparedRun]]) -> list[ConfigDifference]:
    """Every field, by its dotted path, that is not the same in all groups; None where a group's config has no value."""
    flat = [_flat(group[0].config) for group in groups]
    fields = dict.fromkeys(field for config in flat for field in config if field not in ("seed", "name"))
    values = {field: [config.get(field) for config in flat] for field in fields}
    return [ConfigDifference(field=f, values=v) for f, v in values.items() if any(other != v[0] for other in v)]


def _flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{before}{key}.")
        else:
            flat[before + key] = value
    return flat


def default_target(groups: Sequence[Sequence[ComparedRun]]) -> float | None:
    """The highest accuracy, in whole percents, that more than half of every group reach; None when not all of them were
    evaluated.
    """
    best = [[max(run.evaluations.accuracy, default=None) for run in group] for group in groups]
    known = [[value for value in group if value is not None] for group in best]
    return math.floor(100 * min(map(median_low, known))) / 100 if known == best else None


def summed_up(
    groups: Sequence[Sequence[ComparedRun]], target: float | None, by: Measure, baseline: int
) -> list[RunGroup]:
    """One row a group. baseline: the group that the others' `by` until the target is compared with."""
    names = _names(groups, differences(groups))
    costs = [{measure: [_cost(run, measure, target) for run in group] for measure in MEASURES} for group in groups]
    rows = []
    for at, group in enumerate(groups):
        against = None
        if at != baseline:
            against = _against(group, costs[at][by], groups[baseline], costs[baseline][by])
        rows.append(
            RunGroup(
                name=names[at],
                runs=[run.run.id for run in group],
                seeds=[int(run.config.get("seed", 0)) for run in group],
                reached=sum(math.isfinite(cost) for cost in costs[at]["rollouts"]),
                to_target=Costs(**{measure: _finite(_half_way(costs[at][measure])) for measure in MEASURES}),
                against=against,
                accuracy=_middle(run.run.accuracy for run in group),
                best_accuracy=_middle(run.run.best_accuracy for run in group),
                reward_variance=_middle(run.run.reward_variance for run in group),
            )
        )
    return rows


def _cost(run: ComparedRun, measure: Measure, target: float | None) -> float:
    curve = run.evaluations
    spent = curve.step if measure == "steps" else getattr(curve, measure)
    return math.inf if target is None else first_reached(spent, curve.accuracy, target)


def _against(
    mine: Sequence[ComparedRun], my_costs: list[float], base: Sequence[ComparedRun], base_costs: list[float]
) -> Ratio | None:
    """None when half of `mine` never gets there: there is nothing to compare. Seeds that both have are paired."""
    if not math.isfinite(_half_way(my_costs)):
        return None
    of_mine = {run.config.get("seed", 0): cost for run, cost in zip(mine, my_costs, strict=True)}
    of_base = {run.config.get("seed", 0): cost for run, cost in zip(base, base_costs, strict=True)}
    shared = sorted(of_mine.keys() & of_base.keys())
    # Pairs only when nobody is left out for it, and every run has a seed of its own.
    paired = len(shared) == len(mine) == len(base)
    if paired:
        my_costs, base_costs = [of_mine[seed] for seed in shared], [of_base[seed] for seed in shared]
    found = interval(my_costs, base_costs, paired=paired)
    many = min(len(mine), len(base)) >= FEWEST_SEEDS
    return Ratio(
        value=_bounded(found.value),
        low=_bounded(found.low) if many else None,
        high=_bounded(found.high) if many else None,
        paired=paired,
    )


def _bounded(ratio: float) -> float | None:
    """None: one of the two never gets there."""
    return ratio if 1 / math.sqrt(NEVER) < ratio < math.sqrt(NEVER) else None


def _half_way(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] / 2 + ordered[len(ordered) // 2] / 2


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _middle(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _names(groups: Sequence[Sequence[ComparedRun]], differ: Sequence[ConfigDifference]) -> list[str]:
    """What the names of a group's runs have in common; where groups would share a name, with what they differ in."""
    names = []
    common = [_common(group) for group in groups]
    for at, name in enumerate(common):
        same = [i for i, other in enumerate(common) if other == name]
        told = [d for d in differ if d.values[at] is not None and any(d.values[i] != d.values[at] for i in same)]
        words = ", ".join(f"{d.field.rsplit('.', 1)[-1]} {_short(d.values[at])}" for d in told[:3])
        names.append(f"{name}, {words}" if words else name)
    return [f"{name} ({at + 1})" if names.count(name) > 1 else name for at, name in enumerate(names)]


def _common(group: Sequence[ComparedRun]) -> str:
    names = {run.run.name for run in group}
    if len(names) == 1:
        return names.pop()
    prefix = re.sub(r"[\s_.+-]*(s|seed)?[\s_.+-]*$", "", os.path.commonprefix(list(names)))
    return prefix if len(prefix) > 2 else group[0].run.name


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)[:24]
