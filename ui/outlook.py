"""The forecast of a run as the new-run page shows it."""

from __future__ import annotations

from html import escape

import streamlit as st

from api.schemas import Forecast, Range
from ui import blocks, palette, text


def show(forecast: Forecast, price: tuple[float, str] | None) -> None:
    """price: of a GPU-hour, and its currency; a run on the CPU has none."""
    st.html(
        '<div class="pc-heading"><h2>Forecast</h2>'
        f"<span>{text.number(forecast.steps)} steps, until <code>{escape(forecast.ends_by)}</code></span></div>"
    )
    rows = [
        [f"<b>{stage.stage}</b>", _count(stage.rollouts), _count(stage.tokens), _hours(stage.gpu_hours)]
        for stage in forecast.stages
    ]
    training = [_count(forecast.rollouts), _count(forecast.tokens), _hours(forecast.gpu_hours)]
    rows.append(["<b>in all</b>", *training])
    hours = "GPU-hours" if forecast.device == "cuda" else "hours of a CPU slot"
    blocks.table(["stage", "rollouts", "tokens", hours], rows, right=(1, 2, 3), caption="Forecast by stage")
    lines = ["In all: rollouts and tokens of training; hours of everything, evaluation included."]
    lines += [f"<b>Advice:</b> {escape(words)}" for words in forecast.advice]
    if price is not None and forecast.device == "cuda" and forecast.gpu_hours.expected is not None:
        lines.append(f"<b>{_money(forecast.gpu_hours, price)}</b> at {price[0]:,g} {escape(price[1])} a GPU-hour.")
    if forecast.shares:
        st.html(_shares(forecast.shares))
    if forecast.saving is not None:
        lines.append(
            f"Saves <b>{_percent(forecast.saving)}</b> of the rollouts that GRPO would sample for the same number of "
            "prompts that teach."
        )
    if forecast.runs:
        runs = text.counted(forecast.runs, "run")
        seen = f"{text.counted(forecast.prompts, 'prompt')}, {text.counted(forecast.visits, 'visit')}"
        lines.append(
            f"Rests on {runs} of this model on these prompts: {seen}. Ranges of rollouts and tokens are meant to hold "
            f"in 9 of 10 cases{', but for what is not known' if forecast.unknown else ''}; those of hours, while the "
            "device is as busy as it was."
        )
    lines += [f"<b>Not known:</b> {escape(words)}" for words in forecast.unknown]
    st.html("".join(f'<p class="pc-note">{line}</p>' for line in lines))


def _shares(shares: dict[str, Range]) -> str:
    """Where the prompts that are looked at land, as one bar with its words."""
    counts = {name: round(1000 * (share.expected or 0)) for name, share in shares.items()}
    words = " ".join(
        f'<span class="pc-dot" style="--c:{palette.BUCKETS[name].colour}" title="{_percent(share)}"><i></i>'
        f"{name} {text.percent(share.expected, 0)}</span>"
        for name, share in shares.items()
    )
    return f'{blocks.bucket_bar(counts)}<div class="pc-legend">{words}</div>'


def _count(r: Range) -> str:
    if r.low is None or r.high is None:
        return '<span class="pc-faint">not known</span>'
    if r.low == r.high:
        return text.hover(round(r.high))
    if r.expected is None:
        return f'<span class="pc-faint">{text.number(round(r.low))} to {text.number(round(r.high))}</span>'
    return f"{text.hover(round(r.expected))}{_between(text.number(round(r.low)), text.number(round(r.high)))}"


def _hours(r: Range) -> str:
    if r.expected is None or r.low is None or r.high is None:
        return '<span class="pc-faint">not known</span>'
    return f"{text.hover(r.expected, 2)}{_between(text.number(r.low, 2), text.number(r.high, 2))}"


def _between(low: str, high: str) -> str:
    return f'<br><small class="pc-faint">{low}–{high}</small>'


def _percent(r: Range) -> str:
    return f"{text.percent(r.expected, 0)} ({text.percent(r.low, 0)} to {text.percent(r.high, 0)})"


def _money(hours: Range, price: tuple[float, str]) -> str:
    low, expected, high = (f"{(hour or 0) * price[0]:,.2f}" for hour in (hours.low, hours.expected, hours.high))
    return f"{expected} {escape(price[1])} ({low} to {high})"
