"""Forecasts against what the real allocators then did, on prompts of known difficulty."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

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
    seen: Counter[tuple[Any, ...]] = Counter()
    sampled: Counter[int] = Counter()
    for number, visits in enumerate(steps, 1):
        part = part_of(number)
        for visit in visits:
            sampled[part] += visit.n
            if visit.stage == stage and visit.success_rate is not None:
                seen[(part, visit.n, round(visit.success_rate * visit.n))] += 1
    return History(
        [Seen("r", *key, groups) for key, groups in seen.items()],
        [Length("r", part, n, 11 * n) for part, n in sampled.items()],
        [Pace("r", 0.001, 0.002, 0.0005, 0.1)],
        1,
        N_PROMPTS,
        len(steps),
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
    assert told.rollouts.low == N_PROMPTS * 8, "every prompt is solved at the first look"
    assert told.rollouts.high == 40 * (8 * 96 * 8 + 32 * 24), "as many passes as it may take"
    assert "no run has trained this model on these prompts yet" in told.unknown[0]
    outcome = sum(visit.n for step in simulated(config(PILOT)) for visit in step)
    assert told.rollouts.low <= outcome <= told.rollouts.high


@pytest.mark.parametrize("n_prompts", [1, 10, 40, 400])
@pytest.mark.parametrize("method", [PILOT, PILOT | {"max_rounds": 1}, {"name": "dapo", "n": 8}, GRPO])
def test_bounds_hold_when_batches_go_short(method: dict[str, Any], n_prompts: int) -> None:
    """Prompts are fewer than a batch, or all solved, too hard or worth it, or some of each."""
    wanted = config(method, budget={"steps": 15})
    told = forecast(wanted, n_prompts, N_EVAL)
    worlds = [[0.0] * n_prompts, [0.5] * n_prompts, [1.0] * n_prompts]
    worlds += [np.random.default_rng(seed).beta(0.5, 0.5, n_prompts).tolist() for seed in range(3)]
    for ease in worlds:
        allocator, visits = build_allocator(wanted, n_prompts), []
        for _ in range(15):
            if not allocator.pool_is_solved:
                visits += one_step(allocator, World(ease))[0].visits
        by_stage = Counter[str]()
        for visit in visits:
            by_stage[visit.stage] += visit.n
        for stage in (s for s in told.stages if s.stage != "evaluation"):
            assert stage.rollouts.low <= by_stage[stage.stage] <= stage.rollouts.high, (stage, ease[:3])
        assert told.rollouts.low <= by_stage.total() <= told.rollouts.high


def test_a_small_set_is_told_by_its_prompts_and_comes_with_advice() -> None:
    told = forecast(config(PILOT, budget={"steps": 15}), 10, N_EVAL)
    assert (told.rollouts.low, told.rollouts.high) == (10 * 8, 15 * (10 * 8 + 10 * 24))
    (advice,) = told.advice
    assert advice.startswith("update.batch_prompts is 32 and the training set has 10 prompts: every batch goes short.")
    assert "has 1 prompt:" in forecast(config(GRPO), 1, N_EVAL).advice[0]
    assert forecast(config(PILOT), 32, N_EVAL).advice == []


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
        a, b = fitted_prior([Seen("r", 0, n, k, groups) for k, groups in counts.items()])
        assert (a, b) == (pytest.approx(0.6, rel=0.08), pytest.approx(1.4, rel=0.08)), n
    for k in (0, 3, 8):
        assert sum(judge(config(PILOT), 8, k, (0.6, 1.4)).values()) == pytest.approx(1)
    assert fitted_prior([Seen("r", 0, 8, 0, 50)])[0] > 0, "all wrong is a history, too"


def seen_by(run: str, steps: int, share: Callable[[int], float], prompts: int = 32) -> list[Seen]:
    """A GRPO run: of each step's prompts such a share is neither always right nor always wrong."""
    groups: Counter[tuple[int, int]] = Counter()
    for step in range(1, steps + 1):
        mixed = round(prompts * share(step))
        groups[part_of(step), 8] += mixed
        groups[part_of(step), 0] += prompts - mixed
    return [Seen(run, part, 16, k, n) for (part, k), n in groups.items()]


