"""One prompt in one run: its text and answer, and how its success rate moved it between buckets."""

from __future__ import annotations

from html import escape

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import Move, PromptHistory, PromptMarkOut, RolloutOut, RunDetail, Visit
from ui import blocks, charts, diff, health, marks, palette, text
from ui.connection import api_errors, client
from ui.form import lookup

SHOWN = 32  # rollouts
MOST_CHARACTERS = 4000  # of a response
VISITS_SHOWN = 200


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
    chips = blocks.bucket_chip(prompt.bucket) + "".join(map(marks.chip, prompt.marks))
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.html(
            f'<div class="pc-title"><h1>Prompt</h1>{chips}{tags}</div>'
            f'<div class="pc-facts">{palette.BUCKETS[prompt.bucket].meaning} · in {escape(run.name)} · '
            f"<code>{escape(prompt.id)}</code></div>",
            width="content",
        )
        with st.container(horizontal=True, width="content", key="prompt-actions"):
            marks.actions(run, prompt)
    if run.state not in palette.FINISHED_STATES and any(mark.applied_step is None for mark in prompt.marks):
        st.fragment(_until_marked, run_every=2)(str(run.id), prompt.id)
    left, right = st.container(key="panels").columns([2, 3], border=True)
    with left:
        st.html(
            '<div class="pc-heading"><h2>Text</h2></div>'
            f'<pre class="pc-text">{escape(prompt.text)}</pre>'
            '<div class="pc-heading"><h2>Reference answer</h2></div>'
            f'<pre class="pc-text">{escape(prompt.answer)}</pre>'
        )
        meters = [
            blocks.meter("rate at last visit", text.percent(prompt.success_rate, 0), _interval(history.visits)),
            blocks.meter("visits", text.hover(prompt.visits)),
            blocks.meter("rollouts", text.hover(prompt.rollouts)),
            blocks.meter("tokens", text.hover(prompt.tokens)),
        ]
        st.html(f'<div class="pc-meters pc-few">{"".join(meters)}</div>')
    with right:
        st.html(
            '<div class="pc-heading"><h2>History</h2>'
            "<span>success rate at every visit, and its 95% interval</span></div>"
        )
        names = {"p_lower": "too hard below", "p_upper": "too easy above", "p_solve": "solved from"}
        found = {words: lookup(run.config, f"method.{name}") for name, words in names.items()}
        charts.visits(history.visits, {name: float(v) for name, v in found.items() if v is not None})
    if history.visits:
        st.fragment(_rollouts)(str(run.id), prompt.id, sorted({v.step for v in history.visits}, reverse=True))
    _visits(history)
    _wishes(history.marks)


def _until_marked(run_id: str, prompt_id: str) -> None:
    """The page anew when the trainer has told from which step on the newest mark holds."""
    try:
        found = client().prompts(run_id, search=prompt_id, marked="any", limit=1).prompts
    except (ApiError, ApiUnreachable):
        return
    if not found or all(mark.applied_step is not None for mark in found[0].marks):
        st.rerun()


def _interval(visits: list[Visit]) -> str:
    """Of the last visit that had rewards."""
    known = [v for v in visits if v.success_rate is not None]
    if not known:
        return "not sampled yet"
    low, high = health.wilson(known[-1].success_rate or 0.0, known[-1].n - known[-1].n_failed)
    return f"95% interval {100 * low:.0f}–{100 * high:.0f}%"


def _rollouts(run_id: str, prompt_id: str, steps: list[int]) -> None:
    """What the policy answered, one visited step at a time, and a right against a wrong answer.

    steps: that visited it, the newest first. The address tells which is shown: the newest, or the last until that one.
    """
    asked = st.query_params.get("step", "")
    until = int(asked) if asked.isdecimal() else steps[0]
    at = next((at for at, step in enumerate(steps) if step <= until), len(steps) - 1)
    step = steps[at]
    with st.container(border=True), api_errors():
        found = client().prompt_rollouts(run_id, prompt_id, step + 1, steps=1).rollouts
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            words = f"of step {step:,}, {len(found)} in all"
            st.html(f'<div class="pc-heading"><h2>Rollouts</h2><span>{words}</span></div>')
            with st.container(horizontal=True, width="content"):
                st.button(
                    "Newer", icon=":material/chevron_left:", disabled=at == 0, on_click=_show_step,
                    args=(steps[at - 1],),
                )  # fmt: skip
                st.button(
                    "Older", icon=":material/chevron_right:", disabled=at == len(steps) - 1, on_click=_show_step,
                    args=(steps[min(at + 1, len(steps) - 1)],),
                )  # fmt: skip
        if not found:
            st.html('<div class="pc-placeholder" style="height:60px">The rollouts of this step are not kept.</div>')
            return
        _answers(found)
        _compared(found)


def _show_step(step: int) -> None:
    st.query_params["step"] = str(step)


