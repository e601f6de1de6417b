"""One run on one screen: is it healthy, what is it spending, which prompts teach it?

The body is a fragment that refreshes every two seconds while the run lives. It fetches before it draws, draws the
same elements in the same places each time, and keeps the last known numbers when the API is away.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import RunDetail, StepOut
from ui import blocks, charts, health, palette, text
from ui.connection import client, show_lost, show_refused
from ui.feed import RunFeed, feed_of

EVERY_S = 2
SPARK_POINTS = 40
TAUGHT_ROWS = 5


def render() -> None:
    run_id = st.query_params.get("run")
    if not run_id:
        blocks.empty("No run chosen", "Open one from the list of runs.")
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")
        return
    feed = feed_of(run_id)
    if feed.run is None:
        feed.refresh(client())
    live = feed.live
    st.fragment(_body, run_every=EVERY_S if live else None)(run_id, live)


def _body(run_id: str, polled: bool) -> None:
    feed = feed_of(run_id)
    feed.refresh(client())
    if feed.live != polled:
        st.rerun()  # the whole page, with or without the timer
    banner = st.empty()
    if feed.lost:
        seconds = (text.now() - feed.lost_since).total_seconds() if feed.lost_since else 0
        with banner:
            shown = "The numbers below are the last known ones. " if feed.run else ""
            show_lost(feed.lost, f"{shown}Away for {text.duration(round(seconds))}; trying again every {EVERY_S} s.")
    elif feed.refused:
        with banner:
            show_refused(feed.refused)
    if feed.run is None:
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")
        return
    with st.container(key="live"):
        _screen(feed, feed.run)


def _screen(feed: RunFeed, run: RunDetail) -> None:
    steps = [feed.steps[s] for s in sorted(feed.steps)]
    evaluations = [feed.evaluations[s] for s in sorted(feed.evaluations)]
    history = [feed.buckets[s] for s in sorted(feed.buckets)]
    _header(feed, run)
    blocks.health_strip(
        health.findings(run, steps, evaluations, feed.ledger, None, feed.queued_since, feed.ahead, feed.alerts)
    )
    _meters(run, steps)
    _tiles(feed, run)
    left, middle, right = st.columns(3, border=True)
    with left:
        _heading("Accuracy", "held-out, against rollouts")
        charts.accuracy(evaluations)
    with middle:
        last = f", of the last {len(feed.taught)} trained" if len(feed.taught) > 1 else ""
        _heading("Prompts that teach", f"by variance{last}")
        _taught(feed, run)
    with right:
        _heading("Learning signal", "reward variance of groups")
        charts.variance(steps)
    left, middle, right = st.columns(3, border=True)
    with left:
        _heading("Spend", "rollouts and tokens by what became of them")
        blocks.ledger_table(feed.ledger)
    with middle:
        _heading("Buckets", "where the prompts lie, over steps")
        charts.buckets(history)
    with right:
        _heading("Time per step", "seconds by phase")
        charts.phases(steps, 210)
        _speed(run, steps)
    with st.container(border=True):
        _heading("Last steps")
        _step_table(steps)
    _details(run)


def _heading(title: str, words: str = "") -> None:
    st.html(f'<div class="pc-heading"><h2>{title}</h2><span>{words}</span></div>')


def _header(feed: RunFeed, run: RunDetail) -> None:
    with st.container(
        key="run-header", horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"
    ):
        facts = [
            text.method(run.method),
            text.model(run.model),
            f"seed {run.config.get('seed', 0)}",
            f"started {text.when(run.started_at)}" if run.started_at else f"created {text.when(run.created_at)}",
        ]
        if run.finished_at and run.state in palette.FINISHED_STATES:
            facts.append(f"finished {text.when(run.finished_at)}")
        told_below = run.state in ("failed", "succeeded")  # by the findings
        reason = f'<div class="pc-reason">{escape(run.reason)}</div>' if run.reason and not told_below else ""
        chip = blocks.state_chip(run.state, run.stop_requested_at is not None)
        st.html(
            f'<div class="pc-title"><h1>{escape(run.name)}</h1>{chip}</div>'
            f'<div class="pc-facts">{" · ".join(facts)}</div>{reason}'
        )
        with st.container(horizontal=True, width="content", key="run-actions", vertical_alignment="center"):
            _actions(feed, run)


def _actions(feed: RunFeed, run: RunDetail) -> None:
    where = {"run": feed.run_id}
    if st.button("Prompts", icon=":material/grid_view:", key="open-prompts"):
        st.switch_page("screens/prompts.py", query_params=where)
    if st.button("Clone", icon=":material/content_copy:", key="clone-run", help="A new run from this config"):
        st.switch_page("screens/new_run.py", query_params={"from": feed.run_id})
    if run.state in palette.FINISHED_STATES:
        resumable = run.state in ("stopped", "failed")
        said = "Goes on from the last checkpoint"
        if not resumable:
            why = (run.reason or "it came to its end").rstrip(".")
            said = f"Nothing is left to resume: {text.markdown(why)}. Clone the run to train on."
        if st.button(
            "Resume", icon=":material/play_arrow:", key="resume-run", type="primary", disabled=not resumable, help=said
        ):
            _ask(feed, stop=False)
    else:
        stopping = run.state == "stopping" or run.stop_requested_at is not None
        said = "Finishes the step and saves a checkpoint; the run can be resumed"
        if st.button(
            "Stopping…" if stopping else "Stop", icon=":material/stop:", key="stop-run", disabled=stopping, help=said
        ):
            _ask(feed, stop=True)


def _ask(feed: RunFeed, stop: bool) -> None:
    try:
        feed.run = client().stop_run(feed.run_id) if stop else client().resume_run(feed.run_id)
    except ApiUnreachable as error:
        st.toast(f"Not sent: {error.why}. Press again when the API is back.", icon=":material/error:")
    except ApiError as error:
        st.toast(f"{error.problem.title}. {error.problem.detail}", icon=":material/error:")
    else:
        st.rerun()


def _meters(run: RunDetail, steps: list[StepOut]) -> None:
    spent = text.hover(run.rollouts)
    left = health.seconds_left(run, steps) if run.state == "running" else None
    lasted = health.seconds_worked(run)
    of_rollouts = f"of {text.hover(run.rollouts_budget)}" if run.rollouts_budget else "no limit"
    accuracy = text.percent(run.accuracy)
    change = "before training"
    if run.accuracy is None:
        change = "not measured yet"
    elif run.first_accuracy is not None and run.step:
        change = f"{text.points(run.accuracy - run.first_accuracy)} from {text.percent(run.first_accuracy)}"
    gain = health.signal_gain(steps)
    meters = [
        blocks.meter("step", f"{run.step:,}", f"of {run.steps_budget:,}", run.step / max(1, run.steps_budget)),
        blocks.meter(
            "training rollouts", spent, of_rollouts, run.rollouts / run.rollouts_budget if run.rollouts_budget else None
        ),
        blocks.meter("tokens", text.hover(run.tokens), f"and {text.hover(run.eval_tokens)} to evaluate"),
        blocks.meter("held-out accuracy", accuracy, change),
        blocks.meter(
            "learning signal",
            f"{gain[0] / gain[1]:.1f}×" if gain and gain[1] > 0 else "–",
            f"{text.number(gain[0], 2)} against {text.number(gain[1], 2)} uniform" if gain else "against uniform",
        ),
        blocks.meter(
            "time", text.duration(lasted), f"about {text.duration(left)} left" if left is not None else ""
        ),
    ]  # fmt: skip
    st.html(f'<div class="pc-meters">{"".join(meters)}</div>')


def _tiles(feed: RunFeed, run: RunDetail) -> None:
    total = sum(run.buckets.values())
    history = [feed.buckets[s] for s in sorted(feed.buckets)]
    before = history[-2].counts if len(history) > 1 else {}
    now = history[-1].counts if history else {}
    shown = charts.thin(history, SPARK_POINTS)
    with st.container(key="buckets", horizontal=True, gap="small"):
        for name in palette.BUCKETS:
            change = now.get(name, 0) - before.get(name, 0) if before else 0
            with st.container(key=f"bucket-{name}"):
                series = [row.counts.get(name, 0) for row in shown]
                blocks.bucket_tile(name, run.buckets.get(name, 0), total, change, series)


def _taught(feed: RunFeed, run: RunDetail) -> None:
    if not feed.taught:
        charts.placeholder("No prompt has been trained on yet.", 200)
        return
    with st.container(key="taught", gap=None):
        for row in health.teaching(feed.taught)[:TAUGHT_ROWS]:
            with st.container(key=f"taught-{row.id}", gap=None):
                where = {"run": feed.run_id, "prompt": row.id}
                st.page_link("screens/prompt.py", label=text.markdown(text.shorten(row.text, 40)), query_params=where)
                st.html(blocks.prompt_line(row))


def _speed(run: RunDetail, steps: list[StepOut]) -> None:
    """The pace: of the last steps while the run lives, on average over all of them once it is over."""
    over = run.state in palette.FINISHED_STATES
    recent = steps if over else health.of_attempt(run, steps)[-health.PACE_STEPS - 1 :]
    gaps = health.step_gaps(recent)
    seconds = sum(gaps)
    if seconds <= 0:
        return
    pairs = [(a, b) for a, b in zip(recent, recent[1:], strict=False) if a.attempt == b.attempt]
    rate = sum(b.rollouts - a.rollouts for a, b in pairs) / seconds
    tokens = sum(b.tokens - a.tokens for a, b in pairs) / seconds
    pace = seconds / len(gaps) if over else gaps[len(gaps) // 2]
    what = "average of the run" if over else f"median of the last {len(gaps)} steps"
    st.html(
        f'<div class="pc-facts">{text.duration(pace)} a step, {what} · {text.number(round(rate, 1))} rollouts/s · '
        f"{text.number(round(tokens))} tokens/s</div>"
    )


STEP_COLUMNS = (
    ("trained", "trained_prompts"), ("success rate", "success_rate"), ("variance", "reward_variance"), ("loss", "loss"),
    ("grad norm", "grad_norm"), ("entropy", "entropy"), ("clipped", "clip_fraction"),
    ("tokens/response", "response_tokens"),
    ("buffer", "buffer_size"), ("pilot age", "age_mean"),
)  # fmt: skip
SHARES = ("success_rate", "clip_fraction")


def _step_table(steps: list[StepOut]) -> None:
    if not steps:
        st.html('<div class="pc-placeholder" style="height:60px">No step yet.</div>')
        return
    before = {b.step: b.rollouts - a.rollouts for a, b in zip(steps, steps[1:], strict=False)}
    rows = []
    for step in reversed(steps[-8:]):
        cells = [
            text.percent(step.metrics.get(name)) if name in SHARES else text.hover(step.metrics.get(name))
            for _, name in STEP_COLUMNS
        ]
        sampled = before.get(step.step, step.rollouts if step.step == 1 else None)
        rows.append([f"{step.step:,}", str(step.epoch), text.hover(sampled), *cells, text.when(step.finished_at)])
    head = ["step", "epoch", "rollouts", *(title for title, _ in STEP_COLUMNS), "finished"]
    blocks.table(head, rows, right=range(len(head)), caption="Last steps")


def _details(run: RunDetail) -> None:
    with st.expander("Config, attempts and ids"):
        left, right = st.columns(2)
        with left:
            st.code(text.yaml(run.config), language="yaml", height=320)
        with right:
            rows = [
                [
                    str(a.attempt), escape(a.host), text.number(a.from_step), text.when(a.started_at),
                    text.when(a.finished_at), escape(a.outcome or "running"), escape(a.reason or ""),
                ]
                for a in run.attempts
            ]  # fmt: skip
            blocks.table(["attempt", "host", "from step", "started", "ended", "outcome", "reason"], rows)
            ids = {"run": str(run.id), "config digest": run.config_digest, "prompt set": run.dataset_id or "–"}
            blocks.table(["", "id"], [[k, f"<code>{escape(v)}</code>"] for k, v in ids.items()])


render()
