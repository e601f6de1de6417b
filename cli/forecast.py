"""`pilot forecast CONFIG`: what a run would sample and take, before it starts."""

from __future__ import annotations

from api.schemas import Forecast, Range
from cli.table import counted, table


def forecast_told(told: Forecast) -> str:
    """By stage, with ranges, and what it rests on."""
    hours = "GPU-HOURS" if told.device == "cuda" else "HOURS OF A CPU SLOT"
    rows = [("STAGE", "ROLLOUTS", "TOKENS", hours)]
    rows += [(s.stage, _count(s.rollouts), _count(s.tokens), _hours(s.gpu_hours)) for s in told.stages]
    rows.append(("training", _count(told.rollouts), _count(told.tokens), f"{_hours(told.gpu_hours)} with all the rest"))
    lines = [f"{told.steps:,} steps; {told.ends_by} ends it.", "", table(rows), ""]
    if told.shares:
        shares = ", ".join(f"{name} {_percent(share)}" for name, share in told.shares.items())
        lines.append(f"Prompts looked at: {shares}.")
    if told.saving is not None:
        lines.append(f"Saves {_percent(told.saving)} of the rollouts of GRPO for the same number of useful prompts.")
    if told.runs:
        seen = f"{counted(told.prompts, 'prompt')} and {counted(told.visits, 'visit')}"
        but = ", but for what is not known" if told.unknown else ""
        lines.append(
            f"Rests on {counted(told.runs, 'run')}, {seen}. Ranges of rollouts and tokens are "
            f"meant to hold in 9 of 10 cases{but}; those of hours, while the device is as busy as it was."
        )
    lines += [f"Not known: {words}" for words in told.unknown]
    lines += [f"Advice: {words}" for words in told.advice]
    return "\n".join(lines)


def _count(r: Range) -> str:
    if r.low is None or r.high is None:
        return "not known"
    if r.low == r.high:
        return f"{r.high:,.0f}"
    if r.expected is None:
        return f"{r.low:,.0f} to {r.high:,.0f}"
    return f"{r.expected:,.0f} ({r.low:,.0f} to {r.high:,.0f})"


def _hours(r: Range) -> str:
    if r.expected is None or r.low is None or r.high is None:
        return "not known"
    return f"{r.expected:.3g} ({r.low:.3g} to {r.high:.3g})"


def _percent(r: Range) -> str:
    assert r.expected is not None and r.low is not None and r.high is not None
    return f"{r.expected:.0%} ({r.low:.0%} to {r.high:.0%})"