def past_of(*runs: tuple[int, Callable[[int], float]]) -> History:
    seen = [s for number, (steps, share) in enumerate(runs) for s in seen_by(str(number), steps, share)]
    lengths = [Length(s.run, s.part, 16 * s.groups, 110 * s.groups) for s in seen if s.groups]
    return History([s for s in seen if s.groups], lengths, [], len(runs), N_PROMPTS, max(steps for steps, _ in runs))


def learning(step: int) -> float:
    """Fewer and fewer prompts are worth it: two of three at the start, one of sixteen after 700 steps."""
    return max(1 / 16, 2 / 3 * math.exp(-step / 300))


def test_a_longer_run_tells_how_its_beginning_went_and_no_more() -> None:
    short = forecast(config(PILOT), N_PROMPTS, N_EVAL, past_of((40, learning)))
    for others in ([(1000, learning)], [(60, learning), (400, learning), (1000, learning)]):
        told = forecast(config(PILOT), N_PROMPTS, N_EVAL, past_of(*others))
        assert told.rollouts.expected == pytest.approx(short.rollouts.expected, rel=0.05)
        width = (told.rollouts.high - told.rollouts.low) / told.rollouts.expected
        assert width < 0.35, "runs that went alike at the same steps tell much, however long each was"
        assert told.shares["deferred"].high - told.shares["deferred"].low < 0.2
        assert not any("disagree" in words or "after step" in words for words in told.unknown)


def test_runs_of_very_different_lengths_are_compared_at_the_steps_that_they_share() -> None:
    past = past_of((60, learning), (400, learning), (1000, learning))
    told = forecast(config(PILOT, budget={"steps": 1000}), N_PROMPTS, N_EVAL, past)
    assert (told.rollouts.high - told.rollouts.low) / told.rollouts.expected < 0.35
    assert told.saving.high - told.saving.low < 0.1


def test_what_history_cannot_tell_is_said_in_words_and_given_as_bounds() -> None:
    without = forecast(config(PILOT), N_PROMPTS, N_EVAL, NO_HISTORY)
    contradictory = past_of((100, lambda _: 0.9), (100, lambda _: 0.06), (100, lambda _: 0.06))
    hopeless = History([Seen("r", 0, 16, 0, 60)], [], [], 1, 60, 5)
    for past, why in ((contradictory, "disagree by"), (hopeless, "too few to tell")):
        for method in (PILOT, {"name": "dapo", "n": 16}):
            told = forecast(config(method), N_PROMPTS, N_EVAL, past)
            assert told.rollouts.expected is None and told.shares == {} and told.saving is None
            assert any(words.startswith("How many ") and why in words for words in told.unknown)
        told = forecast(config(PILOT), N_PROMPTS, N_EVAL, past)
        assert told.rollouts == without.rollouts
        assert forecast(config(GRPO), N_PROMPTS, N_EVAL, past).rollouts.expected == 40 * 32 * 16, "known all the same"


def test_a_run_of_few_groups_says_nothing_about_how_much_runs_differ() -> None:
    alike = [(200, learning), (200, learning)]
    told = forecast(config(PILOT), N_PROMPTS, N_EVAL, past_of(*alike))
    with_few = forecast(config(PILOT), N_PROMPTS, N_EVAL, past_of(*alike, (2, lambda _: 0.06)))
    assert with_few.rollouts.high == pytest.approx(told.rollouts.high, rel=0.03)


def test_steps_that_no_run_has_reached_are_named() -> None:
    told = forecast(config(PILOT, budget={"steps": 1000}), N_PROMPTS, N_EVAL, past_of((60, learning)))
    assert any("after step 60" in words for words in told.unknown)


def test_paces_that_disagree_are_named() -> None:
    paces = [Pace(str(n), second, 0.002, 0.0005, 0.1) for n, second in enumerate((0.001, 0.001, 0.02))]
    told = forecast(config(PILOT), N_PROMPTS, N_EVAL, past_of((60, learning))._replace(paces=paces))
    assert "sampling a rollout took 0.001 to 0.02 s" in " ".join(told.unknown)
    assert told.gpu_hours.low is not None and 0 < told.gpu_hours.low < (told.gpu_hours.high or 0)


