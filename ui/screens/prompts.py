"""The prompts of a run: which are too hard, too easy or just right, and what each has cost.

The API adds up and pages; what is shown can be taken away as the prompt set of the next run. While the run lives the
counts and the table follow it, and keep the last known rows when the API is away; the map costs the database more, and
is drawn anew with the page.
"""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TypedDict

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import Difficulty, PromptPage, PromptRow, RunDetail
from ui import blocks, charts, marks, palette, text
from ui.connection import api_errors, client, show_lost, show_refused
from ui.form import lookup

PAGE_SIZE = 25
REFRESH_S = 4
MAP_PARTS = 40
MOST_BINS = 20
SORTS = {
    "-visits": "most visited",
    "-rollouts": "most rollouts",
    "-tokens": "most tokens",
    "success_rate": "hardest",
    "-success_rate": "easiest",
    "-step": "latest",
    "step": "longest ago",
}
MARKED = {"any": "in any way", "pin": "pinned", "exclude": "excluded", "retest": "to be re-tested"}
HEAD = ("answer", "bucket", "rate at last visit", "visits", "rollouts", "tokens", "last step")
NUMBERS = HEAD[3:]


def render() -> None:
    run_id = st.query_params.get("run")
    if not run_id:
        blocks.empty("No run chosen", "Open a run first; its prompts are one click away.")
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")
        return
    with api_errors():
        _page(run_id, client().get_run(run_id))


def _page(run_id: str, run: RunDetail) -> None:
    st.page_link(
        "screens/run.py", label=text.markdown(run.name), icon=":material/arrow_back:", query_params={"run": run_id}
    )
    st.title("Prompts", anchor=False)
    _map(run)
    which = _selection(run)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        sort = st.selectbox(
            "Order", list(SORTS), format_func=SORTS.__getitem__, key="sort", bind="query-params", width=200,
            on_change=_first_page, label_visibility="collapsed",
        )  # fmt: skip
        right = st.container(horizontal=True, width="content", vertical_alignment="center")
        with right:
            _export(run_id, which)
    cursors: list[str | None] = st.session_state.setdefault(f"prompts.cursors.{run_id}", [None])
    page = client().prompts(run_id, **which, sort=sort, limit=PAGE_SIZE, cursor=cursors[-1])
    if not page.prompts and len(cursors) > 1:  # they have all moved away
        del cursors[1:]
        page = client().prompts(run_id, **which, sort=sort, limit=PAGE_SIZE)
    st.session_state["prompts.shown"], st.session_state["prompts.fresh"] = (run, page), True
    live = run.state not in palette.FINISHED_STATES
    st.fragment(_watch, run_every=REFRESH_S if live else None)(run_id, which, sort, cursors[-1])
    if not page.prompts:
        _nothing(run, any(value is not None for value in which.values()))
        return
    with right:
        marks.for_all(run, page.total, lambda mark: client().mark_prompts(run_id, mark, **which))
    with st.container(key="prompts-table", gap=None):
        head = "".join(f"<span{_right(h)}>{h}</span>" for h in HEAD)
        st.html(f'<div class="pc-row pc-head"><span>prompt</span>{head}</div>')
        for at in range(len(page.prompts)):
            st.fragment(_row, run_every=REFRESH_S if live else None)(run_id, at)
    _paging(page, cursors)


def _watch(run_id: str, which: Selection, sort: str, cursor: str | None) -> None:
    """Asks for the counts, which it draws, and for the rows, which each draw themselves. Draws the page anew when the
    run ended, or rows came or went; and tells when the API is away."""
    run, page = st.session_state["prompts.shown"]
    if not st.session_state.pop("prompts.fresh", False):
        n = len(page.prompts)
        try:
            run = client().get_run(run_id)
            page = client().prompts(run_id, **which, sort=sort, limit=PAGE_SIZE, cursor=cursor)
        except ApiUnreachable as error:
            show_lost(error, f"The rows below are the last known ones; trying again every {REFRESH_S} s.")
        except ApiError as error:
            show_refused(error)
        else:
            if run.state in palette.FINISHED_STATES or len(page.prompts) != n:
                st.rerun()
            st.session_state["prompts.shown"] = run, page
    # Beside an element: a style alone would go elsewhere, and every refresh would leave one more.
    st.html(f'<div class="pc-counts"></div><style>{_pills(run.buckets)}</style>')


class Selection(TypedDict):
    """Which prompts are shown, as the API takes it."""

    bucket: str | None
    search: str | None
    tag: str | None
    min_rate: float | None
    max_rate: float | None
    marked: str | None


def _selection(run: RunDetail) -> Selection:
    bucket = st.pills(
        "Bucket",
        list(palette.BUCKETS),
        key="bucket",
        bind="query-params",
        label_visibility="collapsed",
        on_change=_first_page,
    )
    with st.container(horizontal=True, vertical_alignment="bottom"):
        search = st.text_input(
            "Search", placeholder="words of the prompt", key="search", bind="query-params", on_change=_first_page,
            width=300,
        )  # fmt: skip
        tag = st.selectbox(
            "Tag", _tags(str(run.id), run.dataset_id), index=None, key="tag", bind="query-params", placeholder="any",
            on_change=_first_page, width=200,
        )  # fmt: skip
        marked = st.selectbox(
            "Marked", list(MARKED), format_func=MARKED.__getitem__, index=None, key="marked", bind="query-params",
            placeholder="any or none", on_change=_first_page, width=150,
        )  # fmt: skip
        low, high = st.slider(
            "Success rate at the last visit", 0, 100, (0, 100), format="%d%%", key="rate", bind="query-params",
            on_change=_first_page, width=260,
        )  # fmt: skip
    return {
        "bucket": bucket,
        "search": search or None,
        "tag": tag,
        "min_rate": low / 100 if low > 0 else None,
        "max_rate": high / 100 if high < 100 else None,
        "marked": marked,
    }


