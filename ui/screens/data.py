"""Prompt sets: which there are and which runs use them; a file is checked, looked at and added here."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, get_args

import streamlit as st

from api.client import ApiError, ApiUnreachable, proposed_name
from api.schemas import MappingName, PreviewRow, PromptReport, PromptSetDetail, PromptSetOut
from ui import blocks, text
from ui.connection import api_errors, client, lacks, show_lost, show_refused

PAGE_SIZE = 200
ROWS = 20
MOST_MB = 64  # the dashboard holds it while the page is open; the API, which keeps it on disk, takes 256 MiB
REWARDS = ("none", "math", "gsm8k", "numeric", "choice", "exact", "code", "reasoning_gym")


def render() -> None:
    with api_errors():
        if "set" in st.query_params:
            name, _, version = st.query_params["set"].partition("@")
            _one(client().get_prompt_set(name, version))
            return
        st.title("Data", anchor=False)
        page = client().list_prompt_sets(limit=PAGE_SIZE)
        _sets(page.prompt_sets)
        if page.next_cursor is not None:
            st.caption(f"The newest {PAGE_SIZE} versions; the API lists all.")
        _add(page.prompt_sets)


def _sets(found: Sequence[PromptSetOut]) -> None:
    if not found:
        blocks.empty(
            "No prompt sets yet",
            "Add a file below: JSONL, JSON, CSV or Parquet. It is checked first, and kept as a whole or not at all. "
            "A run config names it as <code>set:NAME@VERSION</code>. The path of a file works as well, and a data set "
            "of the hub that <code>./pilot data fetch hub:OWNER/NAME:SPLIT</code> has fetched.",
        )
        return
    rows = [
        [
            f'<a href="data?set={escape(s.name)}@{s.version}" target="_self">{escape(s.name)}</a>',
            f"<code>{s.version}</code>",
            text.hover(s.n_prompts),
            text.size(s.n_bytes),
            escape(f"{text.shorten(s.file, 40)}, {s.mapping}"),
            text.hover(s.n_runs) if s.n_runs else '<span class="pc-faint">none</span>',
            f"{text.when(s.created_at)} by {escape(s.created_by)}",
        ]
        for s in found
    ]
    head = ["set", "version", "prompts", "size", "from", "runs", "added"]
    blocks.table(head, rows, right=(2, 3, 5), caption="Prompt sets, newest first")


# One version


def _one(stored: PromptSetDetail) -> None:
    st.page_link("screens/data.py", label="All prompt sets", icon=":material/arrow_back:")
    st.title(stored.name, anchor=False)
    st.code(stored.ref, language=None)
    st.caption("A run config writes this as `data.train` or `data.eval`.")
    meters = [
        blocks.meter("Prompts", text.hover(stored.n_prompts)),
        blocks.meter("Size", text.size(stored.n_bytes)),
        blocks.meter(
            "Longest",
            text.hover(stored.report.longest),
            "tokens" if stored.report.longest else stored.report.length.removeprefix("length: "),
        ),
        blocks.meter("Runs", text.hover(stored.n_runs)),
    ]
    st.html(f'<div class="pc-meters pc-few">{"".join(meters)}</div>')
    if stored.runs:
        links = ", ".join(f'<a href="run?run={r.id}" target="_self">{escape(r.name)}</a>' for r in stored.runs[:20])
        st.html(f"<p>Used by {links}</p>")
    _findings(stored.report)
    _rows(stored)
    _leave(stored)


def _rows(stored: PromptSetDetail) -> None:
    key = f"data.offset.{stored.version}"
    offset = st.session_state.get(key, 0)
    part = client().prompt_set_rows(stored.name, stored.version, offset, ROWS)
    with st.container(key="whole-table"):
        _prompts(part.rows, f"Prompts {offset + 1:,} to {offset + len(part.rows):,}, by id")
    with st.container(horizontal=True, horizontal_alignment="right"):
        if st.button("Before", icon=":material/chevron_left:", disabled=offset == 0):
            st.session_state[key] = max(0, offset - ROWS)
            st.rerun()
        if st.button("After", icon=":material/chevron_right:", disabled=part.next_offset is None):
            st.session_state[key] = part.next_offset
            st.rerun()


def _leave(stored: PromptSetDetail) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        st.download_button(
            "Download",
            lambda: client().download_prompt_set(stored.name, stored.version),
            file_name=f"{stored.name}-{stored.version}.jsonl",
            icon=":material/download:",
        )
        missing = lacks("run")
        with st.popover("Delete", icon=":material/delete:", disabled=stored.n_runs > 0 or bool(missing), help=missing):
            st.markdown("There is no way back.")
            if st.button("Delete this version", key="delete-set", type="primary"):
                try:
                    client().delete_prompt_set(stored.name, stored.version)
                except ApiError as error:
                    show_refused(error)
                except ApiUnreachable as error:
                    show_lost(error, "Try again.")
                else:
                    del st.query_params["set"]
                    st.rerun()
        if stored.n_runs:
            st.caption("It can be deleted when no run uses it.")


# A new file


def _add(known: Sequence[PromptSetOut]) -> None:
    st.subheader("Add a prompt set", anchor=False)
    file = st.file_uploader(
        "File of prompts", type=["jsonl", "json", "csv", "parquet"], key="data.file", max_upload_size=MOST_MB,
        help="A row is a prompt (a text, or a list of messages) and its reference answer; tags and the name of a "
        "reward are optional.",
    )  # fmt: skip
    st.caption("A larger one, up to 256 MiB: `./pilot data upload FILE`, or `POST /api/v1/prompt-sets`.")
    if file is None:
        return
    query = _query(file.name, known)
    content = file.getvalue()
    asked = (file.file_id, tuple(sorted(query.items(), key=str)))
    if st.session_state.get("data.asked") != asked:
        with st.spinner("Reading the file"):
            try:
                report = client().check_prompts(file.name, content, **query)
            except ApiError as error:
                show_refused(error)
                return
            except ApiUnreachable as error:
                show_lost(error, "Choose the file again.")
                return
        st.session_state["data.asked"], st.session_state["data.report"] = asked, report
    _checked(file.name, content, query, st.session_state["data.report"])


def _query(file: str, known: Sequence[PromptSetOut]) -> dict[str, str | None]:
    """What the widgets say: how the file is read, and what to look for."""
    columns = st.columns(3)
    mapping = columns[0].selectbox(
        "Columns", get_args(MappingName), key="data.mapping",
        help="plain: the columns named below. The others are the published columns of these sets, or verl's layout.",
    )  # fmt: skip
    reward = columns[1].selectbox("Check answers for reward", REWARDS, key="data.reward")
    refs = {"none": None, **{f"{s.name} ({s.n_prompts:,} prompts, {s.version})": s.ref for s in known}}
    against = columns[2].selectbox("Find prompts also in", list(refs), key="data.against")
    query: dict[str, str | None] = {"mapping": mapping, "reward": None if reward == "none" else reward}
    query["against"] = refs[against]
    model = st.text_input(
        "Count tokens as this model does", key="data.model", placeholder="pipeline/bundled/policy",
        help="Its folder, as model.path of a config; prompts longer than its context are found, chat template and all.",
    )  # fmt: skip
    query["model"] = model.strip() or None
    if mapping == "plain":
        fields = st.columns(4)
        for place, (key, label) in zip(
            fields,
            {
                "prompt": "Prompt column",
                "answer": "Answer column",
                "tags": "Tags column",
                "reward": "Reward column",
            }.items(),
            strict=True,
        ):
            query[f"{key}_key"] = place.text_input(label, key, key=f"data.{key}_key").strip() or key
    return query


def _checked(file: str, content: bytes, query: dict[str, str | None], report: PromptReport) -> None:
    if report.accepted:
        one = report.n_prompts == 1
        st.success(
            "1 prompt, it can be used" if one else f"{report.n_prompts:,} prompts, all of them can be used",
            icon=":material/check_circle:",
        )
    else:
        why = f": the file {text.markdown(report.fault)}" if report.fault else ""
        st.error(
            f"Not accepted{why}. Of {report.n_rows:,} rows {report.n_prompts:,} can be used; a set is kept as a whole "
            "or not at all, so mend the rows below and choose the file again.",
            icon=":material/error:",
        )
    st.caption(text.sentence(report.length))
    _findings(report)
    if report.preview:
        _prompts(report.preview, "The first prompts, as they were read")
    proposed = proposed_name(file)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input("Name of the set", proposed, key=f"data.name.{file}", width=320)
        missing = lacks("run")
        pressed = st.button(
            "Add this set", key="add-set", type="primary", disabled=not report.accepted or bool(missing), help=missing
        )
    if not pressed:
        return
    try:
        stored = client().upload_prompts(name, file, content, **query)
    except ApiError as error:
        show_refused(error)
    except ApiUnreachable as error:
        show_lost(error, "Press again when it is back.")
    else:
        st.query_params["set"] = f"{stored.name}@{stored.version}"
        st.rerun()


def _findings(report: PromptReport) -> None:
    """Bad rows by number and fault; warnings after what refuses the file."""
    for finding in sorted(report.findings, key=lambda f: not f.refuses):
        with st.expander(
            f"{text.sentence(finding.title)}: {finding.n:,}",
            expanded=finding.refuses,
            icon=":material/error:" if finding.refuses else ":material/warning:",
        ):
            rows: list[list[Any]] = [[escape(found.row), escape(found.message)] for found in finding.rows]
            blocks.table(["row", "what is wrong"], rows, caption=finding.title)
            if finding.n > len(finding.rows):
                st.caption(f"and {finding.n - len(finding.rows):,} more")
    for what in report.unchecked:
        st.warning(f"Not checked: {text.markdown(what)}", icon=":material/help:")


def _prompts(rows: Sequence[PreviewRow], caption: str) -> None:
    st.caption(caption)
    cells = [
        [
            f'<span title="{escape(row.text[:600])}">{escape(text.shorten(row.text, 160))}</span>',
            f"<code>{escape(text.shorten(row.answer, 60))}</code>",
            escape(text.shorten(", ".join(row.tags), 60)),
            escape(row.reward or ""),
        ]
        for row in rows
    ]
    blocks.table(["prompt", "answer", "tags", "reward"], cells, caption=caption)


render()
