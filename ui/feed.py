"""What the run page knows about one run: fetched in increments, kept in the browser session.

A poll costs one small request. Only when it shows that something happened are the new steps fetched, from the last
known step on. A new attempt may repeat steps, so it starts the series afresh.
"""

from __future__ import annotations

import datetime as dt
import time

import streamlit as st

from api.client import ApiError, ApiUnreachable, Client
from api.schemas import Alert, BucketsAt, EvaluationOut, Ledger, PromptRow, RunDetail, StepOut
from ui.palette import FINISHED_STATES
from ui.text import now

BUSY_STATES = ("starting", "running", "stopping")
RECENT_PROMPTS = 50
ALERTS_EVERY_S = 10.0


class RunFeed:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.run: RunDetail | None = None
        self.steps: dict[int, StepOut] = {}
        self.evaluations: dict[int, EvaluationOut] = {}
        self.buckets: dict[int, BucketsAt] = {}
        self.ledger: Ledger | None = None
        self.taught: list[PromptRow] = []  # trained on most recently
        self.alerts: list[Alert] = []
        self._alerts_at = 0.0  # monotonic seconds
        self.queued_since: dt.datetime | None = None  # as far as this session has seen
        self.ahead = 0  # runs that the workers are busy with while this one waits
        self.lost: ApiUnreachable | None = None
        self.lost_since: dt.datetime | None = None
        self.refused: ApiError | None = None
        self._seen: tuple[object, ...] = ()

    @property
    def live(self) -> bool:
        """Whether polling can still bring news."""
        if self.run is None:
            return self.refused is None
        return self.run.state not in FINISHED_STATES

    def refresh(self, api: Client) -> None:
        """Brings everything up to date; what cannot be fetched now stays as it was."""
        try:
            self._refresh(api)
        except ApiUnreachable as error:
            self.lost, self.lost_since = error, self.lost_since or now()
            return
        except ApiError as error:
            self.refused = error
        else:
            self.refused = None
        self.lost = self.lost_since = None

    def _refresh(self, api: Client) -> None:
        run = api.get_run(self.run_id)
        if self.run is not None and (run.attempt != self.run.attempt or run.step < max(self.steps, default=0)):
            self.steps, self.evaluations, self.buckets = {}, {}, {}
        self.run = run
        self._wait(api, run)
        seen = (run.state, run.attempt, run.step, run.rollouts, run.eval_rollouts, run.accuracy)
        if seen != self._seen or time.monotonic() - self._alerts_at > ALERTS_EVERY_S:
            # A run that stalls gives no news: alerts are asked for from time to time, too.
            self.alerts, self._alerts_at = api.alerts(self.run_id), time.monotonic()
        if seen == self._seen:
            return
        last = max(self.steps, default=0)
        metrics = api.metrics(self.run_id, from_step=last)
        self.steps.update((s.step, s) for s in metrics.steps)
        self.evaluations.update((e.step, e) for e in metrics.evaluations)
        self.buckets.update((b.step, b) for b in api.buckets(self.run_id, from_step=last).history)
        self.ledger = api.ledger(self.run_id)
        self.taught = api.prompts(self.run_id, bucket="committed", sort="-step", limit=RECENT_PROMPTS).prompts
        self._seen = seen

    def _wait(self, api: Client, run: RunDetail) -> None:
        if run.state != "queued":
            self.queued_since, self.ahead = None, 0
            return
        pages = [api.list_runs(state=state, limit=100) for state in BUSY_STATES]
        self.ahead = sum(len(page.runs) for page in pages)
        if self.ahead:
            self.queued_since = now()  # the wait for a worker begins when the others are done
        elif self.queued_since is None:
            self.queued_since = now() if run.attempt else run.created_at


def feed_of(run_id: str) -> RunFeed:
    """This session's feed of the run. Only the newest run's series are kept, to stay small."""
    feed = st.session_state.get("feed")
    if not isinstance(feed, RunFeed) or feed.run_id != run_id:
        feed = st.session_state["feed"] = RunFeed(run_id)
    return feed
