"""What GRPO, PODS, DAPO and Pilot-Commit would have spent on a log's stream: the real allocators, fed from the log.

The policy's learning curve is taken as logged: step k of a replay is the k-th logged step, whatever the method trained
on before. A prompt answers with the rewards of its logged visit that is nearest to that step. They are dealt like
cards: shuffled, without replacement, and shuffled again when all are out. So a group as large as the logged one is the
logged one, and four pilots are four of its rollouts; drawing with replacement would make groups more alike than they
were.

A replay has its own order of prompts, its own shuffles, and its own pool: as many prompts as the log has, drawn with
replacement (a bootstrap over prompts, whose groups are what varies independently). All methods of a replay share it, so
that ratios are paired.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.allocation import Allocator, Batch, Fate, Group, Plan, Rollouts, prepare
from pipeline.audit.log import Ints, Log
from pipeline.audit.report import AuditSettings, Certainty, Interval, MethodReplay
from pipeline.config import Pods, RunConfig
from pipeline.step import build_allocator

QUANTILES = (0.025, 0.975)
BASE = "GRPO"


def methods(settings: AuditSettings) -> dict[str, tuple[str, RunConfig]]:
    """Name -> what it does in words, and its config. Takes settings with every default filled in.

    Raises pydantic.ValidationError for thresholds and numbers that no run would accept.
    """
    n, keep = settings.n, settings.keep
    pilot_commit = {
        "name": "pilot_commit",
        **settings.model_dump(include={"n_pilot", "n_commit", "p_lower", "p_upper", "p_solve"}),
    }
    thresholds = f"deferred below {settings.p_lower:g}, skipped above {settings.p_upper:g}"
    grpo = {"name": "grpo", "n": n}
    given: dict[str, tuple[str, dict[str, Any]]] = {BASE: (f"{n} rollouts for every prompt", {"method": grpo})}
    if keep:
        selection = {"name": "pods", "keep": keep}
        what = f"as GRPO, of each {n} the {keep} of greatest variance train"
        given["PODS"] = (what, {"method": grpo, "selection": selection})
    given |= {
        "DAPO": (
            f"{n} rollouts, groups of equal rewards and the surplus thrown away, as published",
            {"method": {"name": "dapo", "n": n, "keep_surplus": False}},
        ),
        "DAPO, surplus kept": ("the same, but the surplus waits", {"method": {"name": "dapo", "n": n}}),
        "Pilot-Commit": (
            f"{settings.n_pilot} pilots + {settings.n_commit} commits, {thresholds}, evicted from {settings.p_solve:g}",
            {"method": pilot_commit},
        ),
    }
    nowhere = {"model": {"path": "-"}, "data": {"train": "-", "eval": "-"}}
    update = {"batch_prompts": settings.batch_prompts, "mini_batches": 1}
    return {name: (what, RunConfig(**nowhere, update=update, **own)) for name, (what, own) in given.items()}


class Visits:
    """Which visits each logged prompt has, for all replays."""

    def __init__(self, log: Log) -> None:
        order = np.lexsort((log.step, log.prompt))
        ends = np.cumsum(np.bincount(log.prompt, minlength=len(log.texts)))
        self.log = log
        self.groups = [visits.tolist() for visits in np.split(order, ends[:-1])]
        self.steps = [log.step[visits].tolist() for visits in self.groups]
        self.start = log.start.tolist()
        self.of_rollout = np.repeat(np.arange(len(log.step)), np.diff(log.start))

    def shuffled(self, rng: np.random.Generator) -> Ints:
        """Every visit's rollouts in a random order, the visits in theirs."""
        order: Ints = np.lexsort((rng.random(len(self.of_rollout)), self.of_rollout))
        return order


