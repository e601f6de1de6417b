"""One run on one screen: is it healthy, what is it spending, which prompts teach it?

The page is made of fragments with timers of their own while the run lives: the head follows every two seconds,
what is larger or costs the database more comes less often. Each draws the same elements in the same places each time,
and keeps the last known numbers when the API is away.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import streamlit as st

from api.client import ApiError, ApiUnreachable
from api.schemas import EvaluationOut, FateCount, RunDetail, StepOut
from ui import benchmarks, blocks, charts, evaluations, form, health, palette, text
from ui.connection import client, in_a_line, lacks, schema_and_presets, show_lost, show_refused
from ui.feed import RunFeed, feed_of

HEAD_S, CHARTS_S, SPEND_S = 2, 4, 6  # seconds between two refreshes of each part
SPARK_POINTS = 24
TAUGHT_ROWS = 5
FLOW_STEPS = {"last 20": 20, "last 100": 100, "last 500": 500, "whole run": None}
FLOW_RANGE = "from … to …"
BELOW = ("Last steps", "Log", "Checkpoints", "Attempts", "Config")
LOG_BYTES = 12_000  # of its end; more of it is what `pilot run log` is for
MOST_DOWNLOADED = 200_000_000  # bytes; larger files go past the dashboard


def render() -> None:
    run_id = st.query_params.get("run")
    if not run_id:
        blocks.empty("No run chosen", "Open one from the list of runs.")
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")
        return
    feed = feed_of(run_id)
    if feed.run is None:
        # Flows of other steps, of which the address tells, are asked for when they are drawn.
        feed.open(client(), None if "flow" in st.query_params else FLOW_STEPS["last 20"])
        feed.fresh = True
    if feed.run is not None:
        st.set_page_config(page_title=f"{feed.run.name} · Pilot-Commit")
    live, drawn = feed.live, _drawn(feed)

    def part(draw: Callable[..., None], seconds: float, *given: Any) -> None:
        st.fragment(draw, run_every=seconds if live else None)(run_id, *given)

    part(_head, HEAD_S, live, drawn)
    if feed.run is None:
        return
    part(_charts, CHARTS_S)
    part(_benchmarks, SPEND_S)
    for column, draw in zip(
        st.container(key="panels-below").columns(3, border=True), (_flow, _ledger, _taught), strict=True
    ):
        with column:
            part(draw, SPEND_S)
    part(_below, CHARTS_S)


def _drawn(feed: RunFeed) -> tuple[bool, bool, bool]:
    """What there is to draw at all. When the first of it comes the whole page is drawn, or its slower parts would go on
    saying that there is nothing yet.
    """
    return feed.run is not None, bool(feed.evaluations), bool(feed.steps)


def _head(run_id: str, polled: bool, drawn: tuple[bool, bool, bool]) -> None:
    feed = feed_of(run_id)
    if not feed.fresh:
        feed.refresh(client())
    feed.fresh = False
    if feed.live != polled or _drawn(feed) != drawn:
        st.rerun()  # the whole page, with or without the timers
    banner = st.empty()
    if feed.lost:
        seconds = (text.now() - feed.lost_since).total_seconds() if feed.lost_since else 0
        with banner:
            shown = "The numbers below are the last known ones. " if feed.run else ""
            show_lost(feed.lost, f"{shown}Away for {text.duration(round(seconds))}; trying again every {HEAD_S} s.")
    elif feed.refused:
        with banner:
            show_refused(feed.refused)
    if feed.run is None:
        st.page_link("screens/runs.py", label="All runs", icon=":material/arrow_back:")
        return
    run, steps = feed.run, _steps(feed)
    evaluations = _evaluations(feed)
    with st.container(key="live"):
        _header(feed, run)
        blocks.health_strip(
            health.findings(run, steps, evaluations, feed.ledger, None, feed.queued_since, feed.ahead, feed.alerts)
        )
        _meters(run, steps)
        _tiles(feed, run)


def _charts(run_id: str) -> None:
    """What moves with every step and needs nothing that the head has not fetched."""
    feed = feed_of(run_id)
    if feed.run is None:
        return
    steps, history = _steps(feed), [feed.buckets[s] for s in sorted(feed.buckets)]
    left, middle, right = st.container(key="panels").columns(3, border=True)
    with left:
        _accuracy(feed)
    with middle:
        _heading("Learning signal", "reward variance of groups")
        charts.variance(steps)
    with right:
        _heading("Time per step", "seconds by phase")
        charts.phases(steps, 150)
        charts.throughput(steps)
        _speed(feed.run, steps)
    with st.container(border=True):
        _heading("Buckets", "where the prompts lie, over steps")
        charts.buckets(history, live=feed.live)


def _benchmarks(run_id: str) -> None:
    """Only of a run that is measured on more than the held-out set: that one's accuracy is told above."""
    found = _evaluations(feed_of(run_id))
    if len(benchmarks.names(found)) > 1:
        with st.container(border=True, key="benchmarks"):
            _heading("Benchmarks", "accuracy of sampled answers ± standard error")
            benchmarks.table(found)


