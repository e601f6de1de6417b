"""The pieces pages are made of, as HTML. Everything that a user or a model wrote is escaped here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from api.schemas import FateCount, Ledger, PromptRow, SettingsOut
from ui import palette, text
from ui.health import Finding, variance


def state_chip(state: str, stop_requested: bool = False) -> str:
    label = "stopping" if stop_requested and state == "running" else state
    colour = palette.STATE_COLOURS.get(label, palette.NEUTRAL)
    moving = " pc-moving" if label in ("starting", "running", "stopping") else ""
    return f'<span class="pc-chip{moving}" style="--c:{colour}"><i></i>{escape(label)}</span>'


def bucket_chip(name: str) -> str:
    bucket = palette.BUCKETS.get(name)
    colour, meaning = (bucket.colour, bucket.meaning) if bucket else (palette.NEUTRAL, "")
    return (
        f'<span class="pc-chip pc-bucket" style="--c:{colour}" title="{escape(meaning)}"><i></i>{escape(name)}</span>'
    )


def bucket_bar(counts: dict[str, int]) -> str:
    """The buckets of a pool as one small stacked bar."""
    total = sum(counts.values())
    if not total:
        return '<span class="pc-faint">–</span>'
    parts = [
        f'<i style="flex:{counts[name]};background:{palette.BUCKETS[name].colour}"></i>'
        for name in palette.STACK
        if counts.get(name)
    ]
    words = ", ".join(f"{counts.get(name, 0):,} {name}" for name in palette.BUCKETS)
    return f'<span class="pc-stack" role="img" aria-label="{words}" title="{words}">{"".join(parts)}</span>'


def bar(share: float | None, colour: str = "currentColor") -> str:
    width = 100 * min(1.0, max(0.0, share or 0.0))
    return f'<span class="pc-bar"><i style="width:{width:.1f}%;background:{colour}"></i></span>'


def of_budget(value: int, budget: int | None, unit: str = "") -> str:
    """A count, with its budget and a bar when there is one."""
    if budget is None:
        return f"{text.hover(value)}{unit}"
    words = f'{text.hover(value)} <span class="pc-faint">/ {text.hover(budget)}{unit}</span>'
    return words + bar(value / budget, palette.ACCENT)


def sparkline(points: Sequence[tuple[float, float]], words: str) -> str:
    """A line through (x, y) points in order of x, as high as its own values. Fewer than two leave room for one."""
    if len(points) < 2:
        return '<span class="pc-sparkline"></span>'
    xs, ys = [x for x, _ in points], [y for _, y in points]
    wide, high = max(xs[-1] - xs[0], 1e-9), max(max(ys) - min(ys), 1e-9)
    places = [(100 * (x - xs[0]) / wide, 92 - 84 * (y - min(ys)) / high) for x, y in points]
    upper = [f"{x:.1f}% {y - 4:.1f}%" for x, y in places]
    lower = [f"{x:.1f}% {y + 4:.1f}%" for x, y in reversed(places)]
    told = f"{words}, {len(points)} points from {text.percent(ys[0])} to {text.percent(ys[-1])}"
    return (
        f'<span class="pc-sparkline" role="img" aria-label="{told}" title="{told}">'
        f'<i style="background:{palette.ACCENT};clip-path:polygon({",".join(upper + lower)})"></i></span>'
    )


def meter(label: str, value: str, below: str = "", share: float | None = None) -> str:
    filled = "" if share is None else bar(share, palette.ACCENT)
    return (
        f'<div class="pc-meter"><span>{escape(label)}</span><b>{value}</b>'
        f'{filled}<small>{below or "&nbsp;"}</small></div>'
    )  # fmt: skip


def bucket_tile(name: str, count: int, total: int, change: int, series: Sequence[int]) -> None:
    """One bucket's count, its share of the pool, its change in the last step, and how it went."""
    bucket = palette.BUCKETS[name]
    delta = "" if change == 0 else f"{change:+,}".replace("-", "−")
    shown, share = (text.number(count), escape(text.share(count, total))) if total else ("–", "–")
    prompts = "1 prompt" if count == 1 else f"{count:,} prompts"
    st.html(
        f'<div class="pc-tile" style="--c:{bucket.colour}" role="group" aria-label="{prompts} {name}">'
        f'<div class="pc-tile-head"><i></i>{name}<em title="change in the last step">{delta}</em></div>'
        f'<div class="pc-tile-value" data-count="{count}" title="{prompts}">{shown}'
        f"<small>{share}</small></div>"
        f'<div class="pc-tile-meaning">{bucket.meaning}</div>{_spark(series)}</div>'
    )


def _spark(series: Sequence[int]) -> str:
    top = max(series, default=0)
    if len(series) < 2 or top == 0:
        return '<div class="pc-spark"></div>'
    last = len(series) - 1
    edge = ",".join(f"{100 * i / last:.1f}% {100 - 96 * v / top:.1f}%" for i, v in enumerate(series))
    return f'<div class="pc-spark"><i style="clip-path:polygon(0% 100%,{edge},100% 100%)"></i></div>'


