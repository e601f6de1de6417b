"""Rollouts to target: how many rollouts each method samples until held-out accuracy first reaches a target.

    python -m bench.rollouts_to_target [--quick] [--json] [--results FILE] [--report docs/rollouts_to_target] [--jobs 2]

Every method trains the bundled policy on the bundled task with the real trainer: the same optimiser, the same two
updates a step, the same evaluation every 4,000 rollouts or so, until 100,000 rollouts are sampled. First each method
sweeps the learning rate with two seeds; then its best one (fewest rollouts to the middle target) gets four more. GRPO
and PODS sweep n as well. Rollouts are the measure; seconds are printed too, but sampling on a prefix tree makes a
rollout cheaper the more of them a prompt gets, so they say little about other engines.

Results are kept in a JSON-lines file, one line a run, so a stopped sweep goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.allocation import Fate
from pipeline.config import ROOT, presets
from pipeline.events import EvaluationFinished, StepFinished, events_path, read_events

TARGETS = (0.50, 0.54, 0.57, 0.59)
MIDDLE = 0.57
RATES = (2.5e-4, 5e-4, 1e-3)
SWEEP_SEEDS, SEEDS = 2, 6
MOST_ROLLOUTS, EVALUATE_EVERY = 100_000, 4_000
BATCH = 32


def pilot_commit(n_pilot: int, n_commit: int, **changes: Any) -> dict[str, Any]:
    return {"method": {"name": "pilot_commit", "n_pilot": n_pilot, "n_commit": n_commit, **changes}}


def grpo(n: int, batch_prompts: int = BATCH) -> dict[str, Any]:
    return {"method": {"name": "grpo", "n": n}, "batch_prompts": batch_prompts}


def pods(keep: int) -> dict[str, Any]:
    return {"selection": {"name": "pods", "keep": keep}}


METHODS: dict[str, dict[str, Any]] = {
    "GRPO n=8": grpo(8),
    "GRPO n=16": grpo(16),
    "GRPO n=32": grpo(32),
    "GRPO n=64, accumulated": grpo(64),
    "GRPO n=16, 3x prompts": grpo(16, 3 * BATCH),
    "DAPO n=16, surplus discarded": {"method": {"name": "dapo", "n": 16, "keep_surplus": False}},
    "DAPO n=16, surplus kept": {"method": {"name": "dapo", "n": 16}},
    "PODS 32 -> 8": grpo(32) | pods(8),
    "PODS 64 -> 16": grpo(64) | pods(16),
    "Pilot-Commit 8+24": pilot_commit(8, 24),
    "Pilot-Commit 4+12": pilot_commit(4, 12),
    "Pilot-Commit 4+28": pilot_commit(4, 28),
    "Pilot-Commit 8+24, PODS -> 16": pilot_commit(8, 24) | pods(16),
}
ABLATIONS: dict[str, dict[str, Any]] = {
    "PC 4+12": pilot_commit(4, 12),
    "PC 8+8": pilot_commit(8, 8),
    "PC 2+14": pilot_commit(2, 14),
    "PC 4+4": pilot_commit(4, 4),
    "PC 2+6": pilot_commit(2, 6),
    "PC 4+12, p_lower 0.05": pilot_commit(4, 12, p_lower=0.05),
    "PC 4+12, p_lower 0.3": pilot_commit(4, 12, p_lower=0.3),
    "PC 4+12, p_upper 0.5": pilot_commit(4, 12, p_upper=0.5),
    "PC 4+12, p_upper 0.9": pilot_commit(4, 12, p_upper=0.9),
    "PC 4+12, binding off": pilot_commit(4, 12, binding=False),
    "PC 4+12, max_age 0": pilot_commit(4, 12, max_age=0),
    "PC 4+12, max_age 8": pilot_commit(4, 12, max_age=8),
    "PC 4+12, 30% of pilots re-test evicted": pilot_commit(4, 12, retest_rate=0.3),
    "PC 4+12, uncorrected pilots": pilot_commit(4, 12) | {"off_policy_cap": None},
}
# Rollouts of a step, roughly, so that every method is evaluated after about as many rollouts.
PER_PASS = {"grpo": lambda m, b: b * m["n"], "dapo": lambda m, b: 2.0 * b * m["n"],
            "pilot_commit": lambda m, b: b * (m["n_commit"] + 2.5 * m["n_pilot"])}  # fmt: skip


def config(settings: dict[str, Any], lr: float, seed: int, rollouts: int) -> dict[str, Any]:
    base = next(p["config"] for p in presets() if p["name"] == "demo")
    method, batch = settings["method"], settings.get("batch_prompts", BATCH)
    every = max(1, round(EVALUATE_EVERY / PER_PASS[method["name"]](method, batch)))
    update = base["update"] | {"lr": lr, "batch_prompts": batch}
    if "off_policy_cap" in settings:
        update["off_policy_cap"] = settings["off_policy_cap"]
    return base | {
        "name": "bench",
        "seed": seed,
        "method": method,
        "selection": settings.get("selection", {"name": "all"}),
        "update": update,
        "evaluation": {"every": every, "samples": 4},
        "budget": {"steps": 1_000_000, "rollouts": rollouts},
        "checkpoint": {"every": 1_000_000, "keep": 1},
        "engine": {"name": "torch", "threads": 1},
    }


def run(settings: dict[str, Any], lr: float, seed: int, rollouts: int) -> dict[str, Any]:
    """One run through the trainer process, as what the report needs of it. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(config(settings, lr, seed, rollouts)))
        command = [sys.executable, "-m", "pipeline", "train", str(folder)]
        subprocess.run(command, cwd=ROOT, check=True)
        events = [event for event, _ in read_events(events_path(folder, 1))]
    steps = [e for e in events if isinstance(e, StepFinished)]
    began = steps[0].time
    at_step = {e.step: e for e in steps}
    curve = [
        {
            "rollouts": e.rollouts_spent,
            "tokens": at_step[e.step].tokens if e.step else 0,
            "seconds": sum(
                s.metrics[f"seconds_{phase}"] or 0.0
                for s in steps
                if s.step <= e.step
                for phase in ("generate", "reward", "update")
            ),
            "sampled": e.sampled_accuracy,
            "greedy": e.greedy_accuracy,
        }
        for e in events
        if isinstance(e, EvaluationFinished)
    ]
    fates = {f.value: sum(s.fates[f].rollouts for s in steps if f in s.fates) for f in Fate}
    variances = [s.metrics["reward_variance"] for s in steps if s.metrics["reward_variance"] is not None]
    return {
        "curve": curve,
        "fates": {fate: n for fate, n in fates.items() if n},
        "reward_variance": float(np.mean(variances)) if variances else None,
        "steps": len(steps),
        "wall_s": events[-1].time - began,
    }