_STEPS = st.integers(1, 60)
_METHODS = st.one_of(
    st.builds(lambda n: {"name": "grpo", "n": n}, st.integers(2, 16)),
    st.builds(
        lambda n, most, keep, rounds: {
            "name": "dapo", "n": n, "gen_prompts": most, "keep_surplus": keep, "max_rounds": rounds
        },
        st.integers(2, 16), st.none() | st.integers(4, 200), st.booleans(), st.integers(1, 10),
    ),
    st.builds(
        lambda pilot, commit, most, bounds, rounds, binding: {
            "name": "pilot_commit", "n_pilot": pilot, "n_commit": commit, "pilot_prompts": most,
            "p_lower": bounds[0], "p_upper": bounds[1], "max_rounds": rounds, "binding": binding,
        },
        st.integers(2, 16), st.integers(1, 32), st.none() | st.integers(4, 200),
        st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 0.95)), st.integers(1, 10), st.booleans(),
    ),
)  # fmt: skip
_BUDGETS = st.fixed_dictionaries(
    {"steps": _STEPS},
    optional={
        "rollouts": st.integers(1, 100_000),
        "tokens": st.integers(1, 10_000_000),
        "wall_clock_s": st.floats(0.01, 10_000),
        "gpu_hours": st.floats(1e-5, 10),
    },
)
_RUNS = st.sampled_from("abcde")
_SECONDS = st.one_of(st.just(0.0), st.floats(1e-6, 10))
_GROUPS = st.integers(1, 32).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
_SEEN = st.builds(
    lambda run, step, group, groups: Seen(run, part_of(step), *group, groups),
    _RUNS, st.integers(1, 2000), _GROUPS, st.integers(1, 5000),
)  # fmt: skip
_LENGTHS = st.builds(
    lambda run, step, rollouts, length: Length(run, part_of(step), rollouts, rollouts * length),
    _RUNS, st.integers(1, 2000), st.integers(1, 10_000), st.integers(1, 3000),
)  # fmt: skip
_HISTORIES = st.builds(
    History,
    st.lists(_SEEN, max_size=12),
    st.lists(_LENGTHS, max_size=8, unique_by=lambda length: length[:2]),
    st.lists(st.builds(Pace, _RUNS, _SECONDS, _SECONDS, _SECONDS, _SECONDS), max_size=5),
    st.integers(1, 5),
    st.integers(1, 5000),
    st.integers(1, 2000),
)


def ranges(told: Any) -> Iterator[Range]:
    if isinstance(told, Range):
        yield told
    elif isinstance(told, BaseModel):
        for name in type(told).model_fields:
            yield from ranges(getattr(told, name))
    elif isinstance(told, list | dict):
        for part in told.values() if isinstance(told, dict) else told:
            yield from ranges(part)


@given(_METHODS, _BUDGETS, st.integers(1, 300), st.integers(0, 200), _HISTORIES)
def test_every_range_holds_what_is_expected(
    method: dict[str, Any], budget: dict[str, Any], n_train: int, n_eval: int, past: History
) -> None:
    told = forecast(config(method, budget=budget), n_train, n_eval, past)
    found = list(ranges(told))
    assert len(found) >= 9
    for one in found:
        assert (one.low is None) == (one.high is None) and (one.low is not None or one.expected is None)
        if one.low is not None and one.high is not None:
            middle = one.low if one.expected is None else one.expected
            assert 0 <= one.low <= middle <= one.high < math.inf, one
    for share in told.shares.values():
        assert share.high is not None and share.high <= 1
    assert not told.shares or sum(s.expected or 0 for s in told.shares.values()) == pytest.approx(1)
    assert told.steps <= budget["steps"]
    training = [told, *told.stages[:-1]]
    for name, parts in (("rollouts", training), ("tokens", training), ("gpu_hours", [told, *told.stages])):
        for part in parts:
            assert (getattr(part, name).high or 0) <= budget.get(name, math.inf), "budgets are hard"
