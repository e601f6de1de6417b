"""Prompt sets: which there are and which runs use them; a file or a data set of the hub is checked and added here."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, get_args

import streamlit as st

from api.client import ApiError, ApiUnreachable, proposed_name
from api.schemas import MappingName, PreviewRow, PromptCheck, PromptReport, PromptSetDetail, PromptSetOut
from ui import blocks, text
from ui.connection import api_errors, client, lacks, show_lost, show_refused

PAGE_SIZE = 200
ROWS = 20
MOST_MB = 64  # the dashboard holds it while the page is open; the API, which keeps it on disk, takes 256 MiB
FILE, HUB = "File", "Hub data set"
HUB_ADDRESS = "https://huggingface.co/datasets/"
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
            "Add a file below, JSONL, JSON, CSV or Parquet, or a data set of the Hugging Face hub. It is checked "
            "first, and kept as a whole or not at all. A run config names it as <code>set:NAME@VERSION</code>. The "
            "path of a file works as well, and a data set that <code>./pilot data fetch</code> has fetched.",
        )
        return
    rows = [
        [
            f'<a href="data?set={escape(s.name)}@{s.version}" target="_self">{escape(s.name)}</a>',
            f"<code>{s.version}</code>",
            text.hover(s.n_prompts),
            text.size(s.n_bytes),
            f'<span title="{escape(s.file)}">{escape(f"{text.shorten(_short(s.file), 40)}, {s.mapping}")}</span>',
            text.hover(s.n_runs) if s.n_runs else '<span class="pc-faint">none</span>',
            f"{text.when(s.created_at)} by {escape(s.created_by)}",
        ]
        for s in found
    ]
    head = ["set", "version", "prompts", "size", "from", "runs", "added"]
    blocks.table(head, rows, right=(2, 3, 5), caption="Prompt sets, newest first")


def _short(source: str) -> str:
    """A data set of the hub with the beginning of its commit."""
    return re.sub(r"^(hub:[^@]+@[0-9a-f]{7})[0-9a-f]{33}", r"\1", source)


# One version


def _one(stored: PromptSetDetail) -> None:
    st.page_link("screens/data.py", label="All prompt sets", icon=":material/arrow_back:")
    st.title(stored.name, anchor=False)
    st.code(stored.ref, language=None)
    st.caption(
        f"A run config writes this as `data.train` or `data.eval`. Made from {text.markdown(stored.file)}, read as "
        f"{stored.mapping}."
    )
    meters = [
        blocks.meter("prompts", text.hover(stored.n_prompts)),
        blocks.meter("size", text.size(stored.n_bytes)),
        blocks.meter(
            "longest prompt",
            text.hover(stored.report.longest),
            "tokens" if stored.report.longest else stored.report.length.removeprefix("length: "),
        ),
        blocks.meter("runs that use it", text.hover(stored.n_runs) if stored.n_runs else "none"),
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
        if st.button("Back", icon=":material/chevron_left:", disabled=offset == 0):
            st.session_state[key] = max(0, offset - ROWS)
            st.rerun()
        if st.button("Next", icon=":material/chevron_right:", disabled=part.next_offset is None):
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


# A new one


def _add(known: Sequence[PromptSetOut]) -> None:
    st.subheader("Add a prompt set", anchor=False)
    source = st.segmented_control(
        "From", (FILE, HUB), default=FILE, key="data.source", label_visibility="collapsed", required=True
    )
    if source == HUB:
        _add_from_hub(known)
    else:
        _add_file(known)


def _add_file(known: Sequence[PromptSetOut]) -> None:
    file = st.file_uploader(
        "File of prompts", type=["jsonl", "json", "csv", "parquet"], key="data.file", max_upload_size=MOST_MB,
        help="A row is a prompt (a text, or a list of messages) and its reference answer; tags and the name of a "
        "reward are optional.",
    )  # fmt: skip
    st.caption("A larger one, up to 256 MiB: `./pilot data upload FILE`, or `POST /api/v1/prompt-sets`.")
    if file is None:
        return
    query = _query(known)
    content = file.getvalue()
    report = _report(
        (file.file_id, query), "Reading the file", "Choose the file again.",
        lambda: client().check_prompts(file.name, content, **query),
    )  # fmt: skip
    if report is not None:
        _checked(
            file.name, report, "name other columns above, or mend the rows below and choose the file again",
            lambda name: client().upload_prompts(name, file.name, content, **query),
        )  # fmt: skip


def _add_from_hub(known: Sequence[PromptSetOut]) -> None:
    """Nothing is fetched before the button is pressed, or Enter; then what came is read again, as often as the columns
    change, at the commit that was looked at."""
    missing = lacks("run")
    with st.form("data.hub.form", border=False), st.container(horizontal=True, vertical_alignment="bottom"):
        typed = st.text_input(
            "Data set of the Hugging Face hub", key="data.hub", placeholder="hub:openai/gsm8k:main/train", width=480,
            help="hub:OWNER/NAME, with @REVISION if it is not main, and :SPLIT if it is not train. A split is the name "
            "of its files without numbers and ending, with its folder where several have one: main/train.",
        )  # fmt: skip
        pressed = st.form_submit_button("Look at it", icon=":material/search:", disabled=bool(missing), help=missing)
    st.caption("The API fetches it, up to 1 GiB. Larger ones: `./pilot data fetch` where the API runs.")
    source = _reference(typed)
    if pressed:
        st.session_state["data.looked"] = source
        for of_before in ("data.asked", "data.pinned"):
            st.session_state.pop(of_before, None)
    if st.session_state.get("data.looked") != source:
        return
    columns = st.empty()
    with columns.container():
        query = _query(known)
    report = _report(
        (source, query), "Fetching the data set and reading it. A large one takes minutes.",
        "Look at it again: a data set that has come whole is not fetched twice.",
        lambda: client().check_hub(st.session_state.get("data.pinned", source), **query),
    )  # fmt: skip
    if report is not None and report.hub is not None:
        pinned = st.session_state["data.pinned"] = report.hub
        st.code(pinned, language=None, wrap_lines=True)
        _checked(
            pinned, report, "choose other columns, or mend the rows below and add them as a file",
            lambda name: client().add_from_hub(name, pinned, **query),
        )  # fmt: skip
    elif "data.pinned" not in st.session_state:  # nothing came: only the button asks for it again
        columns.empty()
        del st.session_state["data.looked"]


def _reference(typed: str) -> str:
    """As the API takes it; the address of a data set's page and OWNER/NAME alone will do."""
    return f"hub:{typed.strip().removeprefix(HUB_ADDRESS).removeprefix('hub:').strip('/')}"


