"""What the run page knows about one run: fetched in increments, kept in the browser session.

A poll costs one small request. Only when it shows that something happened are the new steps fetched, from the last
known step on. A new attempt may repeat steps, so it starts the series afresh. Of long runs the charts have a series
that the API has thinned; the newest steps are there in full.

The parts of the page that are drawn less often fetch what only they need when they are drawn: `flows`, `spend`,
`teach`.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable

import streamlit as st

from api.client import ApiError, ApiUnreachable, Client
from api.schemas import Alert, BucketsAt, EvaluationOut, Flows, Ledger, PromptRow, RunDetail, SettingsOut, StepOut
from ui.palette import FINISHED_STATES, PHASES
from ui.text import now

BUSY_STATES = ("starting", "running", "stopping")
RECENT_PROMPTS = 50
RECENT_STEPS = 60
POINTS = 160  # of a series; the charts of a screen show no more
CHARTED = ("reward_variance", "uniform_reward_variance", *(f"seconds_{phase}" for phase in PHASES))
EXTREMES = ("reward_variance",)  # which a thinned series keeps
ALERTS_EVERY_S = 10.0


class RunFeed:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.run: RunDetail | None = None
        self.fresh = False  # the page was opened just now, and its head need not ask again
        self.steps: dict[int, StepOut] = {}  # of a long run about POINTS of them, the newest RECENT_STEPS among them
        self.evaluations: dict[int, EvaluationOut] = {}
        self.buckets: dict[int, BucketsAt] = {}  # of a long run about POINTS steps
        self.ledger: Ledger | None = None
        self.settings: SettingsOut | None = None
        self.taught: list[PromptRow] = []  # trained on most recently
        self.moved: Flows | None = None
        self.alerts: list[Alert] = []
        self._alerts_at = 0.0  # monotonic seconds
        self.queued_since: dt.datetime | None = None  # as far as this session has seen
        self.ahead = 0  # runs that the workers are busy with while this one waits
        self.lost: ApiUnreachable | None = None
        self.lost_since: dt.datetime | None = None
        self.refused: ApiError | None = None
        self._seen: dict[str, tuple[object, ...]] = {}  # part -> what the run was when it was fetched

    @property
    def live(self) -> bool:
        """Whether polling can still bring news."""
        if self.run is None:
            return self.refused is None
        return self.run.state not in FINISHED_STATES

    def refresh(self, api: Client) -> None:
        """Brings run, steps, evaluations, buckets and alerts up to date; what cannot be fetched stays as it was."""
        self._fetch(lambda: self._refresh(api))

    def spend(self, api: Client) -> None:
        """Brings the ledger, and the price of an hour, up to date."""
        self._fetch_if_there(lambda: self._spend(api))

    def teach(self, api: Client) -> None:
        """Brings the prompts that were trained on most recently up to date."""
        self._fetch_if_there(lambda: self._teach(api))

    def flows(self, api: Client, first: int, end: int | None) -> None:
        """Brings the flows between buckets up to date: from after one step to after another; None: to now."""
        self._fetch_if_there(lambda: self._flows(api, first, end))

    def _fetch_if_there(self, fetch: Callable[[], None]) -> None:
        """While the API is away `refresh` alone asks: were each part to wait for its own answer, nothing would move."""
        if self.lost is None:
            self._fetch(fetch)

    def _fetch(self, fetch: Callable[[], None]) -> None:
        began = now()
        try:
            fetch()
        except ApiUnreachable as error:
            self.lost, self.lost_since = error, self.lost_since or began
            return
        except ApiError as error:
            self.refused = error
        else:
            self.refused = None
        self.lost = self.lost_since = None

    def _refresh(self, api: Client) -> None:
        run = api.get_run(self.run_id)
        last = max(self.steps, default=0)
        if self.run is not None and (run.attempt != self.run.attempt or run.step < last):
            self.steps, self.evaluations, self.buckets, last = {}, {}, {}, 0
        before, self.run = self.run, run
        self._wait(api, run)
        seen = self._now(run)
        if seen[:2] != self._seen.get("run", ())[:2] or time.monotonic() - self._alerts_at > ALERTS_EVERY_S:
            # A run that stalls gives no news, too: alerts are asked for from time to time.
            self.alerts, self._alerts_at = api.alerts(self.run_id), time.monotonic()
        if seen == self._seen.get("run"):
            return
        found: list[EvaluationOut] = []
        if run.step - last > 2 * POINTS:  # many at once: enough for a chart, and the newest in full
            series = api.metrics(self.run_id, from_step=last, points=POINTS, metric=CHARTED, extremes=EXTREMES)
            self.steps.update((s.step, s) for s in series.steps)
            found, last = series.evaluations, run.step - RECENT_STEPS
        metrics = api.metrics(self.run_id, from_step=last)
        self.steps.update((s.step, s) for s in metrics.steps)
        found = found + metrics.evaluations
        if last and before is not None and run.eval_rollouts != before.eval_rollouts:
            # Of whatever step: somebody may have asked for it.
            found = api.metrics(self.run_id, points=2).evaluations
        self.evaluations.update((e.step, e) for e in found)
        after = max(self.buckets, default=0)
        buckets = api.buckets(self.run_id, from_step=after, points=POINTS if run.step - after > POINTS else None)
        self.buckets.update((b.step, b) for b in buckets.history)
        self._thin(run.step)
        self._seen["run"] = seen

    def _thin(self, newest: int) -> None:
        """A run that is watched for days does not fill the session."""
        if len(self.steps) > 2 * POINTS + RECENT_STEPS:
            old = [s for s in self.steps if s <= newest - RECENT_STEPS]
            for step in old[1::2]:
                del self.steps[step]
        if len(self.buckets) > 2 * POINTS:
            for step in sorted(self.buckets)[1:-1:2]:
                del self.buckets[step]

    def _spend(self, api: Client) -> None:
        if self.settings is None:
            self.settings = api.settings()
        if self.run is None or (seen := self._now(self.run)) == self._seen.get("spend"):
            return
        self.ledger = api.ledger(self.run_id)
        self._seen["spend"] = seen

    def _teach(self, api: Client) -> None:
        if self.run is None or (seen := self._now(self.run)) == self._seen.get("taught"):
            return
        self.taught = api.prompts(self.run_id, bucket="committed", sort="-step", limit=RECENT_PROMPTS).prompts
        self._seen["taught"] = seen

    def _flows(self, api: Client, first: int, end: int | None) -> None:
        if self.run is None or (seen := (first, end, *self._now(self.run))) == self._seen.get("flows"):
            return
        self.moved = api.flows(self.run_id, first, end)
        self._seen["flows"] = seen

    def _now(self, run: RunDetail) -> tuple[object, ...]:
        return run.state, run.attempt, run.step, run.rollouts, run.eval_rollouts, run.accuracy

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