def _flow(run_id: str) -> None:
    feed = feed_of(run_id)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        _heading("Bucket flow", "who moved")
        steps = st.selectbox(
            "Steps", [*FLOW_STEPS, FLOW_RANGE], key="flow", bind="query-params", label_visibility="collapsed", width=130
        )
    now = feed.run.step if feed.run else 0
    last = FLOW_STEPS.get(steps)
    first, end = 0 if last is None else max(0, now - last), None
    if steps == FLOW_RANGE:
        with st.container(horizontal=True, gap="small"):
            first = _step("From after step", "flow-from", 0) or 0
            end = _step("to after step", "flow-to", None)
    feed.flows(client(), first, end)
    charts.flows(feed.moved)


def _step(label: str, key: str, start: int | None) -> int | None:
    return st.number_input(label, 0, None, start, 1, key=key, bind="query-params", placeholder="the last", width=150)


def _ledger(run_id: str) -> None:
    feed = feed_of(run_id)
    if feed.run is None:
        return
    feed.spend(client())
    _heading("Spend", "by what became of it")
    evaluated = FateCount(fate="evaluation", rollouts=feed.run.eval_rollouts, tokens=feed.run.eval_tokens)
    eval_hours = feed.run.eval_seconds * feed.run.n_devices / 3600
    blocks.ledger_table(feed.ledger, evaluated, _hours(feed.run), eval_hours, feed.settings)


def _below(run_id: str) -> None:
    """One of the details: only what is looked at is sent."""
    feed = feed_of(run_id)
    if feed.run is None:
        return
    chosen = st.segmented_control(
        "Details", BELOW, default=BELOW[0], key="below", bind="query-params", label_visibility="collapsed",
        required=True,
    )  # fmt: skip
    try:
        match chosen:
            case "Log":
                _log(feed.run, feed.live)
            case "Checkpoints":
                _checkpoints(feed.run)
            case "Attempts":
                _attempts(feed.run)
            case "Config":
                config = form.in_order(schema_and_presets()[0], feed.run.config)
                st.code(text.yaml(config), language="yaml", height=420)
            case _:
                _step_table(_steps(feed))
    except ApiUnreachable:
        st.caption("Not known while the API does not answer.")
    except ApiError as error:
        show_refused(error)


def _steps(feed: RunFeed) -> list[StepOut]:
    return [feed.steps[s] for s in sorted(feed.steps)]


def _evaluations(feed: RunFeed) -> list[EvaluationOut]:
    return [feed.evaluations[s] for s in sorted(feed.evaluations)]


def _hours(run: RunDetail) -> float:
    """Device-hours of all attempts."""
    return (health.seconds_worked(run) or 0.0) * run.n_devices / 3600


