"""Bring your own logs: what of somebody's rollouts taught nothing, and what other methods would have spent."""

from __future__ import annotations

from typing import Any

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import Audit
from ui import blocks, text
from ui.connection import api_errors, client, show_lost, show_refused

MOST_MB = 60  # the API takes 64 MiB, the wrapping of the files included
HEIGHT = 1000
KINDS = ("jsonl", "parquet", "csv")
FORMATS = {"verl": "verl", "trl": "TRL", "csv": "CSV", "pilot": "this platform"}
SOURCES = ("A run of ours", "Files")


def render() -> None:
    st.title("Audit", anchor=False)
    st.html(
        '<div class="pc-facts">What of a log of rollouts taught nothing, and what Pilot-Commit, DAPO and PODS would '
        "have spent on the same stream. For larger logs: <code>./pilot audit PATH</code> where they are.</div>"
    )
    with api_errors():
        source = st.segmented_control(
            "Log", SOURCES, default=SOURCES[0] if st.query_params.get("run") else SOURCES[1], key="audit-source",
            label_visibility="collapsed", required=True,
        )  # fmt: skip
        run = files = None
        if source == SOURCES[0]:
            run = _choose_run()
        else:
            files = st.file_uploader(
                "verl's STEP.jsonl, TRL's completions_STEP.parquet (all of a folder), or a CSV of step, prompt, reward",
                type=KINDS,
                accept_multiple_files=True,
                key="audit-files",
                max_upload_size=MOST_MB,
            )
        log = run or [file.file_id for file in files or []]
        settings = _settings(files is not None)
        if st.button(
            "Audit", type="primary", icon=":material/query_stats:", key="audit-go", disabled=not (run or files)
        ):
            st.session_state["audit"] = None
            with st.spinner("Reading the log and replaying it. Large logs take minutes.", show_time=True):
                st.session_state["audit"] = (log, _asked(run, files or [], settings))
        audited, found = st.session_state.get("audit") or (None, None)
        if audited == log:  # not the report of what was chosen before
            _show(found)


def _choose_run() -> str | None:
    """The id of a run that has begun."""
    names = {str(r.id): f"{r.name}, {text.method(r.method)}" for r in client().list_runs(limit=50).runs if r.step}
    asked = st.query_params.get("run")
    if asked and asked not in names:
        names = {asked: client().get_run(asked).name} | names
    if not names:
        blocks.empty("No run has trained yet", "Start one under <b>New run</b>, or audit files of your own.")
        return None
    return st.selectbox(
        "Run", list(names), index=list(names).index(asked) if asked else 0, format_func=names.__getitem__,
        key=f"audit-run-{asked}", on_change=_keep, args=(f"audit-run-{asked}",), width=480,
    )  # fmt: skip


def _keep(key: str) -> None:
    st.query_params["run"] = st.session_state[key]


def _settings(of_files: bool) -> dict[str, Any]:
    """What was changed from its default; what is left empty follows the log."""
    chosen: dict[str, Any] = {}
    with st.expander("Settings"):
        left, right = st.columns(2)
        with left:
            if of_files:
                chosen["format"] = st.selectbox(
                    "Format",
                    list(FORMATS),
                    index=None,
                    format_func=FORMATS.__getitem__,
                    placeholder="told by the files",
                )
                named = st.text_input("Reward columns", placeholder="those of the format", help="Several: their sum.")
                chosen["reward"] = named.replace(",", " ").split()
                chosen["success"] = st.text_input(
                    "Success column", placeholder="acc, success, or the reward", help="Right (1) or wrong (0)."
                )
                chosen["success_at"] = st.number_input(
                    "Right from this reward on",
                    value=None,
                    placeholder="rewards in [0, 1] are the success",
                    format="%g",
                )
                chosen["skip_bad"] = st.checkbox("Leave bad rows out, and name them")
            chosen["replays"] = _whole("Replays of each method", "20, fewer on large logs")
        with right:
            chosen["n"] = _whole("Rollouts per prompt: GRPO, PODS, DAPO", "as logged", 2)
            chosen["n_pilot"] = _whole("Pilots per prompt", "a quarter of them, at least 2")
            chosen["n_commit"] = _whole("Commits per prompt", "the rest")
            chosen["p_lower"] = st.number_input("Deferred below", 0.0, 1.0, 0.125, format="%g")
            chosen["p_upper"] = st.number_input("Skipped above", 0.0, 1.0, 0.75, format="%g")
            chosen["p_solve"] = st.number_input("Evicted from", 0.0, 1.0, 1.0, format="%g")
    return {name: value for name, value in chosen.items() if value not in (None, "", [], False)}


def _whole(label: str, left_out: str, least: int = 1) -> int | None:
    found = st.number_input(label, least, 4096, None, placeholder=left_out)
    return None if found is None else int(found)


def _asked(run: str | None, files: list[Any], settings: dict[str, Any]) -> Audit | None:
    try:
        if run:
            return client().audit_run(run, settings)
        return client().audit_files([(file.name, file.getvalue()) for file in files], settings)
    except ApiUnreachable as error:
        show_lost(error, "Try again.")
    except ApiError as error:
        show_refused(error)
    return None


def _show(found: Audit | None) -> None:
    if found is None:
        return
    with st.container(horizontal=True):
        st.download_button(
            "Report", found.page, "audit.html", "text/html", icon=":material/download:", on_click="ignore",
            key="audit-html", help="One HTML file that needs no network.",
        )  # fmt: skip
        st.download_button(
            "JSON", found.report.model_dump_json(indent=2), "audit.json", "application/json",
            icon=":material/download:", on_click="ignore", key="audit-json",
        )  # fmt: skip
    with st.container(key="audit-report"):
        # Of its own height: to measure the page Streamlit would need a script in it, and it allows none.
        st.iframe(found.page, height=HEIGHT, alt="Report of the audit")


render()
