"""One prompt in one run: its text and answer, and how its success rate moved it between buckets."""

from __future__ import annotations

from html import escape

import streamlit as st

from api.schemas import PromptHistory, RunDetail, Visit
from ui import blocks, charts, palette, text
from ui.connection import api_errors, client
from ui.form import lookup


def render() -> None:
    run_id, prompt_id = st.query_params.get("run"), st.query_params.get("prompt")
    if not run_id or not prompt_id:
        blocks.empty("No prompt chosen", "Open a run and choose one of its prompts.")
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")
        return
    st.page_link("screens/prompts.py", label="Prompts", icon=":material/arrow_back:", query_params={"run": run_id})
    with api_errors():
        _page(client().get_run(run_id), client().prompt(run_id, prompt_id))


def _page(run: RunDetail, history: PromptHistory) -> None:
    prompt = history.prompt
    tags = "".join(f'<span class="pc-tag">{escape(tag)}</span>' for tag in prompt.tags)
    st.html(
        f'<div class="pc-title"><h1>Prompt</h1>{blocks.bucket_chip(prompt.bucket)}{tags}</div>'
        f'<div class="pc-facts">{palette.BUCKETS[prompt.bucket].meaning} · in {escape(run.name)} · '
        f"<code>{escape(prompt.id)}</code></div>"
    )
    left, right = st.columns([2, 3], border=True)
    with left:
        st.html(
            '<div class="pc-heading"><h2>Text</h2></div>'
            f'<pre class="pc-text">{escape(prompt.text)}</pre>'
            '<div class="pc-heading"><h2>Reference answer</h2></div>'
            f'<pre class="pc-text">{escape(prompt.answer)}</pre>'
        )
        meters = [
            blocks.meter("success rate", text.percent(prompt.success_rate, 0), "last visit"),
            blocks.meter("visits", text.hover(prompt.visits)),
            blocks.meter("rollouts", text.hover(prompt.rollouts)),
            blocks.meter("tokens", text.hover(prompt.tokens)),
        ]
        st.html(f'<div class="pc-meters pc-few">{"".join(meters)}</div>')
    with right:
        st.html('<div class="pc-heading"><h2>History</h2><span>success rate at every visit</span></div>')
        names = ("p_lower", "p_upper", "p_solve")
        found = {name: lookup(run.config, f"method.{name}") for name in names}
        charts.visits(history.visits, {name: float(v) for name, v in found.items() if v is not None})
    _visits(history.visits)


def _visits(visits: list[Visit]) -> None:
    if not visits:
        return
    rows = [
        [
            f"{v.step:,}", escape(v.stage), text.number(v.n), text.number(v.n_failed) if v.n_failed else "",
            text.percent(v.success_rate, 0), text.number(v.reward_variance), text.hover(v.tokens),
            blocks.bucket_chip(v.bucket), str(v.attempt),
        ]
        for v in reversed(visits[-200:])
    ]  # fmt: skip
    head = [
        "step",
        "stage",
        "rollouts",
        "no reward",
        "success rate",
        "variance",
        "tokens",
        "bucket after it",
        "attempt",
    ]
    with st.container(border=True):
        st.html('<div class="pc-heading"><h2>Visits</h2><span>newest first</span></div>')
        blocks.table(head, rows, right=(0, 2, 3, 4, 5, 6, 8), caption="Visits")


render()