def _accuracy(feed: RunFeed) -> None:
    found = _evaluations(feed)
    names, shown = benchmarks.names(found), benchmarks.HELD_OUT
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        _heading("Accuracy", shown if len(names) == 1 else "")
        if len(names) > 1:
            shown = st.selectbox(
                "Accuracy of", names, key="benchmark", bind="query-params", label_visibility="collapsed", width=180
            )
        wanted = st.number_input(
            "Target accuracy (%)", min_value=0.0, max_value=100.0, value=None, step=1.0, format="%g",
            placeholder="target %", key="target", bind="query-params", label_visibility="collapsed", width=140,
        )  # fmt: skip
    points = benchmarks.series(found, shown)
    charts.accuracy(points, shown, None if wanted is None else wanted / 100, live=feed.live)
    if wanted is None:
        return
    reached = next((p for p in points if 100 * p.accuracy >= wanted), None)
    words = f"Not at {wanted:g}% yet."
    if reached is not None:
        words = f"{wanted:g}% reached after {text.hover(reached.rollouts)} rollouts, at step {reached.step:,}."
    st.html(f'<div class="pc-facts">{words}</div>')


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
        told_below = run.state in ("failed", "succeeded", "queued")  # by the findings
        reason = f'<div class="pc-reason">{escape(run.reason)}</div>' if run.reason and not told_below else ""
        chip = blocks.state_chip(run.state, run.stop_requested_at is not None)
        st.html(
            f'<div class="pc-title"><h1>{escape(run.name)}</h1>{chip}</div>'
            f'<div class="pc-facts">{" · ".join(facts)}</div>{reason}'
        )
        with st.container(horizontal=True, width="content", key="run-actions", vertical_alignment="center"):
            _actions(feed, run)


def _actions(feed: RunFeed, run: RunDetail) -> None:
    where, missing = {"run": feed.run_id}, lacks("run")
    # One that failed before its first step would most likely fail again: its config is what has to change.
    never_began = run.state == "failed" and not run.step
    if st.button("Prompts", icon=":material/grid_view:", key="open-prompts"):
        st.switch_page("screens/prompts.py", query_params=where)
    if st.button(
        "Audit", icon=":material/query_stats:", key="audit-run", disabled=not run.step,
        help="What of its rollouts taught nothing, and what other methods would have spent"
        if run.step
        else "Nothing to audit before the first step has ended",
    ):  # fmt: skip
        st.switch_page("screens/audit.py", query_params=where)
    if st.button(
        "Clone", icon=":material/content_copy:", key="clone-run", type="primary" if never_began else "secondary",
        help="A new run from this config" + (", to correct it" if never_began else ""),
    ):  # fmt: skip
        st.switch_page("screens/new_run.py", query_params={"clone": feed.run_id})
    if run.state in palette.FINISHED_STATES:
        resumable = run.state in ("stopped", "failed")
        said = "Tries once more, unchanged" if never_began else "Goes on from the last checkpoint"
        if not resumable:
            why = (run.reason or "it came to its end").rstrip(".")
            said = f"Nothing is left to resume: {text.markdown(why)}. Clone the run to train on."
        if st.button(
            "Resume", icon=":material/play_arrow:", key="resume-run", type="secondary" if never_began else "primary",
            disabled=not resumable or bool(missing), help=missing or said,
        ):  # fmt: skip
            _ask(feed, lambda: client().resume_run(feed.run_id))
    else:
        if run.state == "queued":
            _priority(feed, run, missing)
        stopping = run.state == "stopping" or run.stop_requested_at is not None
        said = "Finishes the step and saves a checkpoint; the run can be resumed"
        if st.button(
            "Stopping…" if stopping else "Stop", icon=":material/stop:", key="stop-run",
            disabled=stopping or bool(missing), help=missing or said,
        ):  # fmt: skip
            _ask(feed, lambda: client().stop_run(feed.run_id))


def _priority(feed: RunFeed, run: RunDetail, missing: str | None) -> None:
    """Where it stands in the queue, to be changed while it waits there."""
    with (
        st.popover(
            f"Priority {run.priority}", icon=":material/low_priority:", key="run-priority", disabled=bool(missing),
            help=missing or "Of runs that wait, those of a higher priority start first",
        ),
        st.form("priority", border=False),
        st.container(horizontal=True, vertical_alignment="bottom"),
    ):  # fmt: skip
        wanted = st.number_input("Priority", -1000, 1000, run.priority, 1, key="priority", width=160)
        if st.form_submit_button("Set", type="primary") and wanted != run.priority:
            _ask(feed, lambda: client().change_run(feed.run_id, priority=wanted))


