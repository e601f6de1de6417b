"""Runs side by side: how accurate each became for what it spent, what it needed to reach a target, and in what their
configs, buckets and spend differ. The address holds the runs, the alignment, the target and the baseline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any, NamedTuple

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import ComparedRun, Comparison, RunGroup, RunSummary
from ui import blocks, compared, figure, palette, text
from ui.compared import AXES, By
from ui.connection import api_errors, client, show_lost

MOST = 20
OFFERED = 50
FEWEST_SEEDS = 3  # of which the API tells an interval
REFRESH_S = 10


class Question(NamedTuple):
    runs: tuple[str, ...]
    by: By
    target: float | None
    baseline: str | None


def render() -> None:
    st.title("Compare", anchor=False)
    with api_errors():
        chosen = _choose(list(dict.fromkeys(map(str.lower, st.query_params.get_all("run")))))
        if not chosen:
            blocks.empty(
                "No runs chosen",
                "Choose some above, or tick them on the page <b>Runs</b> and press <b>Compare</b>. Runs whose configs "
                "differ by seed and name only become one line with the range of its seeds.",
            )
            return
        question = _question(chosen)
        found = _ask(question)
        alive = any(run.run.state not in palette.FINISHED_STATES for run in found.runs)
        st.fragment(_content, run_every=REFRESH_S if alive else None)(question)


def _choose(asked: list[str]) -> tuple[str, ...]:
    """The runs to compare: those of the address, and what is added or taken away here."""
    offered: dict[str, RunSummary] = {str(run.id): run for run in client().list_runs(limit=OFFERED).runs}
    gone = []
    for run_id in asked:
        if run_id not in offered:
            try:
                offered[run_id] = client().get_run(run_id)
            except ApiError as error:
                if error.problem.status not in (404, 422):  # deleted, or never there; no id at all
                    raise
                gone.append(run_id)

    def name(run_id: str) -> str:
        run = offered[run_id]
        return f"{run.name} · {text.method(run.method)} · {run_id[:8]}"

    if gone:
        ids = ", ".join(f"<code>{escape(run_id)}</code>" for run_id in gone)
        st.html(
            f'<div class="pc-banner pc-warn" role="alert"><b>Left out: {ids}.</b> There is no run with '
            f"{'this id' if len(gone) == 1 else 'these ids'}: it was deleted, or the address is broken.</div>"
        )
    asked = [run_id for run_id in asked if run_id in offered][:MOST]
    key = f"compare-runs-{hash(tuple(asked))}"  # another address brings its own runs
    st.multiselect(
        "Runs", list(offered), default=asked, format_func=name, key=key, max_selections=MOST,
        placeholder="Add runs", on_change=_keep, args=(key,), label_visibility="collapsed",
    )  # fmt: skip
    return tuple(asked)


def _keep(key: str) -> None:
    st.query_params["run"] = st.session_state[key]


def _question(chosen: tuple[str, ...]) -> Question:
    with st.container(key="compare-controls", horizontal=True, vertical_alignment="bottom"):
        by: By = st.segmented_control(
            "Align by", list(AXES), default="rollouts", required=True, key="by", bind="query-params"
        )
        target = st.number_input(
            "Target accuracy in %", min_value=0.0, max_value=100.0, value=None, step=1.0, format="%.1f", key="reach",
            bind="query-params", width=190, placeholder="what all reach",
            help="Rollouts to target are counted until sampled accuracy on the held-out set first reaches it. Left "
            "empty: the highest, in whole percents, that every group reaches.",
        )  # fmt: skip
    baseline = st.query_params.get("baseline")
    return Question(chosen, by, None if target is None else target / 100, baseline if baseline in chosen else None)


def _ask(question: Question) -> Comparison:
    """The comparison as it was at most a few seconds ago."""
    asked, asked_at, found = st.session_state.get("compare", (None, 0.0, None))
    if isinstance(found, Comparison) and asked == question and time.monotonic() - asked_at < REFRESH_S / 2:
        return found
    found = client().compare(
        question.runs, points=2, target=question.target, by=question.by, baseline=question.baseline
    )
    st.session_state["compare"] = (question, time.monotonic(), found)
    return found


def _content(question: Question) -> None:
    try:
        found = _ask(question)
    except ApiUnreachable as error:  # what is known stays
        show_lost(error)
        found = st.session_state["compare"][2]
    except ApiError:  # a run was deleted meanwhile: the page says which, and shows the others
        st.rerun()
    with st.container(border=True):
        several = any(len(group.runs) > 1 for group in found.groups)
        seeds = "; lines are medians, bands the range over seeds" if several else ""
        _heading("Accuracy", f"held-out, against {AXES[question.by]}{seeds}")
        compared.chart(found, question.by)
    _table(found)
    left, right = st.container(key="panels-of-tables").columns(2, border=True)
    with left:
        _heading("Buckets", "where the prompts lie now")
        _shares(found, {name: b.colour for name, b in palette.BUCKETS.items()}, _buckets)
    with right:
        _heading("Spend", "rollouts by what became of them")
        _shares(found, {name: f.colour for name, f in palette.FATES.items()}, _fates)
    with st.container(border=True):
        _differences(found)
    _runs(found)


def _heading(title: str, words: str = "") -> None:
    st.html(f'<div class="pc-heading"><h2>{escape(title)}</h2><span>{escape(words)}</span></div>')


def _dot(at: int, name: str) -> str:
    colour = palette.SERIES[at % len(palette.SERIES)]
    return f'<span class="pc-dot" style="--c:{colour}"><i></i>{escape(name)}</span>'


def _table(found: Comparison) -> None:
    with st.container(border=True):
        base = found.groups[found.baseline]
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            target = "no target yet" if found.target is None else f"until {text.percent(found.target, 0)} is reached"
            _heading(
                "Rollouts to target", f"medians, {target}; ratios with 95% bootstrap intervals from three seeds on"
            )
            with st.container(horizontal=True, width="content", vertical_alignment="center"):
                names = [group.name for group in found.groups]
                if len(names) > 1:
                    st.selectbox(
                        "Baseline", range(len(names)), index=found.baseline, format_func=lambda at: names[at],
                        key=f"baseline-{hash((tuple(names), found.baseline))}", width=220,
                        label_visibility="collapsed", on_change=_set_baseline, args=(found,),
                        help="What the others are compared with",
                    )  # fmt: skip
                for label, name, kind, made, words in (
                    ("SVG", "compare.svg", "image/svg+xml", partial(figure.svg, found, found.by), "The chart"),
                    ("Table", "compare.csv", "text/csv", partial(compared.table_csv, found), "This table as CSV"),
                    ("Curves", "curves.csv", "text/csv", partial(compared.curves_csv, found), "All evaluations as CSV"),
                ):  # made when they are asked for
                    st.download_button(
                        label, made, name, kind, icon=":material/download:", help=words, on_click="ignore"
                    )
        unit, per_hour = text.unit_of_hours(max((group.to_target.hours or 0.0 for group in found.groups), default=0.0))
        head = [
            "group", "runs", "rollouts", "tokens", "steps", f'<span title="{unit} that trainers ran">{unit}</span>',
            f"times fewer {found.by} than {escape(base.name)}", "accuracy", "best", "variance",
        ]  # fmt: skip
        rows = [_group_row(at, group, found, per_hour) for at, group in enumerate(found.groups)]
        blocks.table(head, rows, right=range(1, len(head)), caption="What each group spent until the target")


def _set_baseline(found: Comparison) -> None:
    names = [group.name for group in found.groups]
    at = st.session_state[f"baseline-{hash((tuple(names), found.baseline))}"]
    st.query_params["baseline"] = str(found.groups[at].runs[0])


def _group_row(at: int, group: RunGroup, found: Comparison, per_hour: float) -> list[str]:
    seeds = f"seeds {', '.join(map(str, group.seeds))}"
    reached = f"{group.reached} of {len(group.runs)} reach it"
    never = '<span class="pc-faint">never</span>'
    cost = group.to_target
    costs = [never if spent is None else text.hover(spent) for spent in (cost.rollouts, cost.tokens, cost.steps)]
    lasted = never if cost.hours is None else text.fixed(cost.hours * per_hour, 2)
    return [
        _dot(at, group.name), f'<span title="{seeds}; {reached}">{reached}</span>', *costs, lasted,
        "baseline" if at == found.baseline else _ratio(group, found.groups[found.baseline]),
        text.percent(group.accuracy), text.percent(group.best_accuracy), text.fixed(group.reward_variance, 3),
    ]  # fmt: skip


def _ratio(group: RunGroup, base: RunGroup) -> str:
    found = group.against
    if found is None:
        return '<span class="pc-faint">never gets there</span>'
    if found.value is None:
        return "the baseline never does"
    if found.low is None and found.high is None:
        few = min(len(group.runs), len(base.runs)) < FEWEST_SEEDS
        why = f"fewer than {FEWEST_SEEDS} seeds" if few else "one never gets there"
        return f'<b>{found.value:.2f}×</b> <span class="pc-faint">(no interval: {why})</span>'
    low, high = (f"{end:.2f}" if end is not None else "?" for end in (found.low, found.high))
    how = "seeds paired" if found.paired else "seeds not paired: the groups have different ones"
    return f'<b>{found.value:.2f}×</b> <span class="pc-faint" title="{how}">({low}–{high})</span>'


def _buckets(run: ComparedRun) -> dict[str, int]:
    return run.run.buckets


def _fates(run: ComparedRun) -> dict[str, int]:
    return {fate.fate: max(0, fate.rollouts) for fate in run.ledger.fates}


def _shares(found: Comparison, colours: dict[str, str], counts: Callable[[ComparedRun], dict[str, int]]) -> None:
    """A stacked bar a group, and the shares as a table; of the sums over the group's runs."""
    runs = {run.run.id: run for run in found.runs}
    sums = []
    for group in found.groups:
        members = [counts(runs[run_id]) for run_id in group.runs]
        sums.append({name: sum(member.get(name, 0) for member in members) for name in colours})
    shown = [name for name in colours if any(each[name] for each in sums)]
    if not shown:
        st.html('<div class="pc-placeholder" style="height:60px">Nothing sampled yet.</div>')
        return
    rows = []
    for at, (group, each) in enumerate(zip(found.groups, sums, strict=True)):
        total = sum(each.values())
        bar = "".join(f'<i style="flex:{each[n]};background:{colours[n]}" title="{n}"></i>' for n in shown if each[n])
        words = ", ".join(f"{each[n]:,} {n}" for n in shown)
        cells = [f'<span title="{each[n]:,}">{escape(text.share(each[n], total))}</span>' for n in shown]
        rows.append([
            _dot(at, group.name),
            f'<span class="pc-stack" role="img" aria-label="{words}" title="{words}">{bar}</span>', *cells,
        ])  # fmt: skip
    labels = [palette.FATES[n].label if n in palette.FATES else n for n in shown]
    head = [f'<span class="pc-dot" style="--c:{colours[n]}"><i></i>{escape(label)}</span>'
            for n, label in zip(shown, labels, strict=True)]  # fmt: skip
    blocks.table(["group", "", *head], rows, right=range(2, 2 + len(shown)))


def _differences(found: Comparison) -> None:
    _heading("Config", "only what differs; seed and name aside")
    if not found.differences:
        same = "All of these runs have the same config" if len(found.runs) > 1 else "There is one run to compare"
        st.html(f'<div class="pc-placeholder" style="height:60px">{same}.</div>')
        return
    rows = [[f"<code>{escape(d.field)}</code>", *(_value(value) for value in d.values)] for d in found.differences]
    head = ["field", *(_dot(at, group.name) for at, group in enumerate(found.groups))]
    blocks.table(head, rows, caption="Config differences")


def _value(value: Any) -> str:
    return '<span class="pc-faint">–</span>' if value is None else escape(str(value))


def _runs(found: Comparison) -> None:
    with (
        st.expander("The run" if len(found.runs) == 1 else f"The {len(found.runs)} runs", expanded=False),
        st.container(horizontal=True),
    ):
        for run in found.runs:
            label = f"{text.markdown(run.run.name)}, seed {run.config.get('seed', 0)} ({run.run.state})"
            st.page_link("screens/run.py", label=label, query_params={"run": str(run.run.id)})


render()
