"""Evaluations on demand, below a run: ask for one of a checkpoint, see what became of it, take the responses."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import CheckpointEvaluation, RunDetail
from ui import blocks, text
from ui.benchmarks import HELD_OUT
from ui.connection import client, in_a_line, in_words, lacks
from ui.palette import FINISHED_STATES

EVERY_S = 2  # while one is under way
SHOWN = 20


def evaluate_button(run: RunDetail, step: int) -> None:
    """Asks for an evaluation of the checkpoint of `step`."""
    missing = lacks("run")
    section: dict[str, Any] = run.config.get("evaluation", {})
    names = [HELD_OUT, *(b["name"] for b in section.get("benchmarks", ()))]
    names += [section["protocol"]] if section.get("protocol") else []
    sent = st.session_state.get("evaluations-sent", 0)  # a new key closes it
    with st.popover(
        "Evaluate", icon=":material/monitoring:", key=f"evaluate-{sent}", disabled=bool(missing),
        help=missing or "Measure this checkpoint on benchmarks, whenever a slot is free",
    ):  # fmt: skip
        chosen = st.multiselect(
            "Benchmarks", names, key="evaluate-benchmarks", placeholder="all of the run's", accept_new_options=True,
            help="Or type a prompt set, as data.eval of a config: a file, or set:NAME@VERSION. The held-out set always "
            "comes with them.",
        )  # fmt: skip
        left, right = st.columns(2)
        samples = left.number_input(
            "Samples per prompt", min_value=1, value=None, step=1, placeholder="as the run", key="evaluate-samples"
        )
        temperature = right.number_input(
            "Temperature", min_value=0.05, value=None, step=0.1, placeholder="as the run", key="evaluate-temperature",
            format="%g",
        )  # fmt: skip
        if st.button(f"Evaluate step {step:,}", type="primary", key="evaluate-now", disabled=bool(missing)):
            protocol = section.get("protocol") if section.get("protocol") in chosen else None
            benchmarks = [name for name in chosen if name != protocol]
            ask = {
                "step": step, "benchmarks": benchmarks or None, "protocol": protocol, "samples": samples,
                "temperature": temperature,
            }  # fmt: skip
            _sent(run, {name: value for name, value in ask.items() if value is not None})


def _sent(run: RunDetail, ask: dict[str, Any]) -> None:
    try:
        client().evaluate(run.id, ask)
    except ApiUnreachable as error:
        st.error(f"Not sent: {error.why}. Press again when the API is back.")
    except ApiError as error:
        told = "; ".join(f"{e.field}: {e.message}" for e in in_words(error.problem).errors)
        st.error(text.markdown(told or in_a_line(error)))
    else:
        st.session_state["evaluations-sent"] = st.session_state.get("evaluations-sent", 0) + 1
        st.rerun()


def asked(run: RunDetail) -> None:
    """What was asked for of this run, newest first. It follows by itself while something is under way."""
    found = client().evaluations(run.id, limit=SHOWN).evaluations
    under_way = any(e.state not in FINISHED_STATES for e in found)
    st.fragment(_asked, run_every=EVERY_S if under_way else None)(run, under_way)


def _asked(run: RunDetail, followed: bool) -> None:
    try:
        page = client().evaluations(run.id, limit=SHOWN)
    except (ApiUnreachable, ApiError):
        st.caption("Not known while the API does not answer.")
        return
    found = page.evaluations
    if any(e.state not in FINISHED_STATES for e in found) != followed:
        st.rerun()  # the whole page: its charts have news, too
    if not found:
        st.caption("No evaluation was asked for yet: Evaluate measures the chosen checkpoint on benchmarks.")
        return
    st.html('<div class="pc-heading"><h2>Evaluations</h2><span>on demand</span></div>')
    head = ["step", "state", "accuracy", "rollouts", "time", "asked", "by"]
    blocks.table(head, [_row(e) for e in found], right=(0, 3, 4), caption="Evaluations on demand")
    missing = lacks("run")
    with st.container(horizontal=True):
        for evaluation in found:
            if evaluation.state in ("queued", "starting", "running") and st.button(
                f"Stop evaluation of step {evaluation.step:,}", icon=":material/stop:", key=f"stop-{evaluation.id}",
                disabled=bool(missing), help=missing,
            ):  # fmt: skip
                _stop(evaluation)


def _row(evaluation: CheckpointEvaluation) -> list[str]:
    results = "".join(
        f'<span class="pc-result">{escape(r.name)} <b>{text.percent(r.accuracy)}</b> '
        f'<span class="pc-faint">± {text.percent(r.stderr)}</span></span>'
        for r in evaluation.results
    )
    names = ", ".join(b.name for b in evaluation.benchmarks)
    told = "" if evaluation.state == "succeeded" or not evaluation.reason else escape(evaluation.reason)
    return [
        f"{evaluation.step:,}",
        blocks.state_chip(evaluation.state) + (f'<br><span class="pc-faint">{told}</span>' if told else ""),
        results or f'<span class="pc-faint">{escape(names)}</span>',
        text.hover(evaluation.rollouts) if evaluation.rollouts else "–",
        text.duration(evaluation.seconds) if evaluation.seconds else "–",
        text.when(evaluation.created_at),
        escape(evaluation.created_by or ""),
    ]


def _stop(evaluation: CheckpointEvaluation) -> None:
    try:
        client().stop_evaluation(evaluation.id)
    except ApiUnreachable as error:
        st.toast(f"Not sent: {error.why}. Press again when the API is back.", icon=":material/error:")
    except ApiError as error:
        st.toast(text.markdown(in_a_line(error)), icon=":material/error:")
    else:
        st.rerun()


def responses(run: RunDetail, step: int) -> None:
    """Downloads of what the policy answered in evaluations of this step."""
    files = [f for f in client().evaluation_files(run.id, from_step=step, limit=1).files if f.step == step]
    if not files:
        return
    sizes = {f.benchmark: f.n_bytes for f in files}
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox(
            f"Responses of step {step:,}", list(sizes), key=f"responses-{step}", width=300,
            format_func=lambda n: f"{n} · {text.size(sizes[n])}",
        )  # fmt: skip
        st.download_button(
            "Download", partial(client().download_evaluation, run.id, step, name), key="download-responses",
            file_name=f"step_{step:06d}-{name}.parquet", icon=":material/download:",
        )  # fmt: skip
