"""`pilot audit PATH`: what of a log's rollouts was in vain, and what other methods would have spent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cli.failure import WRONG_USE, Failure
from cli.place import home
from cli.table import counted
from pipeline.audit import AuditSettings, BadLog, Interval, Report, audit, page


def audited(path: Path, given: dict[str, Any]) -> Report:
    """The report; on a terminal with its progress on stderr. Raises Failure."""
    from rich.console import Console

    try:
        settings = AuditSettings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        faults = [f"--{'-'.join(str(e['loc'][0]).split('_'))}: {e['msg']}" for e in error.errors()]
        raise Failure("\n".join(faults), WRONG_USE) from None
    if not path.exists() and len(path.parts) == 1 and (ours := home() / "runs" / path).is_dir():
        path = ours
    console = Console(stderr=True)
    try:
        with console.status(f"Reading {path} ...") as status:
            return audit(path, settings, lambda done, of: status.update(f"Replay {done} of {of} done ..."))
    except BadLog as error:
        raise Failure(str(error), WRONG_USE) from None


def written(report: Report, html: Path | None, out: Path | None) -> list[Path]:
    """Write what was asked for; the files, each whole or not at all. Raises Failure."""
    wanted = [(html, page)] if html else []
    wanted += [(out / "audit.html", page), (out / "audit.json", _as_json)] if out else []
    try:
        if out:
            out.mkdir(parents=True, exist_ok=True)
        for path, made in wanted:
            draft = path.with_name(f".{path.name}.writing")
            draft.write_text(made(report), encoding="utf-8")
            draft.replace(path)
    except (OSError, ValueError) as error:
        raise Failure(f"{getattr(error, 'filename', None) or html or out} cannot be written: {error}") from None
    return [path for path, _ in wanted]


def _as_json(report: Report) -> str:
    return report.model_dump_json(indent=2) + "\n"


def show(report: Report) -> None:
    """The report on the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    tokens = "" if report.tokens is None else f", {report.tokens:,} response tokens"
    console.print(
        Text(
            f"{report.source}: {report.steps:,} steps, {report.prompts:,} prompts, {report.groups:,} groups of "
            f"{report.group_size}, {report.rollouts:,} rollouts{tokens}; {report.reward}"
        )
    )
    if report.bad_rows:
        console.print(
            Text(f"Bad rows left out: {report.bad_rows:,}, among them: {'; '.join(report.bad)}"), style="yellow"
        )
    console.print(
        Text(
            f"\n{report.zero_variance:.1%} of the rollouts lie in groups of equal rewards and taught nothing: "
            f"{report.all_right:.1%} all right, {report.all_wrong:.1%} all wrong. "
            f"{counted(report.dead_prompts, 'prompt')} never had a mixed group; they took "
            f"{report.dead_rollouts / report.rollouts:.1%} of the rollouts.\n"
        ),
        style="bold",
    )
    methods = Table("method", "rollouts", "per mixed group", "saved", "at equal signal", title_justify="left")
    methods.title = f"On the same stream, {report.certainty.replays} replays: median (middle 95%)"
    for m in report.methods:
        methods.add_row(
            m.name,
            f"{m.rollouts.median:,.0f}",
            "–" if m.per_mixed is None else f"{m.per_mixed.median:.1f}",
            _told(m.saved),
            _told(m.saved_signal),
        )
    console.print(methods)
    fates = Table("method", "share of its rollouts by fate", title_justify="left")
    for m in report.methods:
        largest = sorted(m.fates.items(), key=lambda fate: -fate[1])
        fates.add_row(m.name, ", ".join(f"{fate} {share:.0%}" for fate, share in largest if share >= 0.005))
    console.print(fates)
    buckets = Table("bucket", "prompts", "rollouts", title="Prompts by their success rate", title_justify="left")
    for b in report.buckets:
        buckets.add_row(b.bucket, f"{b.prompts:,} ({b.prompts / report.prompts:.0%})", f"{b.rollouts:,}")
    console.print(buckets)
    if report.dead:
        dead = Table("most expensive dead prompts", "success rate", "rollouts")
        for d in report.dead[:5]:
            dead.add_row(Text(d.text), f"{d.success_rate:.0%}", f"{d.rollouts:,}")
        console.print(dead)
    for words in report.assumptions:
        console.print(Text(f"- {words}"), style="dim")


def _told(value: Interval | None) -> str:
    return "–" if value is None else f"{value.median:.0%} ({value.low:.0%} to {value.high:.0%})"
