"""Run configs from outside: text that the database can store, the config's own rules, the files it names."""

from __future__ import annotations

from typing import Any

from api.schemas import EvaluationAsk
from pipeline.asked import asked_config
from pipeline.config import ConfigProblems, FieldProblem, RunConfig, parse_config, parse_reward
from pipeline.prompts import preflight, preflight_evaluation, reward_problems

_MAX_DEPTH = 32


def accept(data: dict[str, Any]) -> RunConfig:
    """The RunConfig in `data`, its model and prompts checked. Raises ConfigProblems with every fault."""
    problems = _unstorable(data)
    if problems:
        raise ConfigProblems(problems)
    config = parse_config(data)
    try:
        preflight(config)
    except (OSError, RuntimeError) as error:
        # A path that can't be looked at: too long, no permission, ~nobody.
        message = f"a path in it cannot be read: {error}"
        raise ConfigProblems.one("config", None, message) from None
    return config


def accept_evaluation(run: dict[str, Any], ask: EvaluationAsk) -> RunConfig:
    """The run's config with the benchmarks that are asked for, their prompts and the model checked.

    Raises ConfigProblems with every fault.
    """
    problems = _unstorable(ask.model_dump())
    if problems:
        raise ConfigProblems(problems)
    changes = ask.model_dump(include={"samples", "temperature", "top_p", "greedy"}, exclude_none=True)
    if ask.reward is not None:
        changes["reward"] = parse_reward(ask.reward)
        if problems := reward_problems("reward", changes["reward"]):
            raise ConfigProblems(problems)
    config = asked_config(parse_config(run), ask.benchmarks, ask.protocol, changes)
    try:
        preflight_evaluation(config)
    except (OSError, RuntimeError) as error:
        message = f"a path in it cannot be read: {error}"
        raise ConfigProblems.one("benchmarks", ask.benchmarks, message) from None
    return config


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`: mappings are merged, everything else is replaced.

    A section that is given another `name` is another kind of section: it is replaced whole, as the fields of the old
    kind mean nothing to it.
    """
    result = dict(base)
    for key, value in changes.items():
        old = base.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            other = "name" in value and "name" in old and value["name"] != old["name"]
            result[key] = value if other else merged(old, value)
        else:
            result[key] = value
    return result


def _unstorable(data: dict[str, Any]) -> list[FieldProblem]:
    """NUL characters and half surrogates, which JSON can carry and Postgres can't, and absurd nesting."""
    problems: list[FieldProblem] = []
    pending: list[tuple[tuple[str, ...], Any]] = [((), data)]
    while pending:
        path, value = pending.pop()
        field = ".".join(path) or "config"
        if isinstance(value, dict | list):
            if len(path) >= _MAX_DEPTH:
                problems.append(FieldProblem(field=field, value=None, message="is nested too deeply"))
                continue
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for key, item in items:
                shown = str(key)
                if not _storable(shown):
                    problems.append(_bad_text(field, shown))
                else:
                    pending.append(((*path, shown), item))
        elif isinstance(value, str) and not _storable(value):
            problems.append(_bad_text(field, value))
    return problems


def _storable(text: str) -> bool:
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def _bad_text(field: str, text: str) -> FieldProblem:
    message = "has a NUL character or half of a surrogate pair; give plain Unicode text"
    return FieldProblem(field=field, value=ascii(text)[:200], message=message)
