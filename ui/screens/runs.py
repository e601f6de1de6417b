"""All runs, newest first: what each is doing, what it has reached and what it has spent."""

from __future__ import annotations

from html import escape

import streamlit as st

from api.client import ApiUnreachable
from api.schemas import RunPage, RunSummary
from ui import blocks, text
from ui.connection import api_errors, client, show_lost
from ui.palette import FINISHED_STATES, STATE_COLOURS

PAGE_SIZE = 25
HEAD = ("state", "method", "model", "step", "accuracy", "rollouts", "buckets", "started")


def render() -> None:
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.title("Runs", anchor=False)
        with st.container(horizontal=True, vertical_alignment="center", width="content"):
            state = st.selectbox(
                "State",
                ["all states", *STATE_COLOURS],
                key="state",
                bind="query-params",
                label_visibility="collapsed",
                width=160,
                on_change=_first_page,
            )
            if st.button("New run", type="primary", icon=":material/add:"):
                st.switch_page("screens/new_run.py")
    cursors: list[str | None] = st.session_state.setdefault("runs.cursors", [None])
    wanted = None if state == "all states" else state
    page: RunPage | None = None
    with api_errors():
        page = client().list_runs(state=wanted, limit=PAGE_SIZE, cursor=cursors[-1])
    if page is None:
        return
    st.session_state["runs.page"] = page
    alive = any(r.state not in FINISHED_STATES for r in page.runs)
    st.fragment(_list, run_every=3 if alive else 15)(wanted, cursors[-1])
    _paging(page, cursors)


def _first_page() -> None:
    st.session_state["runs.cursors"] = [None]


def _list(state: str | None, cursor: str | None) -> None:
    banner = st.empty()
    try:
        page = client().list_runs(state=state, limit=PAGE_SIZE, cursor=cursor)
        st.session_state["runs.page"] = page
    except ApiUnreachable as error:  # the last known list stays
        page = st.session_state["runs.page"]
        with banner:
            show_lost(error)
    if not page.runs:
        if state:
            blocks.empty(f"No run is {state}", "Choose another state above, or show all of them.")
        else:
            blocks.empty(
                "No runs yet",
                "Press <b>New run</b>, pick a preset and start it: the first buckets fill within seconds. "
                "From a terminal, <code>./pilot run start CONFIG.yaml</code> does the same.",
            )
        return
    with st.container(key="runs-table", gap=None):
        st.html('<div class="pc-row pc-head"><span>run</span>' + "".join(f"<span>{h}</span>" for h in HEAD) + "</div>")
        for run in page.runs:
            _row(run)


def _row(run: RunSummary) -> None:
    with st.container(key=f"run-row-{run.id}", gap=None):
        st.page_link("screens/run.py", label=text.markdown(run.name), query_params={"run": str(run.id)})
        cells = (
            blocks.state_chip(run.state),
            escape(text.method(run.method)),
            text.model(run.model),
            blocks.of_budget(run.step, run.steps_budget),
            blocks.accuracy_change(run),
            blocks.of_budget(run.rollouts, run.rollouts_budget),
            blocks.bucket_bar(run.buckets),
            _started(run),
        )
        named = zip(HEAD, cells, strict=True)
        body = "".join(f'<span data-label="{name}">{cell}</span>' for name, cell in named)
        st.html(f'<div class="pc-row"><span class="pc-name-gap"></span>{body}</div>')


def _started(run: RunSummary) -> str:
    if run.started_at:
        return text.when(run.started_at)
    words = "never" if run.state in FINISHED_STATES else "not yet"
    return f'<span class="pc-faint" title="{escape(run.reason or "")}">{words}</span>'


def _paging(page: RunPage, cursors: list[str | None]) -> None:
    if len(cursors) == 1 and page.next_cursor is None:
        return
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(f"Page {len(cursors)}", width="content")
        if st.button("Newer", icon=":material/chevron_left:", disabled=len(cursors) == 1):
            cursors.pop()
            st.rerun()
        if st.button("Older", icon=":material/chevron_right:", disabled=page.next_cursor is None):
            cursors.append(page.next_cursor)
            st.rerun()


render()
