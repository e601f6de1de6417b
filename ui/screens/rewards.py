"""Try a reward: paste what a policy wrote, and see what was extracted of each response, what that was compared with,
and why it scores as it does.
"""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st
import yaml

from api.client import ApiError, ApiUnreachable
from api.schemas import RewardOut, RewardPart, RewardResult
from ui import blocks, palette, text
from ui.connection import api_errors, client, show_lost, show_refused

BETWEEN = "\n---\n"  # separates responses
# Reward -> parameters, reference answer, responses: something to look at before anything is pasted.
SAMPLES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "exact": ({}, "42", ("42", " 42\n", "forty-two")),
    "numeric": ({}, "3.5", ("It is 7/2, so 3.5", "About 3.49", "No number here")),
    "gsm8k": ({}, "72", ("48 + 24 = 72\n#### 72", "#### 1,072", "So she sold 72.")),
    "math": (
        {},
        "\\frac{1}{2}",
        ("So it is $\\boxed{0.5}$.", "$\\boxed{\\frac{2}{4}}$", "$\\boxed{2}$", "I do not know"),
    ),
    "choice": ({}, "B", ("The answer is (B).", "\\boxed{C}", "Either A or B")),
    "format": ({"shape": "think"}, "", ("<think>2 + 2 = 4</think> 4", "4")),
    "sum": (
        {"parts": [{"reward": {"name": "math"}}, {"weight": 0.2, "reward": {"name": "format", "shape": "think"}}]},
        "4",
        ("<think>2 + 2</think> \\boxed{4}", "\\boxed{4}", "<think>2 + 2</think> \\boxed{5}"),
    ),
}


def render() -> None:
    st.title("Rewards", anchor=False)
    st.caption("Try a reward on responses before a run depends on it. Nothing is stored.")
    with api_errors():
        if "rewards.known" not in st.session_state:
            st.session_state["rewards.known"] = {r.name: r for r in client().rewards()}
        known: dict[str, RewardOut] = st.session_state["rewards.known"]
        left, right = st.columns(2, gap="large")
        with left:
            _ask(known)
        with right:
            _results(known[st.session_state["reward"]])


def _ask(known: dict[str, RewardOut]) -> None:
    if "reward" not in st.session_state:
        st.session_state["reward"] = "math"
        _sample()
    name = st.selectbox("Reward", list(known), key="reward", bind="query-params", on_change=_sample)
    reward = known[name]
    st.caption(text.markdown(reward.title))  # not in the selector, which would cut it off
    _about(reward)
    if not reward.judges:
        blocks.empty("Not tried alone", "It judges no response by itself: try it as a part of the reward <b>sum</b>.")
        return
    if reward.elsewhere:
        words = escape(reward.elsewhere)
        blocks.empty(
            "Not tried here",
            f"The API does not run it: {words}. On a worker's machine: "
            f"<code>./pilot reward test {escape(name)} --response @response.txt --answer @answer.txt</code>",
        )
        return
    with st.form("try-reward", border=False):
        st.text_area("Parameters, as YAML", key="rewards.parameters", height=96, placeholder="timeout_s: 2")
        st.text_area("Reference answer", key="rewards.answer", height=68)
        st.text_area("Responses, a line of --- between two", key="rewards.responses", height=240)
        with st.expander("Prompt and tokens, for rewards that look at them"):
            st.text_area("Prompt", key="rewards.prompt", height=68)
            st.number_input("Response tokens", min_value=0, value=None, step=1, key="rewards.n_tokens")
        sent = st.form_submit_button("Score", type="primary", icon=":material/play_arrow:")
    if sent:
        _score(name)


def _about(reward: RewardOut) -> None:
    rows = []
    for name, field in reward.parameters.get("properties", {}).items():
        if name not in ("name", "version"):
            default = "required" if name in reward.parameters.get("required", ()) else repr(field.get("default"))
            words = escape(text.shorten(field.get("description", ""), 200))
            rows.append([f"<code>{escape(name)}</code>", f"<code>{escape(text.shorten(default, 40))}</code>", words])
    with st.expander(f"About {reward.name}, version {reward.version}"):
        st.markdown(text.markdown(reward.description))
        if rows:
            blocks.table(["parameter", "default", ""], rows, caption="Parameters")


