"""What the run page knows about one run: fetched in increments, kept in the browser session.

A poll costs one small request. Only when it shows that something happened are the new steps fetched, from the last
known step on. A new attempt may repeat steps, so it starts the series afresh. Of long runs the charts have a series
that the API has thinned; the newest steps are there in full.

The parts of the page that are drawn less often fetch what only they need when they are drawn: `flows`, `spend`,
`teach`. When the page is opened, `open` has asked for that, too. What needs the answer of no other call is asked side
by side.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

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
AT_ONCE = 4  # calls of a page that is opened; the API has few connections to its database, and they are for everybody
Part = Callable[[Client, RunDetail], None]  # fetches one part of what is known of the run


class RunFeed:
    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.run: RunDetail | None = None
        self.fresh = False  # the page was opened just now, and its head need not ask again
        self.steps: dict[int, StepOut] = {}  # of a long run about POINTS of them, the newest RECENT_STEPS among them
        self.evaluations: dict[int, EvaluationOut] = {}
        self.buckets: dict[int, BucketsAt] = {}  # of a long run about POINTS steps
        self.ledger: Ledger | None = None
        self.settings: SettingsOut | None = None  # of a run on GPUs: the price is that of a GPU
        self.taught: list[PromptRow] = []  # trained on most recently
        self.moved: Flows | None = None
        self.alerts: list[Alert] = []
        self._alerts_at = 0.0  # monotonic seconds
        self._evaluated: int | None = None  # the run's rollouts of evaluations when these were fetched
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

    def open(self, api: Client, flows_of: int | None) -> None:
        """Fetches all that the page shows at first. flows_of: of how many steps, the newest; None: of none yet."""

        def flows(api: Client, run: RunDetail) -> None:
            if flows_of is not None:
                self._flows(api, run, max(0, run.step - flows_of), None)

        self._fetch(lambda: self._refresh(api, flows, self._teach, self._spend))

    def refresh(self, api: Client) -> None:
        """Brings run, steps, evaluations, buckets and alerts up to date; what cannot be fetched stays as it was."""
        self._fetch(lambda: self._refresh(api))

    def spend(self, api: Client) -> None:
        """Brings the ledger, and the price of an hour, up to date."""
        self._fetch_part(api, self._spend)

    def teach(self, api: Client) -> None:
        """Brings the prompts that were trained on most recently up to date."""
        self._fetch_part(api, self._teach)

    def flows(self, api: Client, first: int, end: int | None) -> None:
        """Brings the flows between buckets up to date: from after one step to after another; None: to now."""
        self._fetch_part(api, lambda api, run: self._flows(api, run, first, end))

    def _fetch_part(self, api: Client, part: Part) -> None:
        """While the API is away `refresh` alone asks: were each part to wait for its own answer, nothing would move."""
        run = self.run
        if self.lost is None and run is not None:
            self._fetch(lambda: part(api, run))

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

    def _refresh(self, api: Client, *others: Part) -> None:
        run = api.get_run(self.run_id)
        if self.run is not None and (run.attempt != self.run.attempt or run.step < max(self.steps, default=0)):
            self.steps, self.evaluations, self.buckets = {}, {}, {}
        self.run = run
        self._wait(api, run)
        # Each fills attributes of its own, and notes that it did. When one fails, those that have not begun are left
        # out: were each to wait until its time is up, nothing would move.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            asked = [pool.submit(part, api, run) for part in (self._series, *others, self._alerts, self._history)]
            wait(asked, return_when=FIRST_EXCEPTION)
            pool.shutdown(cancel_futures=True)
        failed = [error for call in asked if not call.cancelled() and (error := call.exception())]
        for error in sorted(failed, key=lambda e: isinstance(e, ApiError | ApiUnreachable)):  # a fault of ours first
            raise error

    def _alerts(self, api: Client, run: RunDetail) -> None:
        # A run that stalls gives no news, too: alerts are asked for from time to time.
        seen = run.state, run.attempt
        if seen != self._seen.get("alerts") or time.monotonic() - self._alerts_at > ALERTS_EVERY_S:
            self.alerts, self._alerts_at = api.alerts(self.run_id), time.monotonic()
            self._seen["alerts"] = seen

    def _series(self, api: Client, run: RunDetail) -> None:
        if (seen := self._now(run)) == self._seen.get("series"):
            return
        last = max(self.steps, default=0)
        found: list[EvaluationOut] = []
        if run.step - last > 2 * POINTS:  # many at once: enough for a chart, and the newest in full
            series = api.metrics(self.run_id, from_step=last, points=POINTS, metric=CHARTED, extremes=EXTREMES)
            self.steps.update((s.step, s) for s in series.steps)
            found, last = series.evaluations, run.step - RECENT_STEPS
        metrics = api.metrics(self.run_id, from_step=last)
        self.steps.update((s.step, s) for s in metrics.steps)
        found = found + metrics.evaluations
        if last and self._evaluated not in (None, run.eval_rollouts):
            # Of whatever step: somebody may have asked for it.
            found = api.metrics(self.run_id, points=2).evaluations
        self.evaluations.update((e.step, e) for e in found)
        self._evaluated = run.eval_rollouts
        if len(self.steps) > 2 * POINTS + RECENT_STEPS:  # a run that is watched for days does not fill the session
            old = [s for s in self.steps if s <= run.step - RECENT_STEPS]
            for step in old[1::2]:
                del self.steps[step]
        self._seen["series"] = seen

    def _history(self, api: Client, run: RunDetail) -> None:
        if (seen := self._now(run)) == self._seen.get("history"):
            return
        after = max(self.buckets, default=0)
        history = api.buckets(
            self.run_id, from_step=after, points=POINTS if run.step - after > POINTS else None
        ).history
        self.buckets.update((b.step, b) for b in history)
        if len(self.buckets) > 2 * POINTS:
            for step in sorted(self.buckets)[1:-1:2]:
                del self.buckets[step]
        self._seen["history"] = seen

    def _spend(self, api: Client, run: RunDetail) -> None:
        if run.device == "cuda" and self.settings is None:
            self.settings = api.settings()
        if (seen := self._now(run)) == self._seen.get("spend"):
            return
        self.ledger = api.ledger(self.run_id)
        self._seen["spend"] = seen

    def _teach(self, api: Client, run: RunDetail) -> None:
        if (seen := self._now(run)) == self._seen.get("taught"):
            return
        self.taught = api.prompts(self.run_id, bucket="committed", sort="-step", limit=RECENT_PROMPTS).prompts
        self._seen["taught"] = seen

    def _flows(self, api: Client, run: RunDetail, first: int, end: int | None) -> None:
        if (seen := (first, end, *self._now(run))) == self._seen.get("flows"):
            return
        self.moved = api.flows(self.run_id, first, end)
        self._seen["flows"] = seen

    def _now(self, run: RunDetail) -> tuple[object, ...]:
        return run.state, run.attempt, run.step, run.rollouts, run.eval_rollouts, run.accuracy

    def _wait(self, api: Client, run: RunDetail) -> None:
        if run.state != "queued":
            self.queued_since, self.ahead = None, 0
            return
        self.ahead = api.list_runs(state=BUSY_STATES, limit=1).total
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
