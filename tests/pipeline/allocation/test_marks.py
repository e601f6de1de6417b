"""What a person may wish for a prompt: pinned, excluded, tested again."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.allocation import Allocator, Bucket, Fate, Mark, Stage
from tests.pipeline.allocation.stream import World, one_step, told
from tests.pipeline.allocation.test_methods import dapo, grpo, pilot_commit

Build = Callable[..., Any]
EVERY = pytest.mark.parametrize("build", [pilot_commit, dapo, grpo])


def asked(plans: list[Any]) -> list[int]:
    """The prompts handed out, in order; not those that are committed after their pilots."""
    first = Stage.PILOT if any(r.stage is Stage.PILOT for p in plans for r in p.requests) else Stage.COMMIT
    return [r.prompt for p in plans for r in p.requests if r.stage is first]


@EVERY
def test_an_excluded_prompt_is_never_handed_out_until_it_is_included(build: Build) -> None:
    allocator: Allocator = build(12, batch_prompts=3)
    allocator.mark([0, 5], Mark.EXCLUDE)
    seen: set[int] = set()
    for _ in range(12):
        seen.update(asked(one_step(allocator, World([0.5] * 12))[1]))
    assert seen == set(range(12)) - {0, 5}
    allocator.mark([5], Mark.CLEAR)
    for _ in range(12):
        seen.update(asked(one_step(allocator, World([0.5] * 12))[1]))
    assert seen == set(range(12)) - {0}


@pytest.mark.parametrize("build", [pilot_commit, dapo])
@pytest.mark.parametrize("mark", [Mark.EXCLUDE, Mark.RETEST])
def test_what_waits_of_a_marked_prompt_is_discarded_and_booked(build: Build, mark: Mark) -> None:
    allocator = build(100)
    one_step(allocator, World([0.5] * 100))
    waiting = list(allocator.buffer)
    n = len(allocator.buffer[waiting[0]])
    allocator.mark(waiting[:1], mark)
    restored = build(100)
    restored.load_state_dict(copy.deepcopy(allocator.state_dict()))
    batch, plans = one_step(restored, World([0.5] * 100))
    assert batch.fates[Fate.DISCARDED][0] == n and waiting[0] in {m.prompt for m in batch.moves}
    assert (asked(plans)[:1] == waiting[:1]) == (mark is Mark.RETEST)
    if mark is Mark.EXCLUDE:
        assert restored.pool.bucket(waiting[0]) is Bucket.UNSEEN


def test_a_pinned_prompt_comes_first_in_every_epoch_and_is_skipped_not_evicted() -> None:
    allocator, world = pilot_commit(40, pilot_prompts=8, max_rounds=1), World([1.0] * 4 + [0.0] * 36)
    one_step(allocator, world)
    allocator.mark([2, 30], Mark.PIN)
    first_of_epoch: dict[int, list[int]] = {}
    for step in range(20):
        before = allocator.epoch
        batch, plans = one_step(allocator, world)
        if step == 0:
            assert asked(plans)[:2] == [2, 30], "from the next step on"
        if allocator.epoch > before:
            first_of_epoch[allocator.epoch] = asked(plans)
        assert {v.bucket for v in batch.visits if v.prompt == 2} <= {Bucket.SKIPPED}
        assert all(v.n == 8 for v in batch.visits)
    assert len(first_of_epoch) >= 3
    for found in first_of_epoch.values():
        at = found.index(2)
        assert found[at : at + 2] == [2, 30], "the ones of the new epoch begin with them"
    assert allocator.pool.bucket(2) is Bucket.SKIPPED and allocator.pool.bucket(1) is Bucket.EVICTED
    solved = [Fate.PILOT_SKIPPED, Fate.PILOT_EVICTED]
    batch, _ = one_step(one_pinned := pilot_commit(2, pilot_prompts=2, max_rounds=1), World([1.0] * 2))
    assert [batch.fates.get(fate) for fate in solved] == [None, batch.fates[Fate.PILOT_EVICTED]]
    assert one_pinned.pool_is_solved
    one_pinned.mark([1], Mark.PIN)
    assert not one_pinned.pool_is_solved, "an evicted prompt comes back when it is pinned"
    for _ in range(3):
        batch, plans = one_step(one_pinned, World([1.0] * 2))
        assert (
            asked(plans) == [1]
            and batch.fates[Fate.PILOT_SKIPPED][0] == 8
            and set(batch.fates) & {*solved[1:]} == set()
        )
    one_pinned.mark([1], Mark.CLEAR)
    one_step(one_pinned, World([1.0] * 2))
    assert one_pinned.pool_is_solved


def test_a_re_test_is_once_and_whatever_the_bucket() -> None:
    world = World([1.0] * 4 + [0.0] * 4 + [0.5] * 32)
    allocator = pilot_commit(40, pilot_prompts=40, max_rounds=1)
    one_step(allocator, world)
    assert allocator.epoch == 1
    evicted, deferred = 3, 4
    assert allocator.pool.bucket(evicted) is Bucket.EVICTED and allocator.pool.due_epoch(deferred) == 2
    ready = next(iter(allocator.buffer))
    wished = [ready, deferred, evicted]
    assert len(allocator.buffer) >= 2 * allocator.batch_prompts, "no pilots are needed"
    allocator.mark(wished, Mark.RETEST)
    batch, plans = one_step(allocator, world)
    assert asked(plans) == wished and allocator.epoch == 1
    assert [v.bucket for v in batch.visits if v.prompt == evicted] == [Bucket.EVICTED], "judged as usual"
    for _ in range(3):
        _, plans = one_step(allocator, world)
        assert evicted not in asked(plans)


def test_a_re_test_is_taken_back_by_another_mark_and_does_nothing_to_an_excluded_prompt() -> None:
    allocator = pilot_commit(40, pilot_prompts=4, max_rounds=1)
    for mark in (Mark.CLEAR, Mark.EXCLUDE):
        allocator.mark([7], Mark.RETEST)
        allocator.mark([7], mark)
        assert allocator.pool.n_retests == 0
    allocator.mark([7], Mark.RETEST)
    assert allocator.pool.n_retests == 0
    allocator.mark([7], Mark.PIN)
    allocator.mark([7], Mark.RETEST)
    _, plans = one_step(allocator, World([0.0] * 40))
    assert asked(plans)[0] == 7 and asked(plans).count(7) == 1
    _, plans = one_step(allocator, World([0.0] * 40))
    assert 7 not in asked(plans), "it had its turn"
    assert allocator.pool.pinned(np.array([7]))[0], "a re-test leaves a pin as it is"


@EVERY
def test_a_pool_that_is_all_excluded_has_nothing_left(build: Build) -> None:
    allocator = build(6, batch_prompts=2)
    allocator.mark(range(6), Mark.EXCLUDE)
    assert allocator.pool_is_solved
    batch, plans = one_step(allocator, World([0.5] * 6))
    assert asked(plans) == [] and batch.short_by == 2
    allocator.mark([3], Mark.CLEAR)
    assert not allocator.pool_is_solved
    assert asked(one_step(allocator, World([0.5] * 6))[1]) == [3]


@EVERY
def test_states_saved_before_there_were_marks_still_load(build: Build) -> None:
    allocator, world = build(30), World([0.5] * 30)
    one_step(allocator, world)
    state = copy.deepcopy(allocator.state_dict())
    for name in ("retests", "pinned", "excluded"):
        del state["pool"][name]
    old = build(30)
    old.mark([1], Mark.PIN)
    old.mark([2], Mark.EXCLUDE)
    old.load_state_dict(state)
    for _ in range(4):
        (a, p), (b, q) = one_step(allocator, world), one_step(old, world)
        assert (told(a), p) == (told(b), q)
