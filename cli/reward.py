"""`pilot reward test|list`: what a reward says about one response, and which rewards there are."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cli.failure import WRONG_USE, Failure
from cli.run import read_config, set_value
from pipeline.config import ConfigProblems, parse_reward
from pipeline.rewards import Response, RewardResult, described, tried


def tested(reward: str, changes: list[str], response: Response) -> RewardResult:
    """Score the response by a reward's name, or by the reward of a run config's file. Raises Failure."""
    given: dict[str, Any] = {"name": reward}
    if Path(reward).is_file():
        section = read_config(Path(reward)).get("reward", {"name": "exact"})
        given = dict(section) if isinstance(section, dict) else {"name": section}
    for change in changes:
        set_value(given, change)
    try:
        return tried(parse_reward(given), [response])[0]
    except ConfigProblems as problems:
        told = "\n".join(f"{p.field}: {p.message}" for p in problems.problems)
        raise Failure(told, WRONG_USE) from None
    except ValueError as error:
        raise Failure(str(error)) from None


def text_of(given: str) -> str:
    """The text itself, `-` for standard input, or `@FILE` for a file's content. Raises Failure."""
    try:
        if given == "-":
            return sys.stdin.buffer.read().decode(errors="replace")
        return Path(given[1:]).read_text(encoding="utf-8", errors="replace") if given.startswith("@") else given
    except OSError as error:
        raise Failure(f"{given[1:]} cannot be read: {error.strerror}", WRONG_USE) from None


def words(result: RewardResult) -> str:
    """A part a paragraph: its value and why, what was extracted, what that was compared with."""
    lines = [f"reward    {_number(result.reward)}", f"accuracy  {_number(result.accuracy)}"]
    lines += [f"took      {result.seconds:.3g} s, without starting the reward"] if result.seconds >= 0.1 else []
    for part in result.parts:
        lines += ["", f"{part.name}: {_number(part.value)}, {part.why}"]
        if part.extracted is not None:
            lines.append(f"  extracted  {part.extracted}")
        if part.expected is not None:
            lines.append(f"  compared   {part.expected}")
    return "\n".join(lines)


def listed() -> str:
    lines = []
    for reward in described():
        only = "" if reward["judges"] else " Only as a part of a sum."
        lines.append(f"{reward['name']:<13} v{reward['version']}  {reward['title']}{only}")
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "failed" if value is None else f"{value:g}"
