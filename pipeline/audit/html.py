"""The report as a web page: one file, no script, nothing fetched. The dashboard shows the same page in a frame."""

from __future__ import annotations

from html import escape

from pipeline.audit import svg
from pipeline.audit.report import Interval, MethodReplay, Report

# Those of the dashboard (a test compares them); this room may not import that one.
BUCKETS = {"deferred": "#D9480F", "ready": "#56B4F0", "skipped": "#E8A317", "evicted": "#0E9F7E"}
FATES = {
    "trained": ("#1F66D1", "trained on"),
    "buffered": ("#56B4F0", "in the buffer"),
    "pilot_skipped": ("#E8A317", "pilot, too easy"),
    "pilot_deferred": ("#D9480F", "pilot, too hard"),
    "pilot_evicted": ("#0E9F7E", "pilot, solved"),
    "downsampled": ("#A78BDB", "down-sampled"),
    "stale": ("#B98A62", "stale"),
    "discarded": ("#7D8597", "discarded"),
    "failed": ("#C2255C", "reward failed"),
}
ACCENT = "#6366E8"
MEANING = {
    "deferred": "too hard",
    "ready": "just right",
    "skipped": "too easy",
    "evicted": "solved",
}

STYLE = """
.a-report { line-height: 1.5; font-variant-numeric: tabular-nums; }
.a-report h2 { font-size: 1.05rem; font-weight: 620; margin: 0 0 .2rem; }
.a-report p, .a-report li { margin: .2rem 0; }
.a-faint, .a-report small, .a-report th { opacity: .68; }
.a-grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 340px), 1fr)); gap: 14px;
  margin: 14px 0; }
.a-two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.a-card { border: 1px solid color-mix(in srgb, currentColor 16%, transparent); border-radius: 10px;
  padding: 14px 16px; min-width: 0; }
.a-wide { grid-column: 1 / -1; }
.a-big { font-size: 2rem; font-weight: 680; line-height: 1.2; letter-spacing: -.02em; }
.a-chart { display: block; width: 100%; height: auto; font-size: 12px; }
.a-chart text { fill: currentColor; }
.a-line { stroke: currentColor; stroke-opacity: .16; }
.a-legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: .85rem; margin-top: .3rem; }
.a-dot { display: inline-flex; align-items: center; gap: .4em; }
.a-dot i { width: .7em; height: .7em; border-radius: 3px; flex: none; }
.a-stack { display: flex; gap: 1px; height: 13px; border-radius: 4px; overflow: hidden; min-width: 160px; }
.a-stack i { display: block; }
.a-scroll { overflow-x: auto; }
.a-report table { border-collapse: collapse; width: 100%; font-size: .88rem; }
.a-report th { text-align: left; font-weight: 500; font-size: .8rem; }
.a-report th, .a-report td { padding: .35rem .6rem; border: 0; vertical-align: top;
  border-bottom: 1px solid color-mix(in srgb, currentColor 14%, transparent); }
.a-report td:first-child { min-width: 11rem; }
.a-report tr:last-child td { border-bottom: 0; }
.a-report .a-num { text-align: right; white-space: nowrap; }
.a-prompt { overflow-wrap: anywhere; min-width: 12rem; font-size: .82rem;
  font-family: ui-monospace, Menlo, Consolas, monospace; }
""".strip()

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Rollout audit: {title}</title>
<style>:root {{ color-scheme: light dark; }}
body {{ font: 15px Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  max-width: 1180px; margin: 0 auto; padding: 18px 14px 40px;
  background: light-dark(#FFFFFF, #0E1117); color: light-dark(#171B26, #E6E9F0); }}
h1 {{ font-size: 1.5rem; margin: 0; }}
{style}</style></head>
<body><h1>Rollout audit</h1>{body}</body></html>
"""


def page(report: Report) -> str:
    """All that a log or a user wrote is escaped; the page forbids scripts and requests besides."""
    body = (
        f'<div class="a-report">{_facts(report)}'
        f'<div class="a-grid">{_answers(report)}</div>'
        f'<div class="a-grid">{_methods(report)}</div>'
        f'<div class="a-grid a-two">{_over_steps(report)}{_difficulty(report)}'
        f"{_dead(report)}{_trust(report)}</div></div>"
    )
    return _PAGE.format(title=escape(report.source), style=STYLE, body=body)


def _facts(r: Report) -> str:
    parts = [
        f"<code>{escape(r.source)}</code>",
        f"{FORMATS[r.format]}",
        f"{r.steps:,} steps ({r.first_step:,}–{r.last_step:,})",
        f"{r.prompts:,} prompts",
        f"{r.groups:,} groups of {r.group_size}",
        f"{r.rollouts:,} rollouts",
    ]
    if r.tokens is not None:
        parts.append(f"{r.tokens:,} response tokens")
    if r.failed:
        parts.append(f"{r.failed:,} without a reward")
    bad = ""
    if r.bad_rows:
        named = "".join(f"<li>{escape(fault)}</li>" for fault in r.bad)
        bad = f"<p><b>Bad rows left out: {r.bad_rows:,}</b>, among them:</p><ul>{named}</ul>"
    return f'<p class="a-faint">{" · ".join(parts)}<br>{escape(r.reward)}</p>{bad}'


FORMATS = {
    "verl": "verl rollout_data_dir",
    "trl": "TRL completions",
    "csv": "CSV",
    "pilot": "run of this platform",
}


def _answers(r: Report) -> str:
    useful = next(b for b in r.buckets if b.bucket == "ready")
    return (
        _card(
            "Rollouts that taught nothing",
            f'<div class="a-big">{r.zero_variance:.1%}</div>lie in groups whose rewards are all equal: '
            f"{r.all_right:.1%} all right, {r.all_wrong:.1%} all wrong.",
        )
        + _card("Pilot-Commit would have needed", _needed(r.methods[-1]))
        + _card(
            "Prompts that are just right",
            f'<div class="a-big">{useful.prompts / r.prompts:.1%}</div>have a success rate from '
            f"{r.settings.p_lower:g} to {r.settings.p_upper:g} over the whole log; {r.dead_prompts:,} "
            f"({r.dead_prompts / r.prompts:.1%}) never had a mixed group and took "
            f"{r.dead_rollouts / r.rollouts:.1%} of the rollouts.",
        )
    )


def _needed(pilot_commit: MethodReplay) -> str:
    if pilot_commit.saved is None or pilot_commit.saved_signal is None:
        return "Nothing to compare: in some replay a method never trained on a mixed group."
    mixed, signal = pilot_commit.saved, pilot_commit.saved_signal
    return (
        f'<div class="a-big">{_change(mixed)}</div>Rollouts against GRPO’s for as many mixed groups: '
        f"{_range(mixed, percent=True)} saved in the middle 95% of the replays. For as much signal: {_change(signal)}, "
        f"{_range(signal, percent=True)} saved. Rollouts only: whether it learns as much from them, a log cannot tell."
    )


def _methods(r: Report) -> str:
    rows = [
        f"<tr><td><b>as logged</b></td><td class=a-num>{r.rollouts:,}</td>"
        f"<td class=a-num>{_plain(r.per_mixed)}</td><td></td><td></td><td></td><td></td></tr>"
    ]
    rows += [_method(m) for m in r.methods]
    fates = {fate for m in r.methods for fate in m.fates}
    legend = "".join(svg.dot(colour, words) for fate, (colour, words) in FATES.items() if fate in fates)
    head = (
        "<tr><th>method</th><th class=a-num>rollouts, all steps</th><th class=a-num>per mixed group</th>"
        "<th class=a-num>saved against GRPO</th><th class=a-num>per unit of signal</th>"
        "<th class=a-num>saved at equal signal</th><th>what became of them</th></tr>"
    )
    return _card(
        "What each method would have spent on this stream",
        f"<small>{r.steps:,} steps of {r.batch_prompts} prompts, replayed {r.certainty.replays} times through the real "
        "allocators; medians, with the middle 95% of the replays.</small>"
        f'<div class="a-scroll"><table><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table></div>'
        f'<div class="a-legend">{legend}</div>',
        wide=True,
    )


def _method(m: MethodReplay) -> str:
    parts = [(words, colour, m.fates.get(fate, 0.0)) for fate, (colour, words) in FATES.items()]
    cells = (
        _with_range(m.rollouts),
        _with_range(m.per_mixed),
        _with_range(m.saved, percent=True),
        _with_range(m.per_signal),
        _with_range(m.saved_signal, percent=True),
    )
    numbers = "".join(f"<td class=a-num>{cell}</td>" for cell in cells)
    name = f"<b>{escape(m.name)}</b><br><small>{escape(m.what)}</small>"
    return f"<tr><td>{name}</td>{numbers}<td>{svg.stack(parts)}</td></tr>"


def _over_steps(r: Report) -> str:
    xs = [(s.first_step + s.last_step) / 2 for s in r.over_steps]
    zero = svg.over_x(
        xs,
        [
            svg.Series("all wrong", BUCKETS["deferred"], [s.all_wrong for s in r.over_steps], filled=True),
            svg.Series("all right", BUCKETS["evicted"], [s.all_right for s in r.over_steps], filled=True),
        ],
        "step", "share of rollouts", 1.0, percent=True,
    )  # fmt: skip
    rate = svg.over_x(
        xs, [svg.Series("success rate", ACCENT, [s.success_rate for s in r.over_steps])], "step", "success rate", 1.0,
        percent=True,
    )  # fmt: skip
    variance = svg.over_x(
        xs, [svg.Series("mean over groups", "#1F66D1", [s.reward_variance for s in r.over_steps])], "step",
        "reward variance", None,
    )  # fmt: skip
    return (
        _card("Zero-variance groups", zero) + _card("Success rate", rate) + _card("Reward variance of groups", variance)
    )


def _difficulty(r: Report) -> str:
    def bucket(p: float) -> str:
        s = r.settings
        return "evicted" if p >= s.p_solve else "skipped" if p > s.p_upper else "deferred" if p < s.p_lower else "ready"

    cells = []
    for c in r.map:
        label = f"{c.visits_from:,}" if c.visits_to == c.visits_from else f"{c.visits_from:,}–{c.visits_to:,}"
        # The last cell holds p = 1 as well, which is most of it where prompts are solved.
        middle = c.p_to if c.p_to == 1.0 else (c.p_from + c.p_to) / 2
        cells.append((c.p_from, c.p_to, c.visits_from, label, c.prompts, BUCKETS[bucket(middle)]))
    names = "".join(
        svg.dot(BUCKETS[b.bucket], f"{b.bucket} ({MEANING[b.bucket]}): {b.prompts:,} prompts, {b.rollouts:,} rollouts")
        for b in r.buckets
    )
    bubbles = svg.map_of(cells, "success rate over the whole log", "visits")
    note = "<small>By what Pilot-Commit’s thresholds say of the success rate over the whole log.</small>"
    return _card("Difficulty of the prompts", f'{bubbles}<div class="a-legend">{names}</div>{note}')


def _dead(r: Report) -> str:
    if not r.dead:
        return _card("Most expensive dead prompts", "Every prompt had a mixed group at some time.", wide=True)
    rows = "".join(
        f'<tr><td class="a-prompt">{escape(d.text)}</td><td class=a-num>{d.success_rate:.0%}</td>'
        f"<td class=a-num>{d.visits:,}</td><td class=a-num>{d.rollouts:,}</td>"
        f"<td class=a-num>{'–' if d.tokens is None else f'{d.tokens:,}'}</td></tr>"
        for d in r.dead
    )
    head = (
        "<tr><th>prompt</th><th class=a-num>success rate</th><th class=a-num>visits</th><th class=a-num>rollouts</th>"
        "<th class=a-num>tokens</th></tr>"
    )
    return _card(
        "Most expensive dead prompts",
        "<small>Never a mixed group: no rollout of theirs moved the policy.</small>"
        f'<div class="a-scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>',
        wide=True,
    )


def _trust(r: Report) -> str:
    c = r.certainty
    low, middle, high = c.rollouts_per_prompt
    facts = [
        f"A prompt has {c.visits_per_prompt:.1f} visits on average and {middle:,} rollouts at the median ({low:,} and "
        f"{high:,} at the 10% and 90% quantile).",
        f"Pilot-Commit’s replay drew from visits {c.steps_away:.0f} steps away at the median, and {c.drawn_again:.0%} "
        "of its rollouts were drawn a second time.",
    ]
    items = "".join(f"<li>{escape(words)}</li>" for words in (*facts, *r.assumptions))
    chosen = r.settings.model_dump(exclude_none=True, exclude_defaults=False)
    words = ", ".join(f"{name} {value}" for name, value in chosen.items() if value is not False and value != [])
    return _card(
        "How far to trust the replays", f"<ul>{items}</ul><small>Settings: {escape(words)}.</small>", wide=True
    )


def _card(title: str, body: str, wide: bool = False) -> str:
    return f'<div class="a-card{" a-wide" if wide else ""}"><h2>{title}</h2>{body}</div>'


def _with_range(value: Interval | None, percent: bool = False) -> str:
    if value is None:
        return "–"
    middle = _percent(value.median) if percent else _plain(value.median)
    return f"{middle}<br><small>{_range(value, percent)}</small>"


def _range(value: Interval | None, percent: bool = False) -> str:
    if value is None:
        return "–"
    low, high = (_percent(v) if percent else _plain(v) for v in (value.low, value.high))
    return f"{low} to {high}"


def _change(saved: Interval) -> str:
    """The interval in words; where it contains zero the replays do not agree on the sign, whatever their median."""
    if saved.low <= 0 <= saved.high:
        return "cannot tell from this log"
    least, most = (f"{share:.0%}" for share in sorted((abs(saved.low), abs(saved.high))))
    return f"{least if least == most else f'{least} to {most}'} {'fewer' if saved.low > 0 else 'more'}"


def _percent(value: float) -> str:
    return f"{value:.0%}".replace("-0%", "0%").replace("-", "−")


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"
