"""`pilot up --demo`: one Pilot-Commit run on the bundled data, from the start to what came out of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from api.client import ApiError, ApiUnreachable, Client
from api.schemas import EvaluationOut, Ledger, RunDetail
from cli.failure import Failure
from cli.place import kept_token
from cli.watch import BUCKETS, accuracy, ending, exit_code, follow

if TYPE_CHECKING:
    from rich.console import Console

    from cli.up import Platform

PRESET = "demo"

FATES = {
    "trained": "trained on",
    "buffered": "pilots that wait to be trained on",
    "pilot_skipped": "pilots of prompts that were too easy",
    "pilot_deferred": "pilots of prompts that were too hard",
    "pilot_evicted": "pilots of prompts that were solved",
    "downsampled": "left out by down-sampling",
    "stale": "too old to train on",
    "discarded": "sampled and not used in the end",
    "failed": "could not be rewarded",
    "lost": "repeated after a crash",
}


def run_demo(platform: Platform) -> int:
    """Start the run of the preset, show it, sum it up. Returns 0, 1 when it did not succeed, 128+n after a signal.

    Raises Failure when the API does not do its part, or a part of the platform ends.
    """
    stop = platform.stop

    def pause(seconds: float) -> bool:
        platform.check()
        return stop.pause(seconds)

    with Client(platform.api_url, kept_token(platform.home)) as client:
        try:
            config = next((p.config for p in client.presets() if p.name == PRESET), None)
            if config is None:
                raise Failure(f"There is no preset {PRESET!r}; restore pipeline/presets/{PRESET}.yaml.")
            run = client.create_run(config)
            print(f"\nRun {run.name!r}: watch it at\n  {platform.ui_url}/run?run={run.id}\n", flush=True)
            run = follow(client, run.id, pause)
            if stop.requested:
                print(f"Go on with this run later: ./pilot up, and then ./pilot run resume {run.id}", flush=True)
                return stop.exit_code
            print(f"\n{ending(run)}", file=sys.stdout if run.state == "succeeded" else sys.stderr, flush=True)
            return _summary(client, run)
        except (ApiError, ApiUnreachable) as error:
            if stop.requested:
                return stop.exit_code
            platform.check()
            words = str(error) if isinstance(error, ApiError) else f"The API does not answer any more: {error.why}."
            raise Failure(words) from None


def _summary(client: Client, run: RunDetail) -> int:
    """Print what the run reached and what became of its rollouts. Returns the exit status."""
    from rich.console import Console

    evaluations, ledger = client.metrics(run.id).evaluations, client.ledger(run.id)
    console = Console(highlight=False)
    if evaluations:
        _accuracies(console, evaluations[0], evaluations[-1])
    _fates(console, ledger)
    counts = [f"{run.buckets[name]:,} {name}" for name in reversed(BUCKETS) if name in run.buckets]
    print(f"Prompts: {', '.join(counts)}")
    seconds = (run.finished_at - run.started_at).total_seconds() if run.finished_at and run.started_at else None
    print(
        f"{run.step} steps, {run.rollouts:,} training rollouts, {run.eval_rollouts:,} evaluation rollouts"
        + (f", {seconds:.0f} seconds" if seconds is not None else "")
    )
    total = sum(fate.rollouts for fate in ledger.fates)
    if total != ledger.sampled.rollouts:
        print(
            f"The books do not balance: {ledger.sampled.rollouts:,} rollouts were sampled and {total:,} are "
            "accounted for. This is a fault of the platform; please report it.",
            file=sys.stderr,
        )
        return 1
    return exit_code(run)


def _accuracies(console: Console, first: EvaluationOut, last: EvaluationOut) -> None:
    from rich.table import Table

    table = Table(title="Accuracy on held-out prompts", title_justify="left", min_width=64)
    for name in ("", "before", "after", "gain (points)"):
        table.add_column(name, justify="left" if not name else "right")
    rows = [
        (f"sampled (avg@{last.samples})", first.sampled_accuracy, last.sampled_accuracy),
        ("greedy", first.greedy_accuracy, last.greedy_accuracy),
    ]
    for name, before, after in rows:
        table.add_row(name, accuracy(before), accuracy(after), f"{100 * (after - before):+.1f}")
    console.print(table)


def _fates(console: Console, ledger: Ledger) -> None:
    from rich.table import Table

    table = Table(title="What became of the rollouts", title_justify="left", min_width=64, show_footer=True)
    table.add_column("fate", "sampled")
    table.add_column("rollouts", f"{ledger.sampled.rollouts:,}", justify="right")
    table.add_column("share", "100%", justify="right")
    for fate in ledger.fates:
        if fate.rollouts:
            share = 100 * fate.rollouts / max(ledger.sampled.rollouts, 1)
            table.add_row(FATES.get(fate.fate, fate.fate), f"{fate.rollouts:,}", f"{share:.1f}%")
    console.print(table)