def _ask(feed: RunFeed, what: Callable[[], RunDetail]) -> None:
    try:
        feed.run = what()
    except ApiUnreachable as error:
        st.toast(f"Not sent: {error.why}. Press again when the API is back.", icon=":material/error:")
    except ApiError as error:
        st.toast(text.markdown(in_a_line(error)), icon=":material/error:")
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
    st.html(f'<div class="pc-meters">{"".join(meters)}</div>{_step_under_way(run, steps)}')


def _step_under_way(run: RunDetail, steps: list[StepOut]) -> str:
    """How far the step under way has come, by how long those before it took."""
    fresh = health.of_attempt(run, steps)
    pace = health.step_seconds(fresh)
    if run.state not in ("running", "stopping") or pace is None or run.step >= run.steps_budget:
        return ""
    began = max(fresh[-1].finished_at, *(e for a in run.attempts if (e := a.started_at)))
    lasted = max(0.0, (text.now() - began).total_seconds())
    sampling = max((a.open_rollouts for a in run.attempts if a.attempt == run.attempt), default=0)
    words = f"up to {text.number(sampling)} rollouts, " if sampling else ""
    return (
        f'<div class="pc-under-way"><span>step {run.step + 1:,} under way: {words}{text.duration(lasted)} of about '
        f"{text.duration(pace)}</span>{blocks.bar(lasted / pace if pace else 0, palette.ACCENT)}</div>"
    )


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


def _taught(run_id: str) -> None:
    feed = feed_of(run_id)
    feed.teach(client())
    last = f", of the last {len(feed.taught)} trained" if len(feed.taught) > 1 else ""
    _heading("Prompts that teach", f"by variance{last}")
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
    pairs = [(a, b) for a, b in zip(recent, recent[1:], strict=False) if a.attempt == b.attempt]
    seconds = sum((b.finished_at - a.finished_at).total_seconds() for a, b in pairs)
    if seconds <= 0:
        return
    rate = sum(b.rollouts - a.rollouts for a, b in pairs) / seconds
    tokens = sum(b.tokens - a.tokens for a, b in pairs) / seconds
    n = sum(b.step - a.step for a, b in pairs)  # more than pairs where the series is thinned
    pace = seconds / n if over else health.step_seconds(recent)
    what = "average of the run" if over else f"median of the last {n} steps"
    st.html(
        f'<div class="pc-facts">{text.duration(pace)} a step, {what} · {text.hover(rate)} rollouts/s · '
        f"{text.hover(tokens)} tokens/s</div>"
    )


STEP_COLUMNS: tuple[tuple[str, str, int | None], ...] = (  # title, metric, decimals; None: it is a share
    ("trained", "trained_prompts", 0), ("success rate", "success_rate", None), ("variance", "reward_variance", 3),
    ("loss", "loss", 4), ("grad norm", "grad_norm", 2), ("entropy", "entropy", 3), ("clipped", "clip_fraction", None),
    ("tokens each", "response_tokens", 2), ("buffer", "buffer_size", 0), ("pilot age", "age_mean", 2),
)  # fmt: skip


def _step_table(steps: list[StepOut]) -> None:
    if not steps:
        st.html('<div class="pc-placeholder" style="height:60px">No step yet.</div>')
        return
    before = {b.step: b.rollouts - a.rollouts for a, b in zip(steps, steps[1:], strict=False)}
    rows = []
    for step in reversed(steps[-8:]):
        cells = [
            text.percent(step.metrics.get(name)) if digits is None else text.fixed(step.metrics.get(name), digits)
            for _, name, digits in STEP_COLUMNS
        ]
        sampled = before.get(step.step, step.rollouts if step.step == 1 else None)
        rows.append([f"{step.step:,}", str(step.epoch), text.hover(sampled), *cells, text.when(step.finished_at)])
    head = ["step", "epoch", "rollouts", *(title for title, _, _ in STEP_COLUMNS), "finished"]
    blocks.table(head, rows, right=range(len(head)), caption="Last steps")