class Stream:
    """The log as a world that answers plans: of one method in one replay."""

    def __init__(self, visits: Visits, pool: Ints, shuffled: Ints, rng: np.random.Generator) -> None:
        """pool: which logged prompt each prompt of the allocators is. shuffled: as `Visits.shuffled` gives it."""
        log = visits.log
        self._visits, self._pool, self._rng = visits, pool.tolist(), rng
        self._rewards, self._success = log.rewards[shuffled], log.success[shuffled]
        self._tokens = np.zeros(len(shuffled), np.int64) if log.tokens is None else log.tokens[shuffled]
        self._dealt: dict[int, tuple[int, int]] = {}  # prompt of the allocators -> visit, cards dealt of it
        self.away: list[int] = []  # of each request, steps between now and the visit
        self.n_dealt = self.n_again = 0

    def answer(self, plan: Plan, step: int) -> list[Group]:
        """step: the logged one that this is."""
        return [Group(request, self._deal(request.prompt, request.n, step, plan.step)) for request in plan.requests]

    def _deal(self, prompt: int, n: int, step: int, now: int) -> Rollouts:
        logged = self._pool[prompt]
        steps = self._visits.steps[logged]
        after = bisect_left(steps, step)
        nearest = after
        if after == len(steps) or (after and step - steps[after - 1] <= steps[after] - step):
            nearest = after - 1
        visit = self._visits.groups[logged][nearest]
        before, dealt = self._dealt.get(prompt, (visit, 0))
        if before != visit:
            dealt = 0
        first, last = self._visits.start[visit], self._visits.start[visit + 1]
        size = last - first
        self.away.append(abs(steps[nearest] - step))
        self.n_dealt += n
        self.n_again += max(0, n - max(0, size - dealt))
        self._dealt[prompt] = (visit, dealt + n)
        if dealt + n <= size:
            cards = slice(first + dealt, first + dealt + n)
        else:
            rest = np.arange(first + min(dealt, size), last)
            rounds = -(-(n - len(rest)) // size)
            again = [self._rng.permutation(size) + first for _ in range(rounds)]
            cards = np.concatenate((rest, *again))[:n]
        rewards, success, tokens = self._rewards[cards], self._success[cards], self._tokens[cards]
        return Rollouts(rewards, success, tokens, np.full(n, now), [None] * n)


@dataclass
class Spend:
    """One method's account in one replay. signal: a trained group counts 4p(1 - p) of what trained of it."""

    rollouts: int = 0
    mixed: int = 0
    signal: float = 0.0
    short_by: int = 0
    fates: dict[Fate, int] = field(default_factory=dict)

    def add(self, batch: Batch) -> None:
        for fate, (rollouts, _) in batch.fates.items():
            self.fates[fate] = self.fates.get(fate, 0) + rollouts
            self.rollouts += rollouts
        self.short_by += batch.short_by
        for group in batch.groups:
            rewards = group.rollouts.rewards
            self.mixed += bool((rewards != rewards[0]).any())
            p = float(group.rollouts.success.mean())
            self.signal += 4 * p * (1 - p)


def replay(n_prompts: int, steps: Ints, config: RunConfig, stream: Stream) -> Spend:
    """All steps of the log with one method."""
    spend = Spend()
    allocator = build_allocator(config, n_prompts)
    for step in steps.tolist():
        if allocator.pool_is_solved:
            break
        batch = _step(allocator, stream, step)
        if isinstance(config.selection, Pods):  # what else `prepare` does, advantages, is not looked at
            batch = prepare(batch, config.seed, True, **config.selection.model_dump(exclude={"name"}))
        spend.add(batch)
    return spend


def _step(allocator: Allocator, stream: Stream, step: int) -> Batch:
    while True:
        batch = allocator.observe(stream.answer(allocator.plan(), step))
        if batch is not None:
            return batch


def replays(
    log: Log, settings: AuditSettings, tell: Callable[[int, int], None]
) -> tuple[list[MethodReplay], Certainty]:
    """Every method, settings.replays times. Takes settings with every default filled in."""
    steps = np.unique(log.step)
    known = methods(settings)
    spends: dict[str, list[Spend]] = {name: [] for name in known}
    away: list[int] = []
    dealt = again = 0
    visits = Visits(log)
    wanted = settings.replays or 1
    for number in range(wanted):
        rng = np.random.default_rng([settings.seed, number])
        pool, shuffled = rng.integers(0, len(log.texts), len(log.texts)), visits.shuffled(rng)
        for name, (_, config) in known.items():
            stream = Stream(visits, pool, shuffled, np.random.default_rng([settings.seed, number, 1]))
            config = config.model_copy(update={"seed": (settings.seed + number) % 2**31})
            spends[name].append(replay(len(log.texts), steps, config, stream))
            if name == "Pilot-Commit":
                away += stream.away
                dealt, again = dealt + stream.n_dealt, again + stream.n_again
        tell(number + 1, wanted)
    told = [_told(name, what, spends[name], spends[BASE]) for name, (what, _) in known.items()]
    of_prompt = np.bincount(log.prompt, weights=np.diff(log.start), minlength=len(log.texts))
    low, middle, high = np.quantile(of_prompt, (0.1, 0.5, 0.9)).round().astype(int).tolist()
    certainty = Certainty(
        replays=wanted,
        visits_per_prompt=len(log.step) / len(log.texts),
        rollouts_per_prompt=(low, middle, high),
        steps_away=float(np.median(away)),
        drawn_again=again / max(1, dealt),
    )
    return told, certainty


def _told(name: str, what: str, mine: list[Spend], base: list[Spend]) -> MethodReplay:
    def per(spends: list[Spend], of: str) -> list[float | None]:
        return [s.rollouts / getattr(s, of) if getattr(s, of) else None for s in spends]

    def saved(of: str) -> Interval | None:
        pairs = zip(per(mine, of), per(base, of), strict=True)
        return _interval([None if m is None or b is None else 1 - m / b for m, b in pairs])

    fates: Mapping[Fate, float] = {
        fate: float(np.mean([s.fates.get(fate, 0) / max(1, s.rollouts) for s in mine])) for fate in Fate
    }
    return MethodReplay(
        name=name,
        what=what,
        rollouts=_sure([s.rollouts for s in mine]),
        per_mixed=_interval(per(mine, "mixed")),
        per_signal=_interval(per(mine, "signal")),
        saved=None if name == BASE else saved("mixed"),
        saved_signal=None if name == BASE else saved("signal"),
        mixed_groups=_sure([s.mixed for s in mine]),
        fates={fate.value: share for fate, share in fates.items() if share},
        short_by=_sure([s.short_by for s in mine]),
    )


def _interval(values: list[float | None]) -> Interval | None:
    """None when some replay has no value."""
    return None if None in values else _sure([v for v in values if v is not None])


def _sure(values: list[float] | list[int]) -> Interval:
    low, high = np.quantile(values, QUANTILES)
    return Interval(median=float(np.median(values)), low=float(low), high=float(high))
