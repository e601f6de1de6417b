"""What allocation promises, over random worlds, and the paper's rules one by one."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.allocation import Allocator, Bucket, Dapo, Fate, Group, Grpo, Mark, PilotCommit, Plan, Stage
from tests.pipeline.allocation.stream import World, one_step, rollouts, told


def pilot_commit(n_prompts: int, **changes: Any) -> PilotCommit:
    defaults: dict[str, Any] = {
        "batch_prompts": 4, "seed": 0, "n_pilot": 8, "n_commit": 24, "pilot_prompts": None, "p_lower": 0.125,
        "p_upper": 0.75, "p_solve": 1.0, "max_age": 4, "commit_order": "max_variance", "binding": True, "max_rounds": 8,
    }  # fmt: skip
    return PilotCommit(n_prompts=n_prompts, **(defaults | changes))


def grpo(n_prompts: int, **changes: Any) -> Grpo:
    return Grpo(n_prompts=n_prompts, **({"batch_prompts": 4, "seed": 0, "n": 4} | changes))


def dapo(n_prompts: int, **changes: Any) -> Dapo:
    defaults: dict[str, Any] = {
        "batch_prompts": 4, "seed": 0, "n": 8, "gen_prompts": None, "keep_surplus": True, "max_age": 4,
        "max_rounds": 10,
    }  # fmt: skip
    return Dapo(n_prompts=n_prompts, **(defaults | changes))


def answer(plan: Plan, successes: dict[int, int]) -> list[Group]:
    """Groups whose first `successes[prompt]` rollouts are right, for exact success rates."""
    return [Group(r, rollouts([float(i < successes[r.prompt]) for i in range(r.n)], plan.step)) for r in plan.requests]


RATES = st.lists(st.sampled_from([0.0, 0.05, 0.3, 0.5, 0.7, 0.9, 1.0]), min_size=1, max_size=40)


METHODS = st.one_of(
    st.fixed_dictionaries(
        {
            "method": st.just(pilot_commit),
            "pilot_prompts": st.none() | st.integers(1, 30),
            "max_age": st.integers(0, 3),
            "commit_order": st.sampled_from(["random", "max_variance", "newest", "oldest"]),
            "binding": st.booleans(),
            "max_rounds": st.integers(1, 5),
            "retest_rate": st.sampled_from([0.0, 0.0, 0.3, 1.0]),
        }
    ),
    st.fixed_dictionaries(
        {
            "method": st.just(dapo),
            "gen_prompts": st.none() | st.integers(1, 30),
            "keep_surplus": st.booleans(),
            "max_age": st.integers(0, 3),
            "max_rounds": st.integers(1, 5),
        }
    ),
    st.fixed_dictionaries({"method": st.just(grpo)}),
)


# Before which step, which prompts (modulo the pool's size), and what is wished for them.
MARKS = st.lists(
    st.tuples(st.integers(1, 8), st.sets(st.integers(0, 39), min_size=1, max_size=6), st.sampled_from(Mark)), max_size=8
)


@settings(max_examples=300, deadline=None)
@given(
    rates=RATES,
    fail=st.sampled_from([0.0, 0.1, 1.0]),
    batch=st.integers(1, 12),
    method=METHODS,
    seed=st.integers(0, 5),
    limit=st.none() | st.integers(0, 600),
    marks=MARKS,
)
def test_invariants_over_random_worlds(rates, fail, batch, method, seed, limit, marks):
    """Fates add up, buckets partition the pool, nothing trains twice, ages hold, evicted prompts stay out, and marks
    are honoured whenever they come."""
    build = method["method"]
    options = {k: v for k, v in method.items() if k != "method"}

    def make() -> Allocator:
        return build(len(rates), batch_prompts=batch, seed=seed, **options)

    allocator, world = make(), World(rates, fail, seed)
    trained: set[str] = set()
    evicted: set[int] = set()
    pinned: set[int] = set()
    excluded: set[int] = set()
    retests: dict[int, None] = {}
    open_rollouts = open_tokens = 0
    for step in range(1, 9):
        for at, some, mark in marks:
            prompts = sorted({p % len(rates) for p in some})
            if at != step:
                continue
            allocator.mark(prompts, mark)
            allocator.mark(prompts, mark)  # twice is once
            if mark is Mark.RETEST:
                retests |= dict.fromkeys(p for p in prompts if p not in excluded)
                continue
            pinned = pinned | {*prompts} if mark is Mark.PIN else pinned - {*prompts}
            excluded = excluded | {*prompts} if mark is Mark.EXCLUDE else excluded - {*prompts}
            retests = {p: None for p in retests if p not in prompts}
        restored = make()
        restored.load_state_dict(copy.deepcopy(allocator.state_dict()))
        assert restored.bucket_counts() == allocator.bucket_counts()
        batch_out, plans = one_step(allocator, world, limit)
        again, plans_again = one_step(restored, world, limit)
        assert (plans, told(batch_out)) == (plans_again, told(again)), "a restored allocator must decide the same"
        allocator = restored if step % 2 else allocator

        assert batch_out.step == step and len(plans) == batch_out.rounds <= options.get("max_rounds", 1) + 1
        sampled = sum(p.n_rollouts for p in plans)
        assert limit is None or sampled <= limit
        assert sum(n for n, _ in batch_out.fates.values()) == sampled
        assert sum(v.n for v in batch_out.visits) == sampled
        assert sum(t for _, t in batch_out.fates.values()) == sum(v.tokens for v in batch_out.visits)
        n, t = batch_out.fates.get(Fate.BUFFERED, (0, 0))
        open_rollouts, open_tokens = open_rollouts + n, open_tokens + t
        buffer = getattr(allocator, "buffer", {})
        assert open_rollouts == sum(len(b) for b in buffer.values()) >= 0
        assert open_tokens == sum(int(b.n_tokens.sum()) for b in buffer.values())
        assert batch_out.fates.get(Fate.TRAINED, (0, 0))[0] == sum(len(g.rollouts) for g in batch_out.groups)

        counts = allocator.bucket_counts()
        assert sum(counts.values()) == len(rates) and min(counts.values()) >= 0
        assert counts[Bucket.READY] == len(buffer) == batch_out.buffer_size
        tally = Counter(allocator.pool.bucket(p) for p in range(len(rates)))
        assert tally == Counter({b: c for b, c in counts.items() if c})
        last = {v.prompt: v.bucket for v in batch_out.visits} | {
            m.prompt: m.bucket for m in batch_out.moves if m.prompt not in {v.prompt for v in batch_out.visits}
        }
        assert all(allocator.pool.bucket(p) is bucket for p, bucket in last.items()), "what is told is where they stand"

        planned = Counter((r.prompt, r.stage) for p in plans for r in p.requests)
        assert max(planned.values(), default=1) == 1, "a prompt has one visit per step and stage"
        first = Stage.PILOT if build is pilot_commit else Stage.COMMIT
        asked = [r.prompt for p in plans for r in p.requests if r.stage is first]
        assert not excluded & {p for p, _ in planned} and not excluded & {g.prompt for g in batch_out.groups}
        assert not excluded & {*buffer}, "what waits of an excluded prompt is dropped"
        assert asked[: len(retests)] == [*retests][: len(asked)], "what is to be tested again comes first"
        if limit is None:
            most = {pilot_commit: "pilot_prompts", dapo: "gen_prompts", grpo: "batch_prompts"}[build]
            assert len(asked) >= min(len(retests), getattr(allocator, most)), "they wait for nothing"
        if not options.get("retest_rate"):
            assert not {*asked} & evicted - pinned - {*retests}
        for prompt in asked:
            retests.pop(prompt, None)
        assert not pinned & {v.prompt for v in batch_out.visits if v.bucket is Bucket.EVICTED}
        evicted = {p for p in range(len(rates)) if allocator.pool.bucket(p) is Bucket.EVICTED}
        assert len({g.prompt for g in batch_out.groups}) == len(batch_out.groups) <= batch
        assert batch_out.short_by == batch - len(batch_out.groups)
        assert all(0 <= age <= options.get("max_age", 0) for age in batch_out.ages)
        names = [name for g in batch_out.groups for name in g.rollouts.data]
        assert len(names) == len(set(names)) and not trained & set(names), "no rollout trains twice"
        assert not any(g.rollouts.failed.any() for g in batch_out.groups)
        trained |= set(names)


@settings(max_examples=60, deadline=None)
@given(rates=RATES, batch=st.integers(1, 50), seed=st.integers(0, 3))
def test_grpo_is_uniform(rates, batch, seed):
    allocator, world = grpo(len(rates), batch_prompts=batch, seed=seed), World(rates)
    visited: Counter[int] = Counter()
    for _ in range(6):
        _, (plan,) = one_step(allocator, world)
        assert len({r.prompt for r in plan.requests}) == len(plan.requests) == min(batch, len(rates))
        visited.update(r.prompt for r in plan.requests)
    if batch <= len(rates):
        assert max(visited.values()) - min(visited[p] for p in range(len(rates))) <= 1, "no turn is lost or doubled"


def test_no_prompt_loses_its_turn_at_an_epochs_end():
    allocator, visits = grpo(5, batch_prompts=3, seed=1), Counter()
    for _ in range(50):
        batch, _ = one_step(allocator, World([0.5] * 5))
        visits.update(v.prompt for v in batch.visits)
    assert set(visits.values()) == {30}


def test_the_papers_thresholds_and_the_binding():
    """p >= p_solve evicts, p > p_upper skips, p < p_lower defers, the ends of the band are kept."""
    allocator = pilot_commit(8, batch_prompts=2, pilot_prompts=8)
    successes = {0: 8, 1: 7, 2: 6, 3: 4, 4: 1, 5: 0, 6: 0, 7: 8}
    first = allocator.plan()
    assert {r.stage for r in first.requests} == {Stage.PILOT} and len(first.requests) == 8
    assert allocator.observe(answer(first, successes)) is None
    buckets = {p: allocator.pool.bucket(p) for p in range(8)}
    assert buckets == {
        0: Bucket.EVICTED, 7: Bucket.EVICTED, 1: Bucket.SKIPPED, 2: Bucket.READY, 3: Bucket.READY, 4: Bucket.READY,
        5: Bucket.DEFERRED, 6: Bucket.DEFERRED,
    }  # fmt: skip
    second = allocator.plan()
    commits = [r.prompt for r in second.requests if r.stage is Stage.COMMIT]
    assert commits[0] == 3, "variance is greatest at p = 1/2"
    batch = allocator.observe(answer(second, dict.fromkeys(range(8), 12)))
    assert batch is not None and [len(g.rollouts) for g in batch.groups] == [32, 32]
    assert batch.fates[Fate.TRAINED][0] == 64 and batch.fates[Fate.BUFFERED][0] == 8
    assert batch.fates[Fate.PILOT_EVICTED][0] == batch.fates[Fate.PILOT_DEFERRED][0] == 16
    # Bound: while prompts are committed, the same pass pilots those that the next step needs.
    third = allocator.plan()
    assert {r.stage for r in third.requests} == {Stage.PILOT, Stage.COMMIT}


def test_without_binding_a_step_pilots_only_for_itself():
    allocator, world = pilot_commit(500, binding=False), World([0.5] * 500)
    for _ in range(3):
        _, plans = one_step(allocator, world)
        assert all(len({r.stage for r in p.requests}) == 1 for p in plans[:2])


def test_a_later_round_pilots_only_what_is_missing():
    """With 12 piloted and 3 of 4 found, a further round pilots a quarter set, not a whole one."""
    allocator = pilot_commit(100, binding=False)
    plan = allocator.plan()
    keep = {r.prompt: 4 if i < 3 else 0 for i, r in enumerate(plan.requests)}
    assert allocator.observe(answer(plan, keep)) is None
    second = allocator.plan()
    assert Counter(r.stage for r in second.requests) == {Stage.COMMIT: 3, Stage.PILOT: 3}


@pytest.mark.parametrize("max_age", [0, 1, 3])
def test_staleness_is_exact(max_age):
    """A pilot of step s still trains in step s + max_age, is stale one step later, and then piloted anew at once."""
    allocator = pilot_commit(400, batch_prompts=2, pilot_prompts=50, max_age=max_age, commit_order="oldest")
    world, ages, stale = World([0.5] * 400), set(), 0
    for _ in range(12):
        batch, plans = one_step(allocator, world)
        ages |= set(batch.ages)
        stale += batch.fates.get(Fate.STALE, (0, 0))[0]
        assert {m.bucket for m in batch.moves} <= {Bucket.UNSEEN}
        again = {r.prompt for p in plans for r in p.requests if r.stage is Stage.PILOT}
        assert {m.prompt for m in batch.moves} <= again
    assert max(ages) == max_age and stale


def test_commit_orders():
    def order(commit_order: str) -> list[int]:
        allocator = pilot_commit(6, batch_prompts=3, pilot_prompts=3, commit_order=commit_order, binding=False)
        for p, successes in ((5, 4), (4, 1), (3, 4), (2, 2)):  # piloted in this order
            allocator.buffer[p] = rollouts([float(i < successes) for i in range(8)])
            allocator.pool.move([p], Bucket.READY)
        return [r.prompt for r in allocator.plan().requests]

    assert order("oldest") == [5, 4, 3]
    assert order("newest") == [2, 3, 4]
    assert order("max_variance") == [3, 5, 2], "newest first among equals"
    assert sorted(order("random"))[0] >= 2 and order("random") == order("random")


def test_a_failed_reward_is_no_zero_and_moves_nobody():
    allocator = pilot_commit(6, batch_prompts=2, pilot_prompts=6, max_rounds=2)
    batch, _ = one_step(allocator, World([0.5] * 6, fail=1.0))
    assert allocator.bucket_counts()[Bucket.UNSEEN] == 6
    assert set(batch.fates) == {Fate.FAILED} and batch.short_by == 2
    assert all(v.success_rate is None and v.n_failed == v.n for v in batch.visits)
    # One failed of eight: the rate is over the seven others.
    allocator = pilot_commit(1, batch_prompts=1)
    plan = allocator.plan()
    allocator.observe([Group(plan.requests[0], rollouts([1.0] * 7 + [math.nan]))])
    assert allocator.pool.bucket(0) is Bucket.EVICTED


def test_a_deferred_prompt_comes_back_in_the_next_epoch_and_an_evicted_one_never():
    allocator, world = pilot_commit(12, batch_prompts=4, pilot_prompts=6, max_rounds=1), World([0.0] * 6 + [1.0] * 6)
    seen: dict[int, list[int]] = {}
    for _ in range(8):
        batch, _ = one_step(allocator, world)
        for visit in batch.visits:
            seen.setdefault(visit.prompt, []).append(batch.step)
            if visit.bucket is Bucket.DEFERRED:
                assert allocator.epoch <= allocator.pool.due_epoch(visit.prompt) <= allocator.epoch + 1
    assert all(len(seen[p]) == 1 for p in range(6, 12))
    assert all(len(seen[p]) >= 4 for p in range(6)), "too hard ones are tested again every epoch"
    assert allocator.epoch > 3 and not allocator.pool_is_solved


def test_a_solved_pool_says_so_and_ends_no_run_by_an_error():
    allocator, world = pilot_commit(3), World([1.0] * 3)
    batch, _ = one_step(allocator, world)
    assert batch.groups == () and batch.short_by == 4 and allocator.pool_is_solved
    batch, plans = one_step(allocator, world)
    assert plans[0].requests == () and batch.fates == {}


def test_a_budget_is_never_passed():
    for limit in (0, 10, 95, 96, 191, 192, 500):
        allocator = pilot_commit(100)
        _, plans = one_step(allocator, World([0.5] * 100), limit)
        assert sum(p.n_rollouts for p in plans) <= limit
    assert pilot_commit(100).pass_rollouts == 4 * 24 + 12 * 8
    assert pilot_commit(2).pass_rollouts == 2 * 24 + 2 * 8


def test_state_is_small_and_refused_under_other_settings():
    allocator = pilot_commit(5000, batch_prompts=32)
    for _ in range(5):
        one_step(allocator, World([0.0] * 5000))
    state = allocator.state_dict()
    touched = len(state["pool"]["touched"])
    size = sum(a.nbytes for a in state["pool"].values() if isinstance(a, np.ndarray))
    assert touched > 900 and size / touched <= 12
    json.dumps({k: v for k, v in state["pool"].items() if not isinstance(v, np.ndarray)})
    with pytest.raises(ValueError, match=r"n_pilot was 8, is now 4.*p_upper was 0.75, is now 0.9"):
        pilot_commit(5000, batch_prompts=32, n_pilot=4, p_upper=0.9).load_state_dict(state)
    changed = pilot_commit(5000, batch_prompts=32, commit_order="newest", max_rounds=2, retest_rate=0.1)
    changed.load_state_dict(state)  # harmless: it decides what is sampled from now on
    assert changed.bucket_counts() == allocator.bucket_counts()
    allocator.plan()
    with pytest.raises(RuntimeError, match="between training steps"):
        allocator.state_dict()


def test_an_evicted_prompt_is_looked_at_again_only_when_asked_for():
    for rate in (0.0, 0.5):
        allocator = pilot_commit(40, pilot_prompts=8, retest_rate=rate, max_rounds=1)
        solved = World([1.0] * 20 + [0.5] * 20)
        for _ in range(6):
            one_step(allocator, solved)
        evicted = {p for p in range(40) if allocator.pool.bucket(p) is Bucket.EVICTED}
        forgotten = World([0.0] * 40)  # the policy got worse
        for _ in range(12):
            one_step(allocator, forgotten)
        came_back = {p for p in evicted if allocator.pool.bucket(p) is not Bucket.EVICTED}
        assert evicted and bool(came_back) == bool(rate)


def test_dapo_keeps_its_surplus_or_discards_it():
    """With 12 of 12 groups mixed and a batch of 4, eight wait for later steps or are thrown away."""
    kept, discarded = dapo(400), dapo(400, keep_surplus=False)
    world = World([0.5] * 400)
    (first, _), (other, _) = one_step(kept, world), one_step(discarded, world)
    assert first.fates[Fate.BUFFERED][0] == 64 and first.buffer_size == 8
    assert other.fates == {Fate.TRAINED: other.fates[Fate.TRAINED], Fate.DISCARDED: other.fates[Fate.DISCARDED]}
    assert other.fates[Fate.DISCARDED][0] == 64 and discarded.bucket_counts()[Bucket.UNSEEN] == 396
    second, plans = one_step(kept, world)
    assert plans[0].requests == () and second.ages == [1] * 4 and {m.bucket for m in second.moves} == {Bucket.COMMITTED}
    again, plans = one_step(discarded, world)
    assert len(plans[0].requests) == 12 and again.ages == [0] * 4


def test_dapo_refills_and_then_trains_a_smaller_batch():
    half = World([0.5 if i % 3 == 0 else 1.0 if i % 3 == 1 else 0.0 for i in range(300)])
    batch, plans = one_step(dapo(300, gen_prompts=4), half)
    assert len(batch.groups) == 4 and len(plans) > 1
    assert [len(p.requests) for p in plans] == sorted((len(p.requests) for p in plans), reverse=True)
    assert {v.bucket for v in batch.visits} <= {Bucket.COMMITTED, Bucket.SKIPPED, Bucket.DEFERRED, Bucket.READY}
    batch, plans = one_step(dapo(300, max_rounds=3), World([0.0] * 300))
    assert batch.groups == () and batch.short_by == 4 and len(plans) == 4 and set(batch.fates) == {Fate.DISCARDED}


def test_filtering_compares_rewards_and_needs_no_threshold():
    """0.1 + 0.2 style rewards: equal ones are equal however their variance rounds, unequal ones by 1e-12 are not."""
    allocator = dapo(2, batch_prompts=2)
    plan = allocator.plan()
    rewards = {plan.requests[0].prompt: [0.1] * 8, plan.requests[1].prompt: [0.1] * 7 + [0.1 + 1e-12]}
    allocator.observe([Group(r, rollouts(rewards[r.prompt])) for r in plan.requests])
    batch = allocator.observe([])
    assert batch is not None and [g.prompt for g in batch.groups] == [plan.requests[1].prompt]