def _log(run: RunDetail, live: bool) -> None:
    """Its end. It stays in sight while the log grows, unless somebody has scrolled up."""
    attempts = [a.attempt for a in sorted(run.attempts, key=lambda a: -a.attempt)]
    if not attempts:
        st.html('<div class="pc-placeholder" style="height:60px">No attempt yet: nothing was printed.</div>')
        return
    attempt = attempts[0]
    if len(attempts) > 1:
        attempt = st.selectbox("Attempt", attempts, key="log-attempt", width=120)
    part = client().log(run.id, attempt, limit=LOG_BYTES)
    more = f"the last {text.number(len(part.text))} of {text.number(part.size)} bytes; " if part.offset else ""
    follow = " --follow" if live else ""
    nothing = "Nothing was printed yet." if live else "Nothing was printed."
    st.html(
        f'<div class="pc-log"><pre>{escape(part.text) or nothing}</pre></div>'
        f'<div class="pc-facts">{more}all of it: <code>./pilot run log {run.id}{follow}</code></div>'
    )


def _checkpoints(run: RunDetail) -> None:
    found = client().checkpoints(run.id)
    if not found.checkpoints:
        st.html('<div class="pc-placeholder" style="height:60px">No checkpoint is kept yet.</div>')
        return
    rows = [
        [
            ('<span class="pc-tag">best</span> ' if c.step == found.best_step else "") + f"{c.step:,}",
            text.percent(c.accuracy), text.when(c.saved_at), text.size(c.n_bytes), str(len(c.files)),
        ]
        for c in reversed(found.checkpoints)
    ]  # fmt: skip
    blocks.table(["step", "accuracy", "saved", "size", "files"], rows, right=(0, 1, 3, 4), caption="Checkpoints")
    by_step = {c.step: c for c in found.checkpoints}
    newest_first = sorted(by_step, reverse=True)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        step = st.selectbox(
            "Checkpoint", newest_first, key="checkpoint", width=180,
            format_func=lambda s: f"step {s:,}" + (" (best)" if s == found.best_step else ""),
            index=newest_first.index(found.best_step) if found.best_step in by_step else 0,
        )  # fmt: skip
        sizes = {f.path: f.n_bytes for f in by_step[step].files}
        path = st.selectbox(
            "File", list(sizes), format_func=lambda p: f"{p} · {text.size(sizes[p])}", key=f"checkpoint-file-{step}",
            width=420,
        )  # fmt: skip
        small = sizes[path] <= MOST_DOWNLOADED
        st.download_button(
            "Download", partial(client().download_checkpoint_file, run.id, step, path), disabled=not small,
            file_name=f"step_{step:06d}-{path.rpartition('/')[2]}", icon=":material/download:",
            key="download-checkpoint",
            help=None if small else f"Larger than {text.size(MOST_DOWNLOADED)}: take it with curl.",
        )  # fmt: skip
        evaluations.evaluate_button(run, step)
    st.html(
        f'<div class="pc-facts"><code>curl -H "authorization: Bearer $TOKEN" -OJ '
        f"{escape(client().base_url)}/api/v1/runs/{run.id}/checkpoints/{step}/{escape(path)}</code></div>"
    )
    evaluations.responses(run, step)
    evaluations.asked(run)


def _attempts(run: RunDetail) -> None:
    rows = [
        [
            str(a.attempt), escape(a.host), text.exact(a.from_step) or "–", text.exact(a.saved_step) or "–",
            text.when(a.started_at), text.when(a.finished_at), escape(a.outcome or "running"), escape(a.reason or ""),
        ]
        for a in run.attempts
    ]  # fmt: skip
    head = ["attempt", "host", "from step", "saved at step", "started", "ended", "outcome", "reason"]
    blocks.table(head, rows, caption="Attempts")
    ids = {"run": str(run.id), "config digest": run.config_digest, "prompt set": run.dataset_id or "–"}
    blocks.table(["", "id"], [[k, f"<code>{escape(v)}</code>"] for k, v in ids.items()])


render()
