"""The prompts of a run: which are too hard, too easy or just right, and what each has cost. Paged by the API."""

from __future__ import annotations

from html import escape

import streamlit as st

from api.schemas import PromptPage, PromptRow, RunDetail
from ui import blocks, palette, text
from ui.connection import api_errors, client

PAGE_SIZE = 25
SORTS = {
    "-visits": "most visited",
    "-rollouts": "most rollouts",
    "success_rate": "hardest",
    "-success_rate": "easiest",
    "-step": "latest",
    "step": "longest ago",
}
HEAD = ("answer", "bucket", "rate at last visit", "visits", "rollouts", "tokens", "last step")


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
    st.html(f"<style>{_pill_colours()}</style>")
    bucket = st.pills(
        "Bucket",
        list(palette.BUCKETS),
        format_func=lambda name: f"{name} {text.number(run.buckets.get(name, 0))}",
        key="bucket",
        bind="query-params",
        label_visibility="collapsed",
        on_change=_first_page,
    )
    st.html(blocks.bucket_bar(run.buckets).replace("pc-stack", "pc-stack pc-thick"))
    with st.container(horizontal=True, vertical_alignment="bottom"):
        search = st.text_input(
            "Search",
            placeholder="words of the prompt",
            key="search",
            bind="query-params",
            on_change=_first_page,
            width=360,
        )
        sort = st.selectbox(
            "Order", list(SORTS), format_func=SORTS.__getitem__, key="sort", bind="query-params", width=200,
            on_change=_first_page,
        )  # fmt: skip
    cursors: list[str | None] = st.session_state.setdefault(f"prompts.cursors.{run_id}", [None])
    page = client().prompts(
        run_id, bucket=bucket, search=search or None, sort=sort, limit=PAGE_SIZE, cursor=cursors[-1]
    )
    if not page.prompts:
        _nothing(run, bucket is not None or bool(search))
        return
    with st.container(key="prompts-table", gap=None):
        head = "".join(f"<span>{h}</span>" for h in HEAD)
        st.html(f'<div class="pc-row pc-head"><span>prompt</span>{head}</div>')
        for row in page.prompts:
            _row(run_id, row)
    _paging(page, cursors)


def _nothing(run: RunDetail, filtered: bool) -> None:
    if filtered:
        blocks.empty("No prompt matches", "Clear the search or choose another bucket.")
    elif run.dataset_id is None:
        blocks.empty("No prompts yet", "The trainer has not loaded its prompt set. Come back in a few seconds.")
    else:
        blocks.empty("No prompts", "This run's prompt set is empty.")


def _pill_colours() -> str:
    """A square in the bucket's colour before each pill."""
    return "".join(
        f".st-key-bucket button:nth-of-type({i})::before {{ background: {bucket.colour}; }}"
        for i, bucket in enumerate(palette.BUCKETS.values(), 1)
    )


def _first_page() -> None:
    for key in [k for k in st.session_state if str(k).startswith("prompts.cursors.")]:
        del st.session_state[key]


def _row(run_id: str, row: PromptRow) -> None:
    with st.container(key=f"prompt-row-{row.id}", gap=None):
        label = text.markdown(text.shorten(row.text, 110))
        st.page_link("screens/prompt.py", label=label, query_params={"run": run_id, "prompt": row.id})
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
            text.number(row.step),
        )
        named = zip(HEAD, cells, strict=True)
        body = "".join(f'<span data-label="{name}">{cell}</span>' for name, cell in named)
        st.html(f'<div class="pc-row"><span class="pc-name-gap"></span>{body}</div>')


def _paging(page: PromptPage, cursors: list[str | None]) -> None:
    first = (len(cursors) - 1) * PAGE_SIZE + 1
    last = first + len(page.prompts) - 1
    with st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        st.caption(f"{first:,}–{last:,} of {page.total:,} prompts", width="content")
        if st.button("Back", icon=":material/chevron_left:", disabled=len(cursors) == 1):
            cursors.pop()
            st.rerun()
        if st.button("Next", icon=":material/chevron_right:", disabled=page.next_cursor is None):
            cursors.append(page.next_cursor)
            st.rerun()


render()