def _map(run: RunDetail) -> None:
    """The difficulty of the whole set: how it moved over the run, and what was spent on what."""
    bins = _bins(run)
    found = _difficulty(str(run.id), run.attempt, run.step, bins)
    left, right = st.container(key="panels").columns(2, border=True)
    with left:
        some = "" if found.every == 1 else f", of one step in {found.every}"
        st.html(
            '<div class="pc-heading"><h2>Difficulty over time</h2>'
            f"<span>success rates of judged groups{some}; stronger: more of them</span></div>"
        )
        charts.rates_over_time(found, MAP_PARTS, bins)
    with right, st.container(gap="small"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.html(
                '<div class="pc-heading"><h2>Difficulty against spend</h2><span>colour: where most are</span></div>'
            )
            size = st.segmented_control(
                "Circle", ("prompts", "tokens"), default="prompts", key="circle", bind="query-params", required=True,
                label_visibility="collapsed", help="What a circle's area stands for",
            )  # fmt: skip
        charts.spend_map(found, bins, size)


def _bins(run: RunDetail) -> int:
    """One for each success rate that a group of the method's size can have, when these are few."""
    size = int(lookup(run.config, "method.n_pilot") or lookup(run.config, "method.n") or MOST_BINS)
    return min(size, MOST_BINS - 1) + 1


@st.cache_data(show_spinner=False, max_entries=32)
def _difficulty(run_id: str, attempt: int, step: int, bins: int) -> Difficulty:
    """The same for everybody, until the next step."""
    return client().difficulty(run_id, MAP_PARTS, bins)


@st.cache_data(show_spinner=False, max_entries=32)
def _tags(run_id: str, dataset_id: str | None) -> list[str]:
    """The most frequent ones first."""
    return [tag.tag for tag in client().prompt_tags(run_id).tags]


def _export(run_id: str, which: Selection) -> None:
    """The selection as the training prompts of another run; made when it is asked for."""
    for form, label in (("jsonl", "JSONL"), ("parquet", "Parquet")):
        st.download_button(
            label, partial(client().export_prompts, run_id, form, **which), file_name=f"prompts-{run_id[:8]}.{form}",
            key=f"export-{form}", icon=":material/download:",
            help="This selection as a file: data.train of the next run",
        )  # fmt: skip


def _nothing(run: RunDetail, filtered: bool) -> None:
    if filtered:
        blocks.empty("No prompt matches", "Clear the search, or widen bucket, tag and success rate.")
    elif run.dataset_id is None:
        blocks.empty("No prompts yet", "The trainer has not loaded its prompt set. Come back in a few seconds.")
    else:
        blocks.empty("No prompts", "This run's prompt set is empty.")


def _pills(counts: dict[str, int]) -> str:
    """A square in the bucket's colour before each pill, and its count behind: the label itself is in the address.

    Of a run that has not begun there are no counts.
    """
    return "".join(
        f".st-key-bucket button:nth-of-type({i})::before {{ background: {bucket.colour}; }}"
        f".st-key-bucket button:nth-of-type({i})::after {{ content: '{text.number(counts.get(bucket.name))}'; }}"
        for i, bucket in enumerate(palette.BUCKETS.values(), 1)
    )


def _first_page() -> None:
    for key in [k for k in st.session_state if str(k).startswith("prompts.cursors.")]:
        del st.session_state[key]


def _row(run_id: str, at: int) -> None:
    """What was last told of one of the prompts."""
    row: PromptRow = st.session_state["prompts.shown"][1].prompts[at]
    with st.container(key=f"prompt-row-{at}", gap=None):
        label = text.markdown(text.shorten(row.text, 110))
        icon, marked = marks.listed(row.marks)
        st.page_link(
            "screens/prompt.py", label=marked + label, icon=icon, query_params={"run": run_id, "prompt": row.id}
        )
        rate = '<span class="pc-faint">–</span>'
        if row.success_rate is not None:
            rate = text.percent(row.success_rate, 0) + blocks.bar(row.success_rate, palette.BUCKETS[row.bucket].colour)
        cells = (
            f"<code>{escape(text.shorten(row.answer, 24))}</code>",
            blocks.bucket_chip(row.bucket),
            rate,
            text.hover(row.visits),
            text.hover(row.rollouts),
            text.hover(row.tokens),
            text.exact(row.step) or "–",
        )
        named = zip(HEAD, cells, strict=True)
        body = "".join(f'<span data-label="{name}"{_right(name)}>{cell}</span>' for name, cell in named)
        st.html(f'<div class="pc-row"><span class="pc-name-gap"></span>{body}</div>')


def _right(column: str) -> str:
    return ' class="pc-num"' if column in NUMBERS else ""


def _paging(page: PromptPage, cursors: list[str | None]) -> None:
    first = (len(cursors) - 1) * PAGE_SIZE + 1
    last = first + len(page.prompts) - 1
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(f"{first:,}–{last:,} of {page.total:,} prompt{'s' * (page.total != 1)}", width="content")
        if st.button("Back", icon=":material/chevron_left:", disabled=len(cursors) == 1):
            cursors.pop()
            st.rerun()
        if st.button("Next", icon=":material/chevron_right:", disabled=page.next_cursor is None):
            cursors.append(page.next_cursor)
            st.rerun()


render()
