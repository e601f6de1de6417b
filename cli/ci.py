"""`pilot run start --wait --require ...`: a run as a check of a CI pipeline, with its result as JUnit and Markdown."""

from __future__ import annotations

import operator
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from api.client import Client
from api.schemas import EvaluationOut, RunDetail
from cli.failure import WRONG_USE, Failure, told
from cli.signals import StopSignals
from cli.watch import FINISHED, accuracy, ending, follow

METRICS: Final = {
    "accuracy": "sampled accuracy on the held-out set, newest",
    "best_accuracy": "the best of them",
    "gain": "accuracy minus that before training",
    "greedy_accuracy": "greedy accuracy on the held-out set, newest",
    "mean_accuracy": "mean accuracy over the benchmarks of the config, newest",
    "steps": "training steps",
    "rollouts": "training rollouts",
    "tokens": "training tokens",
    "seconds": "from its start to its end",
}
_OPERATORS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt, "==": operator.eq,
}  # fmt: skip
_GRAMMAR: Final = re.compile(r"\s*([a-z_]+)\s*(>=|<=|==|>|<)\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*")


class Requirement(NamedTuple):
    metric: str
    sign: str
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.bound:g}"


class Check(NamedTuple):
    """One line of the result. problem: what is wrong; None: nothing."""

    name: str
    found: str
    problem: str | None


def requirement(text: str) -> Requirement:
    """`metric op number`, such as accuracy>=0.6. Raises Failure."""
    match = _GRAMMAR.fullmatch(text)
    if match is None:
        raise Failure(
            f"--require {text!r} is not a metric, one of {' '.join(_OPERATORS)} and a number, such as 'accuracy>=0.6'.",
            WRONG_USE,
        )
    if match[1] not in METRICS:
        names = "\n".join(f"  {name:<16} {words}" for name, words in METRICS.items())
        raise Failure(f"--require {text!r}: there is no metric {match[1]!r}. These are known:\n{names}", WRONG_USE)
    return Requirement(match[1], match[2], float(match[3]))


def wait(
    client: Client, run: RunDetail, requirements: Sequence[Requirement], junit: Path | None, markdown: Path | None
) -> int:
    """Follow the run to its end, judge it, write the reports. Returns the exit status.

    A signal that ends the wait stops the run: nobody would look at it any more.
    """
    with StopSignals() as stop, told():
        run = follow(client, run.id, stop.pause)
        if run.state not in FINISHED:
            client.stop_run(run.id)
            print(f"The run is asked to stop; `./pilot run resume {run.id}` goes on.", flush=True)
            return stop.exit_code
    print(ending(run), flush=True)
    results = checks(client, run, requirements)
    print(told_in_words(results), flush=True)
    if junit is not None:
        write_junit(junit, run, results)
    if markdown is not None:
        write_markdown(markdown, run, results)
    return 0 if all(check.problem is None for check in results) else 1


def checks(client: Client, run: RunDetail, requirements: Sequence[Requirement]) -> list[Check]:
    """Whether the run succeeded and holds what is required of it. A metric that was never measured holds nothing."""
    with told():
        evaluations = client.metrics(run.id, from_step=run.step).evaluations
        if not evaluations and any(r.metric in ("greedy_accuracy", "mean_accuracy") for r in requirements):
            evaluations = client.metrics(run.id).evaluations
    values = _values(run, evaluations)
    ended = None if run.state == "succeeded" else f"it {run.state}{f': {run.reason}' if run.reason else ''}"
    found = [Check("the run succeeds", run.state, ended)]
    for required in requirements:
        value = values[required.metric]
        if value is None:
            problem: str | None = "it was never measured"
        elif _OPERATORS[required.sign](value, required.bound):
            problem = None
        else:
            problem = f"{required.metric} is {value:g}, required is {required.sign} {required.bound:g}"
        found.append(Check(str(required), "-" if value is None else f"{value:g}", problem))
    return found


def write_junit(path: Path, run: RunDetail, results: Sequence[Check]) -> None:
    """One suite, a test case a check. Raises Failure when the file cannot be written."""
    failures = sum(check.problem is not None for check in results)
    totals = {"tests": str(len(results)), "failures": str(failures), "errors": "0", "time": f"{_seconds(run) or 0:.3f}"}
    root = ET.Element("testsuites", totals)
    suite = ET.SubElement(root, "testsuite", {"name": _xml(f"pilot run {run.name}"), **totals})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("run", str(run.id)), ("method", run.method), ("config_digest", run.config_digest)):
        ET.SubElement(properties, "property", {"name": name, "value": value})
    for number, check in enumerate(results):
        time = totals["time"] if number == 0 else "0.000"
        case = ET.SubElement(suite, "testcase", {"classname": _xml(run.name), "name": _xml(check.name), "time": time})
        if check.problem is not None:
            ET.SubElement(case, "failure", {"message": _xml(check.problem.splitlines()[0])}).text = _xml(check.problem)
    ET.indent(root)
    _write(path, ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n")


def write_markdown(path: Path, run: RunDetail, results: Sequence[Check]) -> None:
    """A summary for people, such as GitHub's job summaries show. Raises Failure when the file cannot be written."""
    held = all(check.problem is None for check in results)
    seconds = _seconds(run)
    lines = [
        f"## {'✅' if held else '❌'} {_cell(run.name)}",
        "",
        "| check | found | |",
        "|---|---|---|",
        *(f"| {_cell(c.name)} | {_cell(c.found)} | {_cell(c.problem or 'ok')} |" for c in results),
        "",
        f"Accuracy on held-out prompts {accuracy(run.first_accuracy)} → {accuracy(run.accuracy)} "
        f"(best {accuracy(run.best_accuracy)}) with {run.rollouts:,} training rollouts and {run.tokens:,} tokens in "
        f"{run.step:,} steps{f', {seconds:.0f} s' if seconds is not None else ''}; method {run.method}.",
        "",
        f"Run `{run.id}`, config `{run.config_digest}`.",
    ]
    _write(path, "\n".join(lines) + "\n")


def told_in_words(results: Sequence[Check]) -> str:
    return "\n".join(
        f"{'ok  ' if check.problem is None else 'FAIL'}  {check.name}"
        + (f": {check.problem.splitlines()[0]}" if check.problem is not None else f" ({check.found})")
        for check in results
    )


def _values(run: RunDetail, evaluations: Sequence[EvaluationOut]) -> dict[str, float | None]:
    known = run.accuracy is not None and run.first_accuracy is not None
    return {
        "accuracy": run.accuracy,
        "best_accuracy": run.best_accuracy,
        "gain": (run.accuracy or 0.0) - (run.first_accuracy or 0.0) if known else None,
        "greedy_accuracy": evaluations[-1].greedy_accuracy if evaluations else None,
        "mean_accuracy": evaluations[-1].mean_accuracy if evaluations else None,
        "steps": run.step,
        "rollouts": run.rollouts,
        "tokens": run.tokens,
        "seconds": _seconds(run),
    }


def _seconds(run: RunDetail) -> float | None:
    if run.started_at is None or run.finished_at is None:
        return None
    return (run.finished_at - run.started_at).total_seconds()


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}.") from None


def _xml(text: str) -> str:
    """Without what XML 1.0 cannot carry."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
