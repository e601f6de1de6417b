"""`pilot eval RUN`: a checkpoint of a run of the platform, measured by its workers."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from api.client import Client
from api.schemas import BenchmarkOut, CheckpointEvaluation
from cli.failure import WRONG_USE, Failure, told
from cli.table import table
from cli.watch import FINISHED, accuracy

HEAD: Final = ("BENCHMARK", "PROMPTS", "K", "T", "TOP-P", "AVG@K", "S.E.", "PASS@K", "MAJ@K", "GREEDY", "FAILED")
_POLL_S: Final = 0.5


def ask(client: Client, run: str, asked: dict[str, Any], key: str | None = None) -> CheckpointEvaluation:
    """asked: the fields of EvaluationAsk, as the command line has them; what is None is left out. Raises Failure."""
    from cli.watch import run_of

    body = {name: value for name, value in asked.items() if value is not None and value != []}
    step = body.get("step", "newest")
    body["step"] = int(step) if step.isdigit() else step
    if "reward" in body:
        body["reward"] = reward_of(body["reward"])
    with told():
        return client.evaluate(run_of(client, run), body, key=key)


def reward_of(text: str) -> dict[str, Any]:
    """A reward by its name, or as JSON. Raises Failure."""
    if not text.lstrip().startswith("{"):
        return {"name": text.strip()}
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise Failure(f"--reward {text!r} is not JSON: {error}", WRONG_USE) from None
    return found


def follow(client: Client, evaluation: CheckpointEvaluation) -> CheckpointEvaluation:
    """Until it has ended; each change is told on standard error. Raises Failure."""
    said = ""
    while True:
        words = f"{evaluation.state}: {evaluation.reason}" if evaluation.reason else evaluation.state
        if words != said:
            print(words, file=sys.stderr, flush=True)
            said = words
        if evaluation.state in FINISHED:
            return evaluation
        time.sleep(_POLL_S)
        with told():
            evaluation = client.get_evaluation(evaluation.id)


def keep(client: Client, evaluation: CheckpointEvaluation, out: Path) -> None:
    """Its responses into a new folder, NAME.parquet each. Raises Failure."""
    try:
        out.mkdir(parents=True)
        for result in evaluation.results:
            with told():
                content = client.download_evaluation(evaluation.run_id, evaluation.step, result.name)
            (out / f"{result.name}.parquet").write_bytes(content)
    except FileExistsError:
        raise Failure(f"{out} is there already; give --out a new folder.", WRONG_USE) from None
    except OSError as error:
        raise Failure(f"The responses cannot be written into {out}: {error.strerror}.") from None


def shown(evaluation: CheckpointEvaluation) -> str:
    """Its results, a benchmark a line; before there are any, what is to come."""
    head = f"evaluation {evaluation.id}: step {evaluation.step} of {evaluation.run_name!r} ({evaluation.run_id})"
    if not evaluation.results:
        return f"{head}\n{evaluation.state}: {', '.join(b.name for b in evaluation.benchmarks)}"
    rows = [HEAD, *map(cells, evaluation.results)]
    # The held-out set comes with every evaluation, perhaps a second time with other samples, as held-out.k64.
    others = [r for r in evaluation.results if r.name.partition(".")[0] != "held-out"]
    if (n := len(others)) > 1:
        error = sum(r.stderr**2 for r in others) ** 0.5 / n
        rows.append(mean_cells(f"mean of {n}", sum(r.accuracy for r in others) / n, error))
    return f"{head}\n{table(rows)}"


def cells(result: BenchmarkOut) -> tuple[str, ...]:
    """A benchmark's row below HEAD."""
    r = result
    return (
        r.name, f"{r.n_prompts:,}", str(r.samples), f"{r.temperature:g}", f"{r.top_p:g}", accuracy(r.accuracy),
        accuracy(r.stderr), accuracy(r.pass_at.get(str(r.samples))), accuracy(r.majority), accuracy(r.greedy_accuracy),
        str(r.n_failed),
    )  # fmt: skip


def mean_cells(name: str, mean: float, error: float | None) -> tuple[str, ...]:
    """The row of a mean over benchmarks."""
    return (name, "", "", "", "", accuracy(mean), accuracy(error), "", "", "", "")
