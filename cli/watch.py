"""Following a run: a live picture at a terminal, plain lines elsewhere. `pilot watch` and the demo share it."""

from __future__ import annotations

import re
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from api.client import ApiError, ApiUnreachable, Client
from api.schemas import RunDetail, RunSummary
from cli.failure import WRONG_USE, Failure, told

if TYPE_CHECKING:
    from rich.console import RenderableType

FINISHED: Final = ("succeeded", "stopped", "failed")
BUCKETS: Final = ("unseen", "ready", "committed", "skipped", "deferred", "evicted")
_PREFIX: Final = 6  # characters of an id that may stand for it
_POLL_S: Final = 0.5
_LINE_EVERY_S: Final = 10.0  # plain lines: at most this often while the state stays
_QUIET_S: Final = 30.0  # plain lines: a sign of life when there are no news


def watch(client: Client, run_id: str) -> int:
    """`pilot watch`: follow the run until it has finished, say how, and return the exit status."""
    with told():
        run = follow(client, run_of(client, run_id))
    print(ending(run))
    return exit_code(run)


def follow(client: Client, run_id: uuid.UUID, pause: Callable[[float], bool] | None = None) -> RunDetail:
    """Show the run until it has finished or `pause(seconds)`, called between looks, says to leave.

    An API that does not answer for a moment is waited for. Raises ApiUnreachable when that lasts a minute,
    ApiError when it refuses, and what `pause` raises.
    """
    show = _Live() if sys.stdout.isatty() else _Lines()
    pause = pause or _sleep
    try:
        while True:
            run = _patiently(client, run_id, pause)
            show(run)
            if run.state in FINISHED or pause(_POLL_S):
                return run
    finally:
        show.close()


def ending(run: RunDetail) -> str:
    """How the run ended, in a sentence."""
    reason = f": {run.reason}" if run.reason else ""
    return f"Run {run.name!r} ({run.id}) {run.state}{reason}"


def exit_code(run: RunDetail) -> int:
    return 0 if run.state == "succeeded" else 1


def accuracy(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}%"


def bucket_words(counts: dict[str, int]) -> str:
    if not any(counts.values()):
        return "-"  # the prompts are not loaded yet
    return ", ".join(f"{name} {counts[name]:,}" for name in BUCKETS if name in counts)


def run_of(client: Client, text: str) -> uuid.UUID:
    """The run whose id is `text` or begins with it. Raises Failure when there is not exactly one, and as `told`."""
    try:
        return uuid.UUID(text)
    except ValueError:
        pass
    prefix = text.strip().lower().replace("-", "")
    if not (re.fullmatch("[0-9a-f]+", prefix) and _PREFIX <= len(prefix) < 32):
        raise Failure(
            f"{text!r} is not a run's id, nor its first {_PREFIX} or more characters. "
            "`./pilot run list` shows the ids.",
            WRONG_USE,
        )
    found = [run for run in _all_runs(client) if run.id.hex.startswith(prefix)]
    if not found:
        raise Failure(f"No run's id begins with {text!r}. `./pilot run list` shows the ids.", WRONG_USE)
    if len(found) > 1:
        lines = "\n".join(f"  {run.id}  {run.name}" for run in found)
        raise Failure(f"The ids of {len(found)} runs begin with {text!r}; give more characters:\n{lines}", WRONG_USE)
    return found[0].id


def _all_runs(client: Client) -> Iterator[RunSummary]:
    cursor: str | None = None
    while True:
        with told():
            page = client.list_runs(limit=200, cursor=cursor, archived="any")
        yield from page.runs
        cursor = page.next_cursor
        if cursor is None:
            return


def _patiently(client: Client, run_id: uuid.UUID, pause: Callable[[float], bool]) -> RunDetail:
    deadline = time.monotonic() + 60.0
    while True:
        try:
            return client.get_run(run_id)
        except ApiUnreachable:
            if time.monotonic() > deadline or pause(1.0):
                raise
        except ApiError as error:
            if error.problem.status != 503 or time.monotonic() > deadline or pause(1.0):
                raise


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class _Lines:
    """A line at the start, at the end and for every change of state; between them one from time to time."""

    def __init__(self) -> None:
        self._said: RunDetail | None = None
        self._seen: RunDetail | None = None
        self._said_at = 0.0

    def __call__(self, run: RunDetail) -> None:
        self._seen = run
        if self._said is not None and self._said.state == run.state:
            wait_s = _QUIET_S if _news(run) == _news(self._said) else _LINE_EVERY_S
            if time.monotonic() - self._said_at < wait_s:
                return
        self._say(run)

    def close(self) -> None:
        if self._seen is not None and self._said is not None and _news(self._seen) != _news(self._said):
            self._say(self._seen)

    def _say(self, run: RunDetail) -> None:
        self._said, self._said_at = run, time.monotonic()
        print(
            f"{run.state}: step {run.step}/{run.steps_budget}, sampled accuracy {accuracy(run.first_accuracy)} -> "
            f"{accuracy(run.accuracy)}, rollouts {run.rollouts:,}, prompts: {bucket_words(run.buckets)}",
            flush=True,
        )


def _news(run: RunDetail) -> tuple[str, int, float | None]:
    return run.state, run.step, run.accuracy


class _Live:
    """A few lines that are redrawn in place."""

    def __init__(self) -> None:
        from rich.live import Live
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description:<9}"), BarColumn(bar_width=36), MofNCompleteColumn(), TextColumn("steps"),
            TimeElapsedColumn(), auto_refresh=False,
        )  # fmt: skip
        self._task = self._progress.add_task("queued", total=None)
        self._live = Live(auto_refresh=False)
        self._live.start()

    def __call__(self, run: RunDetail) -> None:
        self._progress.update(self._task, description=run.state, completed=run.step, total=run.steps_budget)
        self._live.update(self._picture(run), refresh=True)

    def _picture(self, run: RunDetail) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        lines = [
            ("accuracy", f"{accuracy(run.first_accuracy)} → {accuracy(run.accuracy)}  sampled, held-out prompts"),
            ("rollouts", f"{run.rollouts:,}"),
            ("buckets", bucket_words(run.buckets)),
        ]
        return Group(self._progress, *(Text(f"{name:<9} {words}") for name, words in lines))

    def close(self) -> None:
        self._live.stop()