def first_reached(curve: list[dict[str, float]], target: float, what: str = "rollouts") -> float:
    """`what` when the target is first reached, between evaluations by a straight line; infinity when it never is."""
    for before, after in zip(curve, curve[1:], strict=False):
        if after["sampled"] >= target:
            share = (target - before["sampled"]) / (after["sampled"] - before["sampled"])
            return before[what] + max(0.0, share) * (after[what] - before[what])
    return math.inf


class Results:
    """Finished runs by (method, lr, seed, rollouts), in memory and on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.found[row["key"]] = row

    def ensure(self, wanted: Iterable[tuple[str, dict[str, Any], float, int]], rollouts: int, jobs: int) -> None:
        """Run what is missing, `jobs` side by side."""
        missing = [w for w in wanted if self.key(*w[:1], *w[2:], rollouts) not in self.found]

        def one(item: tuple[str, dict[str, Any], float, int]) -> None:
            name, settings, lr, seed = item
            row = {"key": self.key(name, lr, seed, rollouts), **run(settings, lr, seed, rollouts)}
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            self.found[row["key"]] = row
            reached = first_reached(row["curve"], MIDDLE)
            print(f"  {name}, lr {lr:g}, seed {seed}: {MIDDLE:.0%} after {shown(reached)} rollouts", flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(one, missing))

    def of(self, name: str, lr: float, seeds: int, rollouts: int) -> list[dict[str, Any]]:
        return [self.found[self.key(name, lr, seed, rollouts)] for seed in range(seeds)]

    @staticmethod
    def key(name: str, lr: float, seed: int, rollouts: int) -> str:
        return f"{name} | lr {lr:g} | seed {seed} | {rollouts}"


def shown(value: float) -> str:
    return f"{value / 1000:.1f}k" if math.isfinite(value) else "never"


def interval(mine: list[float], theirs: list[float]) -> tuple[float, float, float]:
    """theirs / mine of the medians (above 1: mine needs fewer), with a 95% bootstrap interval over paired seeds."""
    rng = np.random.default_rng(0)
    a, b = np.minimum(mine, 1e9), np.minimum(theirs, 1e9)
    index = rng.integers(0, len(a), (4000, len(a)))
    ratios = np.median(b[index], axis=1) / np.median(a[index], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(b) / np.median(a)), float(low), float(high)


def summarise(
    results: Results, methods: dict[str, Any], best: dict[str, float], seeds: int, rollouts: int
) -> dict[str, Any]:
    """Everything that the report shows, as one JSON object."""
    runs = {name: results.of(name, best[name], seeds, rollouts) for name in methods}
    reach = {n: {t: [first_reached(r["curve"], t) for r in rs] for t in TARGETS} for n, rs in runs.items()}
    grpos = [n for n in methods if n.startswith("GRPO")]
    base_grpo = min(grpos, key=lambda n: np.median(reach[n][MIDDLE]), default=None)
    base_dapo = next((n for n in methods if n.startswith("DAPO") and "discarded" in n), None)
    table = {}
    for name, rs in runs.items():
        sampled = sum(sum(r["fates"].values()) for r in rs)
        table[name] = {
            "lr": best[name],
            "rollouts_to": {f"{t:.2f}": float(np.median(reach[name][t])) for t in TARGETS},
            "tokens_to": float(np.median([first_reached(r["curve"], MIDDLE, "tokens") for r in rs])),
            "seconds_to": float(np.median([first_reached(r["curve"], MIDDLE, "seconds") for r in rs])),
            "against_grpo": {f"{t:.2f}": interval(reach[name][t], reach[base_grpo][t]) for t in TARGETS}
            if base_grpo
            else {},
            "against_dapo": {f"{t:.2f}": interval(reach[name][t], reach[base_dapo][t]) for t in TARGETS}
            if base_dapo
            else {},
            "reward_variance": float(np.mean([r["reward_variance"] for r in rs])),
            "fates": {
                f: sum(r["fates"].get(f, 0) for r in rs) / sampled for f in sorted({f for r in rs for f in r["fates"]})
            },
            "final_sampled": float(np.median([r["curve"][-1]["sampled"] for r in rs])),
            "final_greedy": float(np.median([r["curve"][-1]["greedy"] for r in rs])),
        }
    return {"seeds": seeds, "rollouts": rollouts, "best_grpo": base_grpo, "dapo": base_dapo, "methods": table}


def tell(summary: dict[str, Any]) -> str:
    """The summary as Markdown tables."""
    lines = [
        f"Medians of {summary['seeds']} seeds at each method's best learning rate, {summary['rollouts']:,} rollouts.",
        "",
        "| method | lr | "
        + " | ".join(f"to {t:.0%}" for t in TARGETS)
        + f" | tokens to {MIDDLE:.0%} | seconds | end |",
        "|---|---|" + "---|" * (len(TARGETS) + 3),
    ]
    for name, row in summary["methods"].items():
        cells = [shown(row["rollouts_to"][f"{t:.2f}"]) for t in TARGETS]
        seconds = f"{row['seconds_to']:.1f}" if math.isfinite(row["seconds_to"]) else "never"
        lines.append(
            f"| {name} | {row['lr']:g} | {' | '.join(cells)} | {shown(row['tokens_to'])} | {seconds} | "
            f"{row['final_sampled']:.1%} |"
        )
    for what, base in (("against_grpo", summary["best_grpo"]), ("against_dapo", summary["dapo"])):
        if not base:
            continue
        lines += ["", f"Times fewer rollouts than {base} (95% bootstrap interval; above 1 is better):", ""]
        lines += ["| method | " + " | ".join(f"to {t:.0%}" for t in TARGETS) + " |", "|---|" + "---|" * len(TARGETS)]
        for name, row in summary["methods"].items():
            cells = []
            for t in TARGETS:
                ratio, low, high = row[what][f"{t:.2f}"]
                reached = math.isfinite(row["rollouts_to"][f"{t:.2f}"]) and ratio < 100
                # An end of the interval where one of the two never gets there has no number.
                low_shown = f"{low:.2f}" if low > 0.01 else "?"
                high_shown = f"{high:.2f}" if high < 50 else "?"
                cells.append(f"{ratio:.2f} ({low_shown}–{high_shown})" if reached else "–")
            lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", "| method | variance of trained groups | share of rollouts by fate |", "|---|---|---|"]
    for name, row in summary["methods"].items():
        shares = sorted(row["fates"].items(), key=lambda fate: -fate[1])
        fates = ", ".join(f"{fate} {share:.0%}" for fate, share in shares)
        lines.append(f"| {name} | {row['reward_variance']:.3f} | {fates} |")
    return "\n".join(lines)


def plot(results: Results, summary: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), dpi=150)
    grid = np.linspace(0, summary["rollouts"], 60)
    for i, (name, row) in enumerate(summary["methods"].items()):
        runs = results.of(name, row["lr"], summary["seeds"], summary["rollouts"])
        curves = [
            np.interp(grid, [c["rollouts"] for c in r["curve"]], [c["sampled"] for c in r["curve"]]) for r in runs
        ]
        style = "-" if name.startswith("Pilot") else ":" if name.startswith("DAPO") else "--"
        axes.plot(grid / 1000, 100 * np.median(curves, axis=0), style, color=f"C{i % 10}", label=name, linewidth=1.4)
    axes.set(xlabel="rollouts sampled (thousands)", ylabel="held-out sampled accuracy, avg@4 (%)",
             title=f"Accuracy over rollouts, median of {summary['seeds']} seeds")  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncol=2, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three methods, one seed, 12,000 rollouts")
    parser.add_argument("--ablations", action="store_true", help="Pilot-Commit's parts, at learning rate 5e-4")
    parser.add_argument("--json", action="store_true", help="one JSON object of figures last")
    parser.add_argument("--results", type=Path, default=ROOT / ".bench" / "rollouts_to_target.jsonl")
    parser.add_argument("--report", type=Path, help="write REPORT.md, REPORT.json and REPORT.png")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each method at its best learning rate")
    parser.add_argument("--sweep-seeds", type=int, default=SWEEP_SEEDS, help="seeds of each learning rate of the sweep")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    arguments = parser.parse_args()
    methods = ABLATIONS if arguments.ablations else METHODS
    rates, sweep_seeds, seeds, rollouts = RATES, arguments.sweep_seeds, arguments.seeds, MOST_ROLLOUTS
    if arguments.quick:
        methods = {n: methods[n] for n in list(methods)[:: len(methods) // 3]}
        rates, sweep_seeds, seeds, rollouts = (5e-4,), 1, 1, 12_000
    if arguments.ablations:
        rates = (5e-4,)
    results = Results(arguments.results)
    results.ensure(
        [(n, s, lr, seed) for seed in range(sweep_seeds) for lr in rates for n, s in methods.items()],
        rollouts,
        arguments.jobs,
    )
    best = {
        name: min(
            rates,
            key=lambda lr: (
                np.median([first_reached(r["curve"], MIDDLE) for r in results.of(name, lr, sweep_seeds, rollouts)]),
                -np.mean([r["curve"][-1]["sampled"] for r in results.of(name, lr, sweep_seeds, rollouts)]),
            ),
        )
        for name in methods
    }
    results.ensure(
        [(n, s, best[n], seed) for seed in range(seeds) for n, s in methods.items()], rollouts, arguments.jobs
    )
    summary = summarise(results, methods, best, seeds, rollouts)
    print(tell(summary))
    if arguments.report:
        arguments.report.with_suffix(".md").write_text(tell(summary) + "\n")
        arguments.report.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
        plot(results, summary, arguments.report.with_suffix(".png"))
    if arguments.json:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