def health_strip(found: Sequence[Finding]) -> None:
    words = "".join(
        f'<span class="pc-finding pc-{f.level}"><b>{escape(f.title)}</b> {escape(f.detail)}</span>' for f in found
    )
    st.html(f'<div class="pc-findings" role="status">{words}</div>')


def table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = (), caption: str = "") -> None:
    """Cells are HTML already. right: the columns that hold numbers. A long table scrolls by itself."""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(f"<{tag}{' class=pc-num' if i in right else ''}>{c}</{tag}>" for i, c in enumerate(row))

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    label = f' aria-label="{escape(caption)}"' if caption else ""
    st.html(
        f'<div class="pc-scroll"><table class="pc-table"{label}><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def ledger_table(
    ledger: Ledger | None,
    evaluated: FateCount,
    hours: float = 0.0,
    eval_hours: float = 0.0,
    settings: SettingsOut | None = None,
) -> None:
    """Every rollout and token by what became of it; the fates add up to what was sampled. Below them, apart from
    training, what evaluation has spent, and on which benchmarks.

    evaluated: by evaluation, all benchmarks together; the ledger of an older version names none. hours: of devices so
    far. eval_hours: of them, those of the run's own evaluations. Nobody measures the others by fate: each has its share
    of them by tokens, and so of the money, when a price is set.
    """
    if ledger is None or not (ledger.sampled.rollouts or evaluated.rollouts):
        st.html('<div class="pc-placeholder" style="height:200px">Nothing sampled yet.</div>')
        return
    total = ledger.sampled
    price = settings.price_per_gpu_hour if settings else None
    spent = {f.fate: f for f in ledger.fates if f.rollouts or f.tokens}
    unit, per_hour = text.unit_of_hours(max(hours, eval_hours))
    trained_hours = max(0.0, hours - eval_hours)
    known = [name for name in palette.FATES if name in spent] + [n for n in spent if n not in palette.FATES]

    def costs(cost: float) -> list[str]:
        lasted = f'<span title="{cost:.6f} hours">{escape(text.hundredths(cost * per_hour))}</span>'
        return [lasted] if price is None else [lasted, escape(text.hundredths(cost * price))]

    def row(fate: FateCount, name: str) -> list[str]:
        share = f'title="{text.percent(fate.rollouts / max(1, total.rollouts))} of all, {text.exact(fate.rollouts)}"'
        rollouts = f"<span {share}>{text.number(fate.rollouts)}</span>"
        cost = trained_hours * (fate.tokens / total.tokens if total.tokens else 0.0)
        return [name, rollouts, text.hover(fate.tokens), *costs(cost)]

    rows = [row(spent[name], _fate_name(name)) for name in known]
    rows.append([f"<b>{cell}</b>" for cell in row(total, "sampled")])
    if evaluated.rollouts:
        hint = "apart from training: in no fate; evaluations on demand have hours of their own, under Checkpoints"
        said = f'<span title="{hint}">evaluation</span>'
        cells = [said, text.hover(evaluated.rollouts), text.hover(evaluated.tokens), *costs(eval_hours)]
        rows.append([f"<b>{cell}</b>" for cell in cells])
    none = ["–"] * (1 if price is None else 2)  # nobody measures hours by benchmark
    if len(ledger.evaluation) > 1:
        rows += [
            [f'<span class="pc-part">{escape(b.benchmark)}</span>', text.hover(b.rollouts), text.hover(b.tokens), *none]
            for b in sorted(ledger.evaluation, key=lambda b: -b.rollouts)
        ]
    st.html(_fate_bar([spent[n] for n in known], total.rollouts))
    money = [escape(settings.currency)] if settings and price is not None else []
    hint = f"device-{unit}; those without evaluation, starting and saving among them, are shared by tokens"
    table(
        ["fate", "rollouts", "tokens", f'<span title="{hint}">{unit}</span>', *money], rows,
        right=(1, 2, 3, 4), caption="Spend by fate",
    )  # fmt: skip


def _fate_name(name: str) -> str:
    known = palette.FATES.get(name, palette.Fate(name, palette.NEUTRAL, name, ""))
    return (
        f'<span class="pc-dot" style="--c:{known.colour}" title="{escape(known.meaning)}"><i></i>'
        f"{escape(known.label)}</span>"
    )


def _fate_bar(fates: Sequence[FateCount], total: int) -> str:
    parts = "".join(
        f'<i style="flex:{max(0, f.rollouts)};background:'
        f'{palette.FATES[f.fate].colour if f.fate in palette.FATES else palette.NEUTRAL}"></i>'
        for f in fates
    )
    return f'<span class="pc-stack pc-thick" role="img" aria-label="{total:,} rollouts by fate">{parts}</span>'


def prompt_line(row: PromptRow) -> str:
    words = f"step {text.exact(row.step)} · variance {variance(row):.2f}"
    return (
        f'<div class="pc-prompt-line"><small>{words}</small>'
        f'<span class="pc-rate">{bar(row.success_rate, palette.BUCKETS[row.bucket].colour)}'
        f"{text.percent(row.success_rate, 0)}</span></div>"
    )


def empty(title: str, words: str) -> None:
    """Words are HTML already."""
    st.html(f'<div class="pc-empty"><b>{escape(title)}</b><p>{words}</p></div>')
