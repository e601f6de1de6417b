"""What allocation itself costs: plan and observe of a Pilot-Commit step, in a small and in a large pool.

    python -m bench.allocation_scale [--quick] [--json]

A step of 384 pilots and 128 commits (the paper's batch) in a pool of 1,000,000 prompts must cost at most twice that in
a pool of 1,000, at most 10 ms, and the saved state at most 64 bytes per prompt that was touched. The two pools take
turns step by step, so that both see the same machine. Sampling is not timed; its answers are made beforehand.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from typing import Any

import numpy as np

from bench.verdict import finish
from pipeline.allocation import Group, PilotCommit, Plan, Rollouts, Stage

SMALL, LARGE = 1_000, 1_000_000
BATCH, N_PILOT, N_COMMIT = 128, 32, 96
MOST_RATIO, MOST_MS, MOST_BYTES = 2.0, 10.0, 64.0


def allocator(n_prompts: int) -> PilotCommit:
    return PilotCommit(
        n_prompts=n_prompts, batch_prompts=BATCH, seed=0, n_pilot=N_PILOT, n_commit=N_COMMIT, pilot_prompts=3 * BATCH,
        p_lower=0.125, p_upper=0.75, p_solve=1.1, max_age=4, commit_order="max_variance", binding=True, max_rounds=1,
    )  # fmt: skip


def answer(plan: Plan, rng: np.random.Generator) -> list[Group]:
    """Three prompts of eight are worth a commit, so that a batch is found in every pass."""
    groups = []
    for request in plan.requests:
        rate = 0.5 if request.stage is Stage.COMMIT or request.prompt % 8 < 3 else 0.0
        rewards = (rng.random(request.n) < rate).astype(np.float64)
        steps, data = np.full(request.n, plan.step), [None] * request.n
        groups.append(Group(request, Rollouts(rewards, rewards, rng.integers(1, 9, request.n), steps, data)))
    return groups


def one_step(allocation: PilotCommit, rng: np.random.Generator) -> tuple[float, int, int]:
    """Seconds of plan and observe, and the commits and pilots of the step's first pass."""
    seconds, counts = 0.0, (0, 0)
    while True:
        start = time.perf_counter()
        plan = allocation.plan()
        seconds += time.perf_counter() - start
        if plan.round == 1:
            commits = sum(r.stage is Stage.COMMIT for r in plan.requests)
            counts = (commits, len(plan.requests) - commits)
        groups = answer(plan, rng)
        start = time.perf_counter()
        batch = allocation.observe(groups)
        seconds += time.perf_counter() - start
        if batch is not None:
            return seconds, *counts


def state_bytes(state: Any) -> int:
    """Bytes of a saved state without the engine's own data of buffered rollouts."""
    if isinstance(state, np.ndarray):
        return int(state.nbytes)
    if isinstance(state, dict):
        return sum(state_bytes(v) for k, v in state.items() if k != "data")
    if isinstance(state, list):
        return sum(state_bytes(v) for v in state)
    return 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--json", action="store_true", help="one JSON object of figures last")
    arguments = parser.parse_args()
    steps = 60 if arguments.quick else 600
    pools = {n: allocator(n) for n in (SMALL, LARGE)}
    seconds: dict[int, list[float]] = {n: [] for n in pools}
    sizes = dict.fromkeys(pools, (0, 0))
    rng = np.random.default_rng(0)
    for step in range(steps):
        for n, allocation in pools.items():
            taken, *counts = one_step(allocation, rng)
            if step >= 5:  # the buffer fills first
                seconds[n].append(taken)
                sizes[n] = (sizes[n][0] + counts[0], sizes[n][1] + counts[1])
    figures: dict[str, float] = {}
    for n in pools:
        milliseconds = sorted(1e3 * s for s in seconds[n])
        figures[f"ms_median_{n}"] = statistics.median(milliseconds)
        figures[f"ms_p95_{n}"] = milliseconds[int(0.95 * len(milliseconds))]
        figures[f"ms_worst_{n}"] = milliseconds[-1]
        measured = len(seconds[n])
        print(
            f"pool {n:>9,}: {figures[f'ms_median_{n}']:.2f} ms a step (p95 {figures[f'ms_p95_{n}']:.2f}, worst "
            f"{figures[f'ms_worst_{n}']:.2f}), {sizes[n][0] / measured:.0f} commits and {sizes[n][1] / measured:.0f} "
            f"pilots in its first pass"
        )
    pool_state = pools[LARGE].state_dict()["pool"]
    whole = state_bytes(pools[LARGE].state_dict())
    touched = len(pool_state["touched"])
    figures["ratio"] = figures[f"ms_median_{LARGE}"] / figures[f"ms_median_{SMALL}"]
    figures["bytes_per_prompt"] = whole / touched
    print(f"ratio of the medians: {figures['ratio']:.2f} (bound {MOST_RATIO})")
    per_prompt = figures["bytes_per_prompt"]
    print(f"state: {per_prompt:.1f} bytes per prompt touched, {touched:,} touched (bound {MOST_BYTES:.0f})")
    missed = [
        f"{name} is {value:.2f}, the bound is {bound}"
        for name, value, bound in (
            ("ratio", figures["ratio"], MOST_RATIO),
            ("ms_median_1000000", figures[f"ms_median_{LARGE}"], MOST_MS),
            ("bytes_per_prompt", figures["bytes_per_prompt"], MOST_BYTES),
        )
        if value > bound
    ]
    return finish(figures, missed, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
