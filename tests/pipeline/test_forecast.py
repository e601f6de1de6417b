"""Forecasts against what the real allocators then did, on prompts of known difficulty."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pipeline.allocation.types import Visit
from pipeline.config import RunConfig, parse_config
from pipeline.forecast import NO_HISTORY, History, Length, Pace, Range, Seen, fitted_prior, forecast, judge, part_of
from pipeline.step import build_allocator
from tests.pipeline.allocation.stream import World, one_step

N_PROMPTS, N_EVAL = 3000, 100
GRPO = {"name": "grpo", "n": 16}
PILOT = {"name": "pilot_commit", "n_pilot": 8, "n_commit": 24}


def config(method: dict[str, Any], **changes: Any) -> RunConfig:
    given = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}, "method": method}
    given |= {"update": {"batch_prompts": 32, "mini_batches": 2}, "budget": {"steps": 40}}
    return parse_config(given | changes)


def simulated(config: RunConfig, seed: int = 0) -> list[list[Visit]]:
    """The visits of each step of a run whose policy slowly gets better."""
    ease = np.random.default_rng(7).beta(0.5, 0.8, N_PROMPTS)
    allocator = build_allocator(config.model_copy(update={"seed": seed}), N_PROMPTS)
    steps = []
    for _ in range(config.budget.steps):
        ease = np.minimum(1.0, ease * 1.01 + 0.002)
        batch, _ = one_step(allocator, World(ease.tolist(), seed=seed))
        steps.append(list(batch.visits))
    return steps


def history(config: RunConfig, steps: list[list[Visit]]) -> History:
    stage = "pilot" if config.method.name == "pilot_commit" else "commit"
    last = len(steps)
    seen: Counter[tuple[Any, ...]] = Counter()
    sampled: Counter[tuple[int, int]] = Counter()
    for number, visits in enumerate(steps, 1):
        part = part_of(number, last)
        for visit in visits:
            sampled[part] += visit.n
            if visit.stage == stage and visit.success_rate is not None:
                seen[(*part, visit.n, round(visit.success_rate * visit.n))] += 1
    return History(
        [Seen("r", *key, groups) for key, groups in seen.items()],
        [Length("r", *part, n, 11 * n) for part, n in sampled.items()],
        [Pace("r", 0.001, 0.002, 0.0005, 0.1)],
        1,
        N_PROMPTS,
    )


PAST = {
    "grpo": history(config(GRPO), simulated(config(GRPO))),
    "pilot_commit": history(config(PILOT), simulated(config(PILOT))),
}


@pytest.mark.parametrize("source", list(PAST))
@pytest.mark.parametrize(
    "method",
    [
        PILOT,
        {"name": "pilot_commit", "n_pilot": 4, "n_commit": 12, "p_lower": 0.25},
        {"name": "pilot_commit", "n_pilot": 16, "n_commit": 16, "binding": False, "commit_order": "random"},
        {"name": "dapo", "n": 8},
        {"name": "dapo", "n": 8, "keep_surplus": False},
        GRPO,
    ],
    ids=lambda m: "-".join(str(v) for v in m.values()),
)
def test_a_forecast_is_close_to_what_happens(source: str, method: dict[str, Any]) -> None:
    """From runs of another seed and, mostly, of another method or another number of pilots."""
    wanted = config(method)
    told = forecast(wanted, N_PROMPTS, N_EVAL, PAST[source])
    visits = [visit for step in simulated(wanted, seed=3) for visit in step]
    spent = sum(visit.n for visit in visits)
    assert told.rollouts.expected == pytest.approx(spent, rel=0.12)
    assert told.rollouts.low is not None and told.rollouts.high is not None
    assert told.rollouts.low * 0.99 <= spent <= told.rollouts.high * 1.01
    by_stage = {stage.stage: stage.rollouts.expected for stage in told.stages}
    pilots = sum(visit.n for visit in visits if visit.stage == "pilot")
    assert by_stage.get("pilot", 0) == pytest.approx(pilots, rel=0.15)
    if told.shares:
        first = [v for v in visits if v.stage == ("pilot" if pilots else "commit")]
        deferred = sum(visit.bucket == "deferred" for visit in first) / len(first)
        assert told.shares["deferred"].expected == pytest.approx(deferred, abs=0.06)


def test_grpo_is_known_without_a_history() -> None:
    told = forecast(config(GRPO, evaluation={"every": 15}), N_PROMPTS, N_EVAL)
    exact = float(40 * 32 * 16)
    assert told.rollouts == Range(low=exact, expected=exact, high=exact)
    assert told.tokens == Range(low=exact, expected=None, high=exact * 1024)
    (_, evaluation) = told.stages
    assert evaluation.rollouts.expected == 4 * N_EVAL, "at the start, after 15 and 30 steps, and at the end"
    assert told.gpu_hours == Range() and told.saving is None and told.shares == {}
    assert [words.partition(":")[0] for words in told.unknown] == ["How long responses are", "How fast it is"]
    assert forecast(config(GRPO), 20, N_EVAL).rollouts.expected == 40 * 20 * 16, "a pool smaller than a batch"


def test_without_a_history_it_says_that_it_does_not_know() -> None:
    told = forecast(config(PILOT), N_PROMPTS, N_EVAL, NO_HISTORY)
    assert told.rollouts.expected is None and told.saving is None
    assert told.rollouts.low == 40 * (32 * 8 + 32 * 24), "every pilot finds a prompt"
    assert told.rollouts.high == 40 * (8 * 96 * 8 + 32 * 24), "as many passes as it may take"
    assert "no run has trained this model on these prompts yet" in told.unknown[0]
    outcome = sum(visit.n for step in simulated(config(PILOT)) for visit in step)
    assert told.rollouts.low <= outcome <= told.rollouts.high


def test_the_first_budget_that_is_reached_ends_it() -> None:
    past = PAST["pilot_commit"]
    whole = forecast(config(PILOT), N_PROMPTS, N_EVAL, past)
    assert (whole.steps, whole.ends_by) == (40, "budget.steps")
    half = forecast(config(PILOT, budget={"steps": 40, "rollouts": 20_000}), N_PROMPTS, N_EVAL, past)
    assert half.ends_by == "budget.rollouts" and 5 < half.steps < 20
    assert half.rollouts.expected is not None and half.rollouts.high is not None
    assert half.rollouts.expected <= half.rollouts.high <= 20_000, "budgets are hard"
    tokens = forecast(config(PILOT, budget={"steps": 40, "tokens": 11 * 20_000}), N_PROMPTS, N_EVAL, past)
    assert (tokens.ends_by, tokens.steps) == ("budget.tokens", half.steps)
    hours = forecast(config(PILOT, budget={"steps": 40, "gpu_hours": 0.01}), N_PROMPTS, N_EVAL, past)
    assert hours.ends_by == "budget.gpu_hours" and hours.steps < 40
    none = forecast(config(PILOT, budget={"steps": 40, "rollouts": 10}), N_PROMPTS, N_EVAL, past)
    assert none.steps == 0 and none.rollouts.expected == 0


def test_the_saving_is_what_commits_of_all_other_prompts_would_cost() -> None:
    told = forecast(config(PILOT), N_PROMPTS, N_EVAL, PAST["grpo"])
    ready = told.shares["ready"].expected
    assert told.saving is not None and told.saving.expected == pytest.approx(24 / 32 * (1 - ready))
    assert told.saving.low < told.saving.expected < told.saving.high


def test_success_rates_are_told_from_the_chance_of_few_rollouts() -> None:
    rng = np.random.default_rng(0)
    rates = rng.beta(0.6, 1.4, 20_000)
    for n in (4, 32):
        counts = Counter(rng.binomial(n, rates).tolist())
        a, b = fitted_prior([Seen("r", 1, 1, n, k, groups) for k, groups in counts.items()])
        assert (a, b) == (pytest.approx(0.6, rel=0.08), pytest.approx(1.4, rel=0.08)), n
    for k in (0, 3, 8):
        assert sum(judge(config(PILOT), 8, k, (0.6, 1.4)).values()) == pytest.approx(1)
    assert fitted_prior([Seen("r", 1, 1, 8, 0, 50)])[0] > 0, "all wrong is a history, too"
