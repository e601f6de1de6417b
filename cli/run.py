"""`pilot run start|list|show|stop|resume`: runs over the API."""

from __future__ import annotations

import datetime as dt
import difflib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from api.client import Client
from api.schemas import EvaluationOut, Preset, RunDetail, RunPage
from cli.evaluate import HEAD, cells, mean_cells
from cli.failure import WRONG_USE, Failure, told
from cli.table import table
from cli.watch import FINISHED, accuracy, bucket_words, ending, run_of

LIST_PRESETS = "`./pilot run presets` lists them."


def start(
    client: Client, config: str, changes: list[str], max_rollouts: int | None = None, key: str | None = None
) -> RunDetail:
    """Create a run from a YAML or JSON file, or a preset's name, with `key.path=value` changes. Raises Failure.

    max_rollouts: bound of the training rollouts in place of the config's. key: the same call with it starts no other.
    """
    data = config_given(client, config, changes, max_rollouts)
    with told():
        return client.create_run(data, key=key)


def config_given(client: Client, config: str, changes: list[str], max_rollouts: int | None = None) -> dict[str, Any]:
    """The config that a file or a preset's name and the changes give; the API checks it. Raises Failure."""
    path = Path(config)
    is_file = path.is_file() or path.suffix in (".yaml", ".yml", ".json") or len(path.parts) > 1
    data = read_config(path) if is_file else preset(client, config)
    for change in changes:
        set_value(data, change)
    if max_rollouts is not None:
        set_value(data, f"budget.rollouts={max_rollouts}")
    return data


def preset(client: Client, name: str) -> dict[str, Any]:
    """The config of the shipped preset. Raises Failure."""
    with told():
        found = {p.name: p.config for p in client.presets()}
    if name not in found:
        close = difflib.get_close_matches(name, found, n=3)
        hint = f" Did you mean {' or '.join(close)}?" if close else ""
        raise Failure(f"There is neither a file nor a preset {name!r}.{hint} {LIST_PRESETS}", WRONG_USE)
    return found[name]


def presets_listed(presets: list[Preset]) -> str:
    """Names and titles by group, a preset a line."""
    width = max((len(p.name) for p in presets), default=0)
    lines: list[str] = []
    for group in dict.fromkeys(p.group for p in presets):
        lines += ["", f"{group}:"] if group else []
        lines += [f"{p.name:<{width}}  {p.title}" for p in presets if p.group == group]
    return "\n".join(lines)


def read_config(path: Path) -> dict[str, Any]:
    """The mapping in the file; what is in it is the API's to check. Raises Failure."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}. Give the path of a run config.", WRONG_USE) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Failure(f"{path} is not YAML or JSON: {error}", WRONG_USE) from None
    if isinstance(data, dict) and "runs" in data and "settings" in data:
        raise Failure(f"{path} holds several presets; start one by its name. {LIST_PRESETS}", WRONG_USE)
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        data = data["config"]  # a preset: its title and description are for lists
    if not isinstance(data, dict):
        raise Failure(f"{path} holds no mapping of fields; see pipeline/presets/ for examples.", WRONG_USE)
    return data


def set_value(data: dict[str, Any], change: str) -> None:
    """Apply `key.path=value`, the value read as YAML (`0.2`, `null`, `text`). Raises Failure."""
    path, equals, text = change.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise Failure(f"--set {change!r} is not key.path=value, such as --set update.lr=1e-4", WRONG_USE)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise Failure(
            f"--set {change!r}: the value is not YAML; put text with special characters in quotes", WRONG_USE
        ) from None
    if isinstance(value, str):
        value = _number(value)
    section = data
    for key in keys[:-1]:
        section = section.setdefault(key, {})
        if not isinstance(section, dict):
            raise Failure(f"--set {change!r}: {key!r} is a value in the config, not a section", WRONG_USE)
    section[keys[-1]] = value


def listed(page: RunPage, filtered: bool) -> str:
    """A table, one run a line, and how many more there are. filtered: some runs may have been left out."""
    if not page.runs and filtered:
        return "There is no such run. `./pilot run list` without options lists all but the archived ones."
    if not page.runs:
        return "There are no runs yet. `./pilot run start demo` starts one."
    rows = [("ID", "NAME", "STATE", "METHOD", "STEP", "ACCURACY", "ROLLOUTS", "CREATED", "OWNER", "TAGS")]
    for run in page.runs:
        rows.append((
            str(run.id), run.name, run.state, run.method, f"{run.step}/{run.steps_budget}",
            accuracy(run.accuracy), f"{run.rollouts:,}", _when(run.created_at), run.created_by or "-",
            ", ".join(run.tags),
        ))  # fmt: skip
    more = page.total - len(page.runs)
    return table(rows) + (f"\n{more:,} more; --limit shows up to 200 of them." if more else "")


def shown(run: RunDetail, evaluations: Sequence[EvaluationOut] = ()) -> str:
    """What there is to say about one run, a fact a line, and of its evaluations what each benchmark's newest found."""
    facts = [
        ("run", f"{run.name} ({run.id})"),
        ("state", f"{run.state}{f': {run.reason}' if run.reason else ''}"),
        ("method", run.method),
        ("owner", run.created_by or "-"),
        ("tags", ", ".join(run.tags) or "-"),
        ("model", run.model),
        ("step", f"{run.step} of {run.steps_budget}"),
        (
            "accuracy",
            f"{accuracy(run.first_accuracy)} -> {accuracy(run.accuracy)} (best {accuracy(run.best_accuracy)})",
        ),
        ("rollouts", f"{run.rollouts:,}{f' of {run.rollouts_budget:,}' if run.rollouts_budget else ''}"),
        ("tokens", f"{run.tokens:,}"),
        ("buckets", bucket_words(run.buckets)),
        ("created", _when(run.created_at)),
        ("started", _when(run.started_at)),
        ("finished", _when(run.finished_at)),
    ]
    for attempt in run.attempts:
        outcome = f"{attempt.outcome or 'running'}{f': {attempt.reason}' if attempt.reason else ''}"
        where = f"on {attempt.host}"
        if attempt.from_step is not None:  # told by the trainer, once it has loaded the model
            where = f"from step {attempt.from_step}, {where}"
        facts.append((f"attempt {attempt.attempt}", f"{outcome} ({where})"))
    told = "\n".join(f"{name:<10} {words}" for name, words in facts)
    newest = {b.name: (str(e.step), b) for e in evaluations for b in e.benchmarks}
    if not newest:
        return told
    rows: list[Sequence[str]] = [(HEAD[0], "STEP", *HEAD[1:])]
    for step, benchmark in newest.values():
        name, *rest = cells(benchmark)
        rows.append((name, step, *rest))
    mean = next((e for e in reversed(evaluations) if e.mean_accuracy is not None), None)
    if mean is not None and mean.mean_accuracy is not None and len(newest) > 2:
        name, *rest = mean_cells("mean", mean.mean_accuracy, mean.mean_stderr)
        rows.append((name, str(mean.step), *rest))
    return f"{told}\n\n{table(rows)}"


