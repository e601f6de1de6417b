"""What a run's evaluations said of each benchmark: the points of a chart, and a table of all benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from api.schemas import BenchmarkOut, EvaluationOut
from ui import blocks, text

HELD_OUT = "held-out"
MEAN = "mean of benchmarks"  # over the run's own, besides the held-out set; no benchmark has a name with spaces


class Measured(NamedTuple):
    """What one evaluation said of one benchmark, or of their mean."""

    step: int
    rollouts: int  # spent on training until then
    accuracy: float
    stderr: float
    greedy: float | None


def names(evaluations: Sequence[EvaluationOut]) -> list[str]:
    """Whose accuracy there is to show: the held-out set, the other benchmarks, and their mean when they are several."""
    found = list(dict.fromkeys([HELD_OUT, *(b.name for e in evaluations for b in e.benchmarks)]))
    averaged = len(found) > 2 and any(e.mean_accuracy is not None for e in evaluations)
    return [*found, MEAN] if averaged else found


def series(evaluations: Sequence[EvaluationOut], name: str) -> list[Measured]:
    """What the evaluations said of one of `names`, in their order. Who said nothing of it is left out."""
    if name == HELD_OUT:  # in evaluations of older versions, too, which list no benchmarks
        return [
            Measured(e.step, e.rollouts_spent, e.sampled_accuracy, e.stderr, e.greedy_accuracy) for e in evaluations
        ]
    if name == MEAN:
        return [
            Measured(e.step, e.rollouts_spent, e.mean_accuracy, e.mean_stderr or 0.0, None)
            for e in evaluations
            if e.mean_accuracy is not None
        ]
    return [
        Measured(e.step, e.rollouts_spent, b.accuracy, b.stderr, b.greedy_accuracy)
        for e in evaluations
        for b in e.benchmarks
        if b.name == name
    ]


def table(evaluations: Sequence[EvaluationOut]) -> None:
    """A benchmark a row, as it was measured last, and the mean."""
    newest = {b.name: b for e in evaluations for b in e.benchmarks}
    rows = [_row(name, series(evaluations, name), newest.get(name)) for name in names(evaluations)]
    k = 'title="k: all samples of a prompt"'
    head = [
        "benchmark", "newest", "best", f"<span {k}>pass@k</span>", f"<span {k}>maj@k</span>", "greedy",
        "prompts × samples",
    ]  # fmt: skip
    blocks.table(head, rows, right=range(1, len(head)), caption="Benchmarks")


def _row(name: str, measured: Sequence[Measured], newest: BenchmarkOut | None) -> list[str]:
    """newest: None of the mean."""
    best = max(measured, key=lambda m: m.accuracy)
    row = [escape(name), _accuracy(measured[-1]), _accuracy(best)]
    if newest is None:
        return [f"<b>{row[0]}</b>", *row[1:], "–", "–", "–", "–"]
    curve = ", ".join(f"pass@{k} {text.percent(value)}" for k, value in newest.pass_at.items())
    return [
        *row,
        f'<span title="{escape(curve)}">{text.percent(newest.pass_at.get(str(newest.samples)))}</span>',
        text.percent(newest.majority),
        text.percent(newest.greedy_accuracy),
        f"{newest.n_prompts:,} × {newest.samples:,}",
    ]


def _accuracy(measured: Measured) -> str:
    faint = f"± {text.percent(measured.stderr)} · step {measured.step:,}"
    return f'<b>{text.percent(measured.accuracy)}</b> <span class="pc-faint">{faint}</span>'
