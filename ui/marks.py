"""Marks of prompts: how they are shown, and the buttons that wish for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from html import escape

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import PromptMarkName, PromptMarkOut, PromptRow, PromptsMarked, RunDetail
from ui import palette, text
from ui.connection import client, in_words, lacks


def words(mark: PromptMarkOut) -> str:
    """From which step on it holds, and who wished it when."""
    known = mark.applied_step is not None
    holds = f"from step {mark.applied_step:,} on" if known else "from the next step on"
    return f"{holds}; wished {text.ago(mark.wished_at)} by {mark.wished_by}"


def name(mark: PromptMarkOut) -> str:
    kind = palette.MARKS[mark.mark]
    return kind.to_come if mark.applied_step is None else kind.held


def chip(mark: PromptMarkOut) -> str:
    moving = " pc-moving" if mark.applied_step is None else ""
    return (
        f'<span class="pc-chip{moving}" style="--c:{palette.MARKS[mark.mark].colour}" title="{escape(words(mark))}">'
        f"<i></i>{name(mark)}</span>"
    )


def listed(marks: Sequence[PromptMarkOut]) -> tuple[str | None, str]:
    """For a prompt in a list: the icon of its newest mark, and all of them as Markdown to stand before its text."""
    if not marks:
        return None, ""
    return palette.MARKS[marks[-1].mark].icon, f":gray[{', '.join(map(name, marks))} ·] "


def actions(run: RunDetail, prompt: PromptRow) -> None:
    """Three buttons for one prompt. Each turns into what takes it back."""
    standing: PromptMarkName = next((m.mark for m in prompt.marks if m.mark in ("pin", "exclude")), "clear")
    retest = any(m.mark == "retest" for m in prompt.marks)
    closed = refusal(run)
    _button(
        run, prompt.id, "Unpin" if standing == "pin" else "Pin", "clear" if standing == "pin" else "pin", "keep",
        closed, "No longer first, and evicted when it is solved" if standing == "pin" else palette.MARKS["pin"].meaning,
    )  # fmt: skip
    _button(
        run, prompt.id, "Include" if standing == "exclude" else "Exclude",
        "clear" if standing == "exclude" else "exclude", "block", closed,
        "Sampled again in its turn" if standing == "exclude" else palette.MARKS["exclude"].meaning,
    )  # fmt: skip
    _button(
        run, prompt.id, "Cancel re-test" if retest else "Re-test", standing if retest else "retest", "replay",
        closed or ("It is excluded; include it first." if standing == "exclude" else None),
        "It has not begun yet" if retest else palette.MARKS["retest"].meaning,
    )  # fmt: skip


def refusal(run: RunDetail) -> str | None:
    """Why no mark can be wished for in this run; None when one can."""
    if run.state == "succeeded":
        return "The run has succeeded: no further step will come."
    return lacks("run")


def _button(
    run: RunDetail, prompt_id: str, label: str, mark: PromptMarkName, icon: str, closed: str | None, said: str
) -> None:
    if st.button(
        label, icon=f":material/{icon}:", key=f"mark-{icon}", disabled=bool(closed), help=text.markdown(closed or said)
    ):
        send(lambda: client().mark_prompts(run.id, mark, [prompt_id]))


def for_all(run: RunDetail, n: int, ask: Callable[[PromptMarkName], PromptsMarked]) -> None:
    """What can be wished for all n prompts of a selection, behind a menu that says for how many."""
    closed = refusal(run)
    with st.popover(
        "Mark all", icon=":material/bookmark:", disabled=bool(closed),
        help=text.markdown(closed or "Pin, exclude or re-test every prompt of this selection"), key="mark-all",
    ):  # fmt: skip
        moves = (
            ""
            if run.state in palette.FINISHED_STATES
            else " Steps move prompts: those that are in it at your click are marked."
        )
        st.markdown(f"**{n:,} prompt{'' if n == 1 else 's'}** of this selection, from the next step on.{moves}")
        for mark in palette.MARKS.values():
            if st.button(mark.action, icon=mark.icon, key=f"all-{mark.name}", help=mark.meaning, width="stretch"):
                send(partial(ask, mark.name))


def send(ask: Callable[[], PromptsMarked]) -> None:
    """Wish for it and show the page anew; what is refused is told in words."""
    try:
        done = ask()
    except ApiUnreachable as error:
        st.toast(f"Not sent: {text.markdown(error.why)}. Press again when the API is back.", icon=":material/error:")
    except ApiError as error:
        problem = in_words(error.problem)
        why = f" {problem.errors[0].value}: {problem.errors[0].message}." if problem.errors else ""
        st.toast(text.markdown(f"{problem.title}. {problem.detail}{why}"), icon=":material/error:")
    else:
        before = f"; {done.unchanged:,} {'was' if done.unchanged == 1 else 'were'} already" if done.unchanged else ""
        n = f"{done.marked:,} prompt{'' if done.marked == 1 else 's'}"
        st.toast(f"{n} {palette.MARKS[done.mark].to_come}{before}", icon=palette.MARKS[done.mark].icon)
        st.rerun()
