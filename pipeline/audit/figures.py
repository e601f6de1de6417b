"""What a log says by itself: zero-variance groups, success rates, the difficulty of its prompts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.audit.log import Floats, Ints, Log
from pipeline.audit.report import AtSteps, AuditSettings, BucketShare, Cell, DeadPrompt

MOST_POINTS = 60
SHOWN_DEAD = 10
P_CELLS = 20


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups in numbers, all [G], without failed rollouts. success_rate, variance: NaN where all have failed."""

    step: Ints
    prompt: Ints
    n: Ints
    n_failed: Ints
    success_rate: Floats
    variance: Floats
    mixed: npt.NDArray[np.bool_]
    tokens: Ints | None


def groups_of(log: Log) -> Groups:
    start = log.start[:-1]
    size = np.diff(log.start)
    failed = np.isnan(log.rewards)
    n = size - np.add.reduceat(failed.astype(np.int64), start)
    count = np.where(n > 0, n, np.nan)
    mean = np.add.reduceat(np.where(failed, 0.0, log.rewards), start) / count
    centred = np.where(failed, 0.0, log.rewards - np.repeat(mean, size))
    # Equal rewards are recognised by comparing them: the variance of equal ones may be a rounding error.
    highest = np.maximum.reduceat(np.where(failed, -np.inf, log.rewards), start)
    lowest = np.minimum.reduceat(np.where(failed, np.inf, log.rewards), start)
    return Groups(
        step=log.step,
        prompt=log.prompt,
        n=n,
        n_failed=size - n,
        success_rate=np.add.reduceat(np.where(failed, 0.0, log.success), start) / count,
        variance=np.add.reduceat(centred * centred, start) / count,
        mixed=highest > lowest,
        tokens=None if log.tokens is None else np.add.reduceat(log.tokens, start),
    )


def over_steps(groups: Groups) -> list[AtSteps]:
    """Every step, or `MOST_POINTS` equal parts of them. Steps without a reward are left out."""
    known = groups.n > 0
    steps = np.unique(groups.step[known])
    parts = np.array_split(steps, min(MOST_POINTS, len(steps)))
    found = []
    for part in parts:
        at = np.flatnonzero(known & (groups.step >= part[0]) & (groups.step <= part[-1]))
        found.append(
            AtSteps(
                first_step=int(part[0]),
                last_step=int(part[-1]),
                rollouts=int(groups.n[at].sum()),
                **shares(groups, at),
            )
        )
    return found


def shares(groups: Groups, at: Ints) -> dict[str, float]:
    """Over the groups `at` (indices, each with a reward): the shares that AtSteps and Report have in common."""
    n, p, equal = groups.n[at], groups.success_rate[at], ~groups.mixed[at]
    total = float(n.sum())
    return {
        "all_right": float(n[equal & (p >= 0.5)].sum()) / total,
        "all_wrong": float(n[equal & (p < 0.5)].sum()) / total,
        "success_rate": float((n * p).sum()) / total,
        "reward_variance": float(groups.variance[at].mean()),
    }


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts in numbers, all [P]; those without any reward have n = 0."""

    visits: Ints
    n: Ints
    success_rate: Floats
    ever_mixed: npt.NDArray[np.bool_]
    tokens: Ints | None


def prompts_of(groups: Groups, n_prompts: int) -> Prompts:
    def total(values: npt.NDArray[np.generic]) -> Floats:
        return np.bincount(groups.prompt, weights=values, minlength=n_prompts).astype(np.float64)

    n = total(groups.n)
    right = total(np.where(groups.n > 0, groups.n * np.nan_to_num(groups.success_rate), 0.0))
    return Prompts(
        visits=total(groups.n > 0).astype(np.int64),
        n=n.astype(np.int64),
        success_rate=right / np.where(n > 0, n, np.nan),
        ever_mixed=total(groups.mixed) > 0,
        tokens=None if groups.tokens is None else total(groups.tokens).astype(np.int64),
    )


def difficulty_map(prompts: Prompts) -> list[Cell]:
    """Prompts by success rate, in twentieths, and visits, in powers of two; empty cells are left out."""
    seen = prompts.n > 0
    column = np.minimum(P_CELLS - 1, (prompts.success_rate[seen] * P_CELLS + 1e-9).astype(np.int64))
    row = np.floor(np.log2(prompts.visits[seen])).astype(np.int64)
    cells, counts = np.unique(np.stack((row, column)), axis=1, return_counts=True)
    return [
        Cell(
            p_from=c / P_CELLS, p_to=(c + 1) / P_CELLS, visits_from=2**r, visits_to=2 ** (r + 1) - 1, prompts=int(count)
        )
        for r, c, count in zip(*cells.tolist(), counts.tolist(), strict=True)
    ]


def bucket_shares(prompts: Prompts, settings: AuditSettings) -> list[BucketShare]:
    p = prompts.success_rate  # NaN, for which no comparison holds, where no reward is known
    solved, hard = p >= settings.p_solve, p < settings.p_lower
    easy = (p > settings.p_upper) & ~solved
    ready = (p >= settings.p_lower) & (p <= settings.p_upper) & ~solved
    buckets = (("deferred", hard), ("ready", ready), ("skipped", easy), ("evicted", solved))
    return [
        BucketShare(bucket=name, prompts=int(which.sum()), rollouts=int(prompts.n[which].sum()))
        for name, which in buckets
    ]


def dead_prompts(prompts: Prompts, texts: list[str]) -> tuple[int, int, list[DeadPrompt]]:
    """How many were never mixed, what they took, and the most expensive of them."""
    dead = np.flatnonzero((prompts.n > 0) & ~prompts.ever_mixed)
    cost = prompts.n if prompts.tokens is None else prompts.tokens
    dearest = dead[np.lexsort((dead, -cost[dead]))][:SHOWN_DEAD]
    shown = [
        DeadPrompt(
            text=texts[i],
            success_rate=float(prompts.success_rate[i]),
            visits=int(prompts.visits[i]),
            rollouts=int(prompts.n[i]),
            tokens=None if prompts.tokens is None else int(prompts.tokens[i]),
        )
        for i in dearest.tolist()
    ]
    return len(dead), int(prompts.n[dead].sum()), shown