def _answers(found: list[RolloutOut]) -> None:
    items = []
    for number, rollout in enumerate(found[:SHOWN], 1):
        per_token = (
            "" if rollout.logprob is None else f"log-prob {text.number(rollout.logprob)}, {_per_token(rollout)} a token"
        )
        failed = rollout.reward is None
        level = "warn" if failed else "good" if _right(rollout) else "bad"
        reward = "no reward" if failed else f"reward {text.number(rollout.reward)}"
        verdicts = f'<pre class="pc-verdicts">{escape(rollout.verdicts)}</pre>' if rollout.verdicts else ""
        shown = text.shorten(rollout.response, 90)
        items.append(
            f'<details><summary><span class="pc-finding pc-{level}">{number}. {escape(rollout.stage)} · {reward}'
            "</span> "
            f'<small>{rollout.n_tokens:,} tokens · {per_token}</small> <code>{escape(shown)}</code></summary>'
            f'<pre class="pc-text">{escape(_cut(rollout.response))}</pre>{verdicts}</details>'
        )  # fmt: skip
    more = f'<div class="pc-facts">The first {SHOWN} of {len(found)}.</div>' if len(found) > SHOWN else ""
    st.html(f'<div class="pc-rollouts">{"".join(items)}</div>{more}')


def _compared(found: list[RolloutOut]) -> None:
    right = [i for i, r in enumerate(found) if _right(r)]
    wrong = [i for i, r in enumerate(found) if r.reward is not None and not _right(r)]
    if not right or not wrong:
        which = "right" if right else "wrong" if wrong else "without a reward"
        st.html(f'<div class="pc-facts">All are {which}: there is nothing to compare.</div>')
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.html('<div class="pc-heading"><h2>Right against wrong</h2></div>', width="content")
        chosen = [
            st.selectbox(label, options, format_func=lambda i: f"{i + 1}.", key=f"compare-{label}", width=110)
            for label, options in (("Right", right), ("Wrong", wrong))
        ]
    a, b = (_cut(found[i].response) for i in chosen)
    st.html(f'<pre class="pc-text pc-diff">{diff.words(a, b)}</pre>')
    st.html('<div class="pc-facts"><ins>only in the right one</ins> · <del>only in the wrong one</del></div>')


def _right(rollout: RolloutOut) -> bool:
    return (rollout.success or 0.0) >= 0.5


def _per_token(rollout: RolloutOut) -> str:
    return text.number((rollout.logprob or 0.0) / max(1, rollout.n_tokens))


def _cut(response: str) -> str:
    over = len(response) - MOST_CHARACTERS
    return response if over <= 0 else f"{response[:MOST_CHARACTERS]}\n… and {over:,} characters more"


def _visits(history: PromptHistory) -> None:
    visits, moves = history.visits, history.moves
    if not visits:
        return
    rows = [
        (
            (v.step, 1 + at),
            [
                f"{v.step:,}", escape(v.stage), text.number(v.n), text.number(v.n_failed) if v.n_failed else "",
                text.percent(v.success_rate, 0), text.fixed(v.reward_variance, 3), text.hover(v.tokens),
                blocks.bucket_chip(v.bucket), str(v.attempt),
            ],
        )
        for at, v in enumerate(visits)
    ]  # fmt: skip
    empty = [""] * 5
    taken_back = {mark.applied_step for mark in history.marks if mark.mark in ("exclude", "retest")}
    rows += [
        ((m.step, 0), [f"{m.step:,}", _why(m, taken_back), *empty, blocks.bucket_chip(m.bucket), str(m.attempt)])
        for m in moves
    ]
    shown = [cells for _, cells in sorted(rows, reverse=True)[:VISITS_SHOWN]]
    head = [
        "step", "stage", "rollouts", "no reward", "success rate", "variance", "tokens", "bucket after it", "attempt",
    ]  # fmt: skip
    with st.container(border=True):
        st.html('<div class="pc-heading"><h2>Visits and moves</h2><span>newest first</span></div>')
        blocks.table(head, shown, right=(0, 2, 3, 4, 5, 6, 8), caption="Visits")


def _why(move: Move, taken_back: set[int | None]) -> str:
    if move.bucket == "committed":
        return "trained on"
    return "taken back by a mark" if move.step in taken_back else "grew too old"


def _wishes(wished: list[PromptMarkOut]) -> None:
    if not wished:
        return
    rows = [
        [
            palette.MARKS[mark.mark].action,
            "the next one" if mark.applied_step is None else f"{mark.applied_step:,}",
            text.when(mark.wished_at),
            escape(mark.wished_by),
        ]
        for mark in wished
    ]
    with st.container(border=True):
        st.html('<div class="pc-heading"><h2>Marks</h2><span>what was wished for it, newest first</span></div>')
        blocks.table(["mark", "holds from step", "wished", "by"], rows, right=(1,), caption="Marks")


render()