def _query(known: Sequence[PromptSetOut]) -> dict[str, str | None]:
    """What the widgets say: how the file is read, and what to look for."""
    columns = st.columns(3)
    mapping = columns[0].selectbox(
        "Columns", get_args(MappingName), key="data.mapping",
        help="plain: the columns named below. The others are the published columns of these sets, or verl's layout.",
    )  # fmt: skip
    reward = columns[1].selectbox("Check answers for reward", REWARDS, key="data.reward")
    refs = {"none": None, **{f"{s.name} ({text.counted(s.n_prompts, 'prompt')}, {s.version})": s.ref for s in known}}
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


def _report(
    asked: tuple[str, dict[str, str | None]], words: str, again: str, check: Callable[[], PromptCheck]
) -> PromptCheck | None:
    """Asked for once, until something else is asked for. None: there is none, and why was told."""
    if st.session_state.get("data.asked") != asked:
        with st.spinner(words, show_time=True):
            try:
                report = check()
            except ApiError as error:
                show_refused(error)
                return None
            except ApiUnreachable as error:
                show_lost(error, again)
                return None
        st.session_state["data.asked"], st.session_state["data.report"] = asked, report
    found: PromptCheck = st.session_state["data.report"]
    return found


def _checked(source: str, report: PromptReport, way_out: str, add: Callable[[str], PromptSetDetail]) -> None:
    """The report, and the button that adds the set under a name. source: the file's name, or the data set's."""
    if report.accepted:
        one = report.n_prompts == 1
        st.success(
            "1 prompt, it can be used" if one else f"{report.n_prompts:,} prompts, all of them can be used",
            icon=":material/check_circle:",
        )
    elif report.fault:  # of the whole: it says more than the rows that were read until then
        what = "data set" if source.startswith("hub:") else "file"
        above = " Name its columns above." if report.columns else ""
        st.error(f"Not accepted: the {what} {text.markdown(report.fault)}.{above}", icon=":material/error:")
    else:
        st.error(
            f"Not accepted. Of {report.n_rows:,} rows {report.n_prompts:,} can be used; a set is kept as a whole "
            f"or not at all, so {way_out}.",
            icon=":material/error:",
        )
    st.caption(text.sentence(report.length))
    _findings(report)
    if report.preview:
        _prompts(report.preview, "The first prompts, as they were read")
    proposed = proposed_name(source)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.text_input("Name of the set", proposed, key=f"data.name.{source}", width=320)
        missing = lacks("run")
        pressed = st.button(
            "Add this set", key="add-set", type="primary", disabled=not report.accepted or bool(missing), help=missing
        )
    if not pressed:
        return
    try:
        stored = add(name)
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
    columns = {
        "prompt": [f'<span title="{escape(r.text[:600])}">{escape(text.shorten(r.text, 160))}</span>' for r in rows],
        "answer": [f"<code>{escape(text.shorten(row.answer, 60))}</code>" for row in rows],
        "tags": [escape(text.shorten(", ".join(row.tags), 60)) for row in rows],
        "reward": [escape(row.reward or "") for row in rows],
    }
    told = {name: cells for name, cells in columns.items() if any(cells)}  # a column that no row fills tells nothing
    blocks.table(list(told), list(zip(*told.values(), strict=True)), caption=caption)


render()