def _sample() -> None:
    """The reward's own example in place of what is there."""
    parameters, answer, responses = SAMPLES.get(st.session_state["reward"], ({}, "", ()))
    st.session_state["rewards.parameters"] = text.yaml(parameters) if parameters else ""
    st.session_state["rewards.answer"] = answer
    st.session_state["rewards.responses"] = BETWEEN.join(responses)
    st.session_state.pop("rewards.results", None)


def _score(name: str) -> None:
    state = st.session_state
    state.pop("rewards.results", None)
    responses = state["rewards.responses"].split(BETWEEN)
    try:
        parameters = yaml.safe_load(state["rewards.parameters"]) or {}
    except yaml.YAMLError as error:
        parameters = f"not YAML: {error}"
    if not isinstance(parameters, dict):
        st.error("The parameters are no YAML mapping, such as `timeout_s: 2`.")
        return
    try:
        results = client().test_reward(
            {**parameters, "name": name}, responses, state["rewards.answer"], state["rewards.prompt"],
            state["rewards.n_tokens"],
        )  # fmt: skip
    except ApiError as error:
        show_refused(error)
    except ApiUnreachable as error:
        show_lost(error, "Score again.")
    else:
        state["rewards.results"] = list(zip(responses, results, strict=True))


def _results(reward: RewardOut) -> None:
    if reward.elsewhere or not reward.judges:
        return  # there is no form, so there is nothing to say of its results
    found: list[tuple[str, RewardResult]] | None = st.session_state.get("rewards.results")
    if not found:
        blocks.empty("No verdicts yet", "Score the example, or paste responses of your own.")
        return
    for number, (response, result) in enumerate(found, 1):
        st.html(
            f'<section class="pc-verdict" aria-label="Response {number}"><div class="pc-heading">'
            f'<b>Response {number}</b>{_chip(result)}<small class="pc-faint">{_seconds(result)}</small></div>'
            f"<pre>{_shown(response)}</pre>{''.join(map(_part, result.parts)) or escape(result.why)}</section>"
        )


def _chip(result: RewardResult) -> str:
    if result.failed or result.reward is None or result.accuracy is None:
        return f'<span class="pc-chip" style="--c:{palette.FATES["failed"].colour}"><i></i>failed</span>'
    colour = palette.STATE_COLOURS[
        "succeeded" if result.accuracy >= 1 else "failed" if result.accuracy <= 0 else "queued"
    ]
    words = "right" if result.accuracy >= 1 else "wrong" if result.accuracy <= 0 else "partly right"
    accuracy = "" if result.reward == result.accuracy else f", accuracy {result.accuracy:g}"
    return f'<span class="pc-chip" style="--c:{colour}"><i></i>{words}: reward {result.reward:g}{accuracy}</span>'


def _part(part: RewardPart) -> str:
    value = "failed" if part.value is None else f"{part.value:g}"
    weight = "" if part.weight == 1 else f" × {part.weight:g}"
    rows = [("verdict", f"<b>{value}</b>{weight}, {escape(part.why)}")]
    rows += [("extracted", f"<code>{escape(part.extracted)}</code>")] if part.extracted is not None else []
    rows += [("compared with", f"<code>{escape(part.expected)}</code>")] if part.expected is not None else []
    lines = "".join(f"<dt>{label}</dt><dd>{words}</dd>" for label, words in rows)
    return f"<dl><dt>reward</dt><dd>{escape(part.name)}{' (judges)' if part.judges else ''}</dd>{lines}</dl>"


def _shown(response: str) -> str:
    """Its beginning and end, harmless: no control characters but line ends."""
    cut = (
        response
        if len(response) <= 600
        else f"{response[:300]}\n… {len(response) - 600:,} characters …\n{response[-300:]}"
    )
    return escape("".join(c if c.isprintable() or c == "\n" else "\ufffd" for c in cut)) or "(empty)"


def _seconds(result: RewardResult) -> str:
    return f"{1000 * result.seconds:.0f} ms" if result.seconds < 1 else f"{result.seconds:.1f} s"


render()