def stop(client: Client, run_id: str) -> str:
    with told():
        run = client.stop_run(run_of(client, run_id))
    if run.state == "stopping":
        return (
            f"Run {run.name!r} finishes its step, saves a checkpoint and stops. `./pilot run resume {run.id}` goes on."
        )
    return ending(run)


def resume(client: Client, run_id: str) -> str:
    with told():
        run = client.resume_run(run_of(client, run_id))
    return f"Run {run.name!r} is {run.state} again. `./pilot watch {run.id}` follows it."


def clone(client: Client, run_id: str, changes: list[str], priority: int) -> RunDetail:
    """Start a run with the config of another and `key.path=value` changes. Raises Failure."""
    config: dict[str, Any] = {}
    for change in changes:
        set_value(config, change)
    with told():
        return client.clone_run(run_of(client, run_id), config, priority)


def prioritise(client: Client, run_id: str, priority: int) -> str:
    with told():
        run = client.change_run(run_of(client, run_id), priority=priority)
    return f"Run {run.name!r} is {run.state} with priority {run.priority}{f': {run.reason}' if run.reason else ''}."


def tag(client: Client, run_id: str, added: list[str], removed: list[str]) -> str:
    """Raises Failure when a tag that is to be removed is not there."""
    with told():
        run = client.get_run(run_of(client, run_id))
        if missing := [name for name in removed if name not in run.tags]:
            has = f"it has {', '.join(run.tags)}" if run.tags else "it has none"
            raise Failure(f"Run {run.name!r} has no tag {missing[0]!r}; {has}.", WRONG_USE)
        if added or removed:
            kept = [name for name in run.tags if name not in removed]
            run = client.change_run(run.id, tags=[*kept, *added])
    return f"Run {run.name!r} has the tags {', '.join(run.tags)}." if run.tags else f"Run {run.name!r} has no tags."


def archive(client: Client, run_id: str, archived: bool) -> str:
    with told():
        run = client.change_run(run_of(client, run_id), archived=archived)
    if archived:
        return f"Run {run.name!r} is archived. `./pilot run archive {run.id} --undo` shows it in lists again."
    return f"Run {run.name!r} is in lists again."


def delete(client: Client, run_id: str) -> str:
    with told():
        run = client.delete_run(run_of(client, run_id))
    return f"Run {run.name!r} is deleted."


def print_log(client: Client, run_id: str, *, follow: bool) -> None:
    """The end of the newest attempt's log; with `follow` also what comes, from attempt to attempt, until it ended."""
    with told():
        run = client.get_run(run_of(client, run_id))
        part = client.log(run.id)
        print(part.text, end="", flush=True)
        if not part.size:
            elsewhere = f"`./pilot run show {run.id}` has its state and reason, `./pilot watch {run.id}` its steps."
            print(f"Its trainer has printed nothing. {elsewhere}", file=sys.stderr, flush=True)
        while follow:
            # The state first: what is printed before the end is in the log then.
            run = client.get_run(run.id)
            newer = run.attempt > part.attempt
            part = client.log(run.id, part.attempt, part.next_offset)
            print(part.text, end="", flush=True)
            if part.text:
                continue
            if newer:
                part = part.model_copy(update={"attempt": part.attempt + 1, "next_offset": 0})
            elif run.state in FINISHED:
                return
            else:
                time.sleep(1)


def _number(text: str) -> str | float:
    """YAML 1.1 takes 1e-4 for text; everybody means the number."""
    try:
        return float(text) if text[:1] in "0123456789.+-" else text
    except ValueError:
        return text


def _when(time: dt.datetime | None) -> str:
    return "-" if time is None else time.astimezone().strftime("%Y-%m-%d %H:%M:%S")
