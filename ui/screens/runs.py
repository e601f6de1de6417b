"""All runs: what each is doing, what it has reached and what it has spent; filtered, sorted and paged by the API.

What is typed and chosen above the table is in the address, by names that no other page uses: the browser session knows
each widget by its name. Runs that are ticked can be compared, stopped, resumed, tagged and archived together; they stay
ticked on other pages of the list.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from html import escape
from typing import Any

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import RunFacets, RunPage, RunSummary
from ui import blocks, palette, text
from ui.connection import api_errors, client, in_a_line, lacks, show_lost
from ui.palette import FINISHED_STATES, STATE_COLOURS

PAGE_SIZE = 25
REFRESH_S = 3
MOST_COMPARED = 20
HEAD = ("state", "method, model", "accuracy", "rollouts", "variance", "time", "owner")
SORTS = {
    "newest": "-created",
    "oldest": "created",
    "most accurate": "-accuracy",
    "least accurate": "accuracy",
    "most rollouts": "-rollouts",
    "fewest rollouts": "rollouts",
    "most variance": "-variance",
    "least variance": "variance",
    "name": "name",
    "state": "state",
    "owner": "owner",
}
ARCHIVED = {"not archived": "no", "archived": "only", "all": "any"}
UNFILTERED: dict[str, str | list[str] | None] = {
    "q": "",
    "state": [],
    "method": None,
    "tagged": None,
    "owner": None,
    "archived": "not archived",
}
Selection = dict[str, RunSummary]


def render() -> None:
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.title("Runs", anchor=False)
        if st.button("New run", type="primary", icon=":material/add:"):
            st.switch_page("screens/new_run.py")
    with api_errors():
        facets = client().run_facets()
        wanted = _filters(facets)
        cursors: list[str | None] = st.session_state.setdefault("runs.cursors", [None])
        wanted["cursor"] = cursors[-1]
        _list(facets, wanted, cursors)


def _filters(facets: RunFacets) -> dict[str, Any]:
    """The controls above the table, and what they ask of the API."""
    bound: dict[str, Any] = {"bind": "query-params", "label_visibility": "collapsed", "on_change": _first_page}
    with st.container(key="run-filters", horizontal=True, vertical_alignment="center", gap="small"):
        search = st.text_input("Search", key="q", placeholder="Name, model, tag or id", width=200, **bound)
        states = st.multiselect("State", list(STATE_COLOURS), key="state", placeholder="Any state", width=170, **bound)
        method = st.selectbox(
            "Method", facets.methods, index=None, key="method", placeholder="Any method", width=140,
            format_func=text.method, **bound,
        )  # fmt: skip
        tag = st.selectbox("Tag", facets.tags, index=None, key="tagged", placeholder="Any tag", width=130, **bound)
        owner = st.selectbox(
            "Owner", facets.owners, index=None, key="owner", placeholder="Any owner", width=140, **bound
        )
        archived = st.selectbox("Archive", list(ARCHIVED), key="archived", width=138, **bound)
        sort = st.selectbox("Order", list(SORTS), key="order", width=155, **bound)
    return {
        "search": search or None, "state": states or None, "method": method, "tag": tag, "owner": owner,
        "archived": ARCHIVED[archived], "sort": SORTS[sort],
    }  # fmt: skip


def _first_page() -> None:
    st.session_state["runs.cursors"] = [None]


def _list(facets: RunFacets, wanted: dict[str, Any], cursors: list[str | None]) -> None:
    page = client().list_runs(limit=PAGE_SIZE, **wanted)
    selected: Selection = st.session_state.setdefault("runs.selected", {})
    for run in page.runs:  # what is known of them is renewed
        if str(run.id) in selected:
            selected[str(run.id)] = run
    st.session_state["runs.page"] = (time.monotonic(), page)
    if not page.runs:
        _nothing(facets, wanted)
        return
    alive = [run for run in page.runs if run.state not in FINISHED_STATES]
    if alive:
        st.fragment(_watch, run_every=REFRESH_S)(wanted, _order(page))
    _actions(facets, selected)
    with st.container(key="runs-table", gap=None):
        head = "".join(f"<span>{h}</span>" for h in HEAD)
        st.html(f'<div class="pc-row pc-head"><span></span><span>run</span>{head}</div>')
        for run in page.runs:
            _row(run, selected, wanted)
    _paging(page, cursors)


def _fresh(wanted: dict[str, Any]) -> RunPage:
    """The page as it was at most a moment ago: all that is refreshed at once shares one request."""
    asked_at, page = st.session_state["runs.page"]
    if time.monotonic() - asked_at > REFRESH_S / 2:
        page = client().list_runs(limit=PAGE_SIZE, **wanted)
        st.session_state["runs.page"] = (time.monotonic(), page)
    known: RunPage = page
    return known


def _order(page: RunPage) -> list[tuple[str, bool]]:
    return [(str(run.id), run.state in FINISHED_STATES) for run in page.runs]


def _watch(wanted: dict[str, Any], shown: list[tuple[str, bool]]) -> None:
    """Draws the page anew when a run came, ended or changed its place; and tells when the API is away."""
    try:
        now = _order(_fresh(wanted))
    except ApiUnreachable as error:  # the last known list stays
        show_lost(error)
    else:
        if now != shown:
            st.rerun()


def _row(run: RunSummary, selected: Selection, wanted: dict[str, Any]) -> None:
    run_id = str(run.id)
    with st.container(key=f"run-row-{run_id}", gap=None):
        st.checkbox(
            f"Select {run.name}", value=run_id in selected, key=f"select-{run_id}",
            label_visibility="collapsed", on_change=_tick, args=(run,),
        )  # fmt: skip
        st.page_link("screens/run.py", label=text.markdown(run.name), query_params={"run": run_id})
        if run.state in FINISHED_STATES:
            st.html(_cells(run))
        else:
            st.fragment(_live_cells, run_every=REFRESH_S)(run_id, wanted)


def _live_cells(run_id: str, wanted: dict[str, Any]) -> None:
    try:
        page = _fresh(wanted)
    except ApiUnreachable:  # `_watch` tells of it
        page = st.session_state["runs.page"][1]
    run = next((run for run in page.runs if str(run.id) == run_id), None)
    if run is not None:  # else `_watch` draws the page anew
        st.html(_cells(run))


def _tick(run: RunSummary) -> None:
    selected: Selection = st.session_state["runs.selected"]
    if st.session_state[f"select-{run.id}"]:
        selected[str(run.id)] = run
    else:
        selected.pop(str(run.id), None)


def _cells(run: RunSummary) -> str:
    step = f"step {run.step:,} of {run.steps_budget:,}"
    # One bar: of the rollouts where they have a budget, else of the steps, which always have one.
    steps = blocks.bar(run.step / run.steps_budget, palette.ACCENT) if run.rollouts_budget is None else ""
    cells = (
        f'<span title="{escape(_sentence(run.reason, run.todo))}">{blocks.state_chip(run.state)}</span>',
        f'{escape(text.method(run.method))}<small class="pc-under">{text.model(run.model)}</small>',
        _accuracy(run),
        f'{blocks.of_budget(run.rollouts, run.rollouts_budget)}{steps}<small class="pc-under">{step}</small>',
        text.fixed(run.reward_variance, 3) if run.reward_variance is not None else '<span class="pc-faint">–</span>',
        _time(run),
        f'<span title="{escape(run.created_by or "not known")}">{escape(run.created_by or "–")}</span>',
    )
    tags = "".join(f'<span class="pc-tag">{escape(tag)}</span>' for tag in run.tags)
    if run.archived_at:
        tags += '<span class="pc-tag pc-faint">archived</span>'
    named = zip(HEAD, cells, strict=True)
    body = "".join(f'<span data-label="{name}">{cell}</span>' for name, cell in named)
    under = f'<span class="pc-tags">{tags}</span>' if tags else ""
    return f'<div class="pc-row"><span></span><span class="pc-name-gap">{under}</span>{body}</div>'


def _sentence(reason: str | None, todo: str) -> str:
    why = f"{text.sentence(reason).rstrip('.')}. " if reason else ""
    return f"{why}{text.sentence(todo)}."


def _accuracy(run: RunSummary) -> str:
    if run.accuracy is None:
        return '<span class="pc-faint">–</span>'
    line = blocks.sparkline([(p.rollouts, p.accuracy) for p in run.curve], "accuracy over rollouts")
    change = ""
    if run.first_accuracy is not None and run.step:
        gain = run.accuracy - run.first_accuracy
        change = f'<small class="{"pc-up" if gain > 0 else "pc-down" if gain < 0 else "pc-faint"}">'
        change += f"{text.points(gain)}</small>"
    best = f"{run.accuracy:.4f} now, {run.best_accuracy or 0:.4f} at best"
    return f'<span class="pc-accuracy">{line}<b title="{best}">{text.percent(run.accuracy)}</b>{change}</span>'


def _time(run: RunSummary) -> str:
    """How long it still takes while it runs; afterwards when it ended, and for how long it ran."""
    ran = f'<small class="pc-under">ran {text.duration(run.seconds)}</small>' if run.seconds else ""
    if run.state == "running" and run.seconds_left is not None:
        return f'<span title="at the pace of its last steps">{text.duration(run.seconds_left)} left</span>{ran}'
    if run.finished_at and run.state in FINISHED_STATES:
        return f"{text.when(run.finished_at)}{ran}"
    if run.state == "queued":
        return f'<span class="pc-faint">waits</span><small class="pc-under">for {text.since(run.created_at)}</small>'
    return f'<span class="pc-faint">not known yet</span>{ran}'


def _actions(facets: RunFacets, selected: Selection) -> None:
    """What can be done with the ticked runs. The API decides; a run that an action does not fit is left alone."""
    runs = list(selected.values())
    with st.container(key="run-actions-bar", horizontal=True, vertical_alignment="center", gap="small"):
        if not runs:
            st.caption("Tick runs to compare, clone, stop, resume, tag or archive them.")
            return
        count = text.counted(len(runs), "run")
        st.markdown(f"**{count}**", width="content")
        many = len(runs) > MOST_COMPARED
        if st.button(
            "Compare",
            key="compare-selected",
            icon=":material/compare_arrows:",
            type="primary",
            disabled=many,
            help=f"At most {MOST_COMPARED} at once" if many else None,
        ):
            st.switch_page("screens/compare.py", query_params={"run": list(selected)})
        if len(runs) == 1 and st.button("Clone", key="clone-selected", icon=":material/content_copy:"):
            st.switch_page("screens/new_run.py", query_params={"clone": next(iter(selected))})
        _act("Stop", "stop", [r for r in runs if r.state not in (*FINISHED_STATES, "stopping")],
             lambda run: client().stop_run(run.id), "Finishes the step and saves a checkpoint")  # fmt: skip
        _act("Resume", "play_arrow", [r for r in runs if r.state in ("stopped", "failed")],
             lambda run: client().resume_run(run.id), "Goes on from the last checkpoint")  # fmt: skip
        _tags(facets, runs)
        _act("Archive", "archive", [r for r in runs if r.state in FINISHED_STATES and not r.archived_at],
             lambda run: client().change_run(run.id, archived=True), "Lists leave it out; nothing is lost")  # fmt: skip
        _act("Unarchive", "unarchive", [r for r in runs if r.archived_at],
             lambda run: client().change_run(run.id, archived=False), "Lists show it again")  # fmt: skip
        if st.button("Untick", key="clear-selected", type="tertiary", icon=":material/close:"):
            _untick()
            st.rerun()


def _act(label: str, icon: str, runs: list[RunSummary], do: Callable[[RunSummary], RunSummary], words: str) -> None:
    """A button for those of the ticked runs that the action fits; none when it fits none."""
    missing = lacks("run")
    if runs and st.button(
        label if len(runs) == 1 else f"{label} {len(runs)}", key=f"{label.lower()}-selected",
        icon=f":material/{icon}:", disabled=bool(missing), help=missing or words,
    ):  # fmt: skip
        _do(runs, do)


def _do(runs: list[RunSummary], do: Callable[[RunSummary], RunSummary]) -> None:
    """Each in turn, and then the page anew; what was refused is told in words."""
    refused: list[str] = []
    for run in runs:
        try:
            st.session_state["runs.selected"][str(run.id)] = do(run)
        except ApiUnreachable as error:
            refused.append(f"Not sent: {error.why}. Try again when the API is back.")
            break
        except ApiError as error:
            refused.append(f"{run.name}: {in_a_line(error)}")
    for words in refused[:3]:
        st.toast(text.markdown(words), icon=":material/error:")
    if not refused:
        st.rerun()


def _tags(facets: RunFacets, runs: list[RunSummary]) -> None:
    """The tags that all ticked runs have, to be changed for all of them; those that only some have stay."""
    common = [tag for tag in runs[0].tags if all(tag in run.tags for run in runs)]
    missing = lacks("run")
    with st.popover("Tags", icon=":material/label:", key="tags-selected", disabled=bool(missing), help=missing):
        # Save is beside the field: below it, the field's list would lie over it.
        with st.form("tags", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = st.multiselect(
                "Tags" if len(runs) == 1 else f"Tags of all {len(runs)} runs", sorted({*facets.tags, *common}),
                default=common, key=f"tags-{'-'.join(str(run.id)[:8] for run in runs)}-{len(common)}",
                accept_new_options=True, max_selections=20, placeholder="Type and press Enter", width=240,
            )  # fmt: skip
            saved = st.form_submit_button("Save", type="primary")
        if saved:
            _do(
                runs,
                lambda run: client().change_run(
                    run.id, tags=[*(tag for tag in run.tags if tag not in common), *(tag.strip() for tag in chosen)]
                ),
            )


def _untick() -> None:
    for run_id in st.session_state["runs.selected"]:
        st.session_state.pop(f"select-{run_id}", None)
    st.session_state["runs.selected"] = {}


def _nothing(facets: RunFacets, wanted: dict[str, Any]) -> None:
    filtered = any(wanted[name] is not None for name in ("search", "state", "method", "tag", "owner"))
    if filtered or wanted["archived"] == "only":
        blocks.empty("No run matches", "Change what is chosen above, or show all runs.")
        st.button("Show all runs", key="clear-filters", icon=":material/filter_alt_off:", on_click=_clear_filters)
    elif facets.methods:
        blocks.empty("All runs are archived", "Choose <b>archived</b> or <b>all</b> above to see them.")
    else:
        blocks.empty(
            "No runs yet",
            "Press <b>New run</b>, pick a preset and start it: the first buckets fill within seconds. "
            "From a terminal, <code>./pilot run start CONFIG.yaml</code> does the same.",
        )


def _clear_filters() -> None:
    st.session_state.update(UNFILTERED)  # the address follows
    _first_page()


def _paging(page: RunPage, cursors: list[str | None]) -> None:
    first = (len(cursors) - 1) * PAGE_SIZE + 1
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(f"{first:,}–{first + len(page.runs) - 1:,} of {page.total:,} runs", width="content")
        if len(cursors) == 1 and page.next_cursor is None:
            return
        if st.button("Back", icon=":material/chevron_left:", disabled=len(cursors) == 1):
            cursors.pop()
            st.rerun()
        if st.button("Next", icon=":material/chevron_right:", disabled=page.next_cursor is None):
            cursors.append(page.next_cursor)
            st.rerun()


render()
