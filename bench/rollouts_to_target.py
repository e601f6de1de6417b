"""Rollouts to target: how many rollouts each method samples until held-out accuracy first reaches a target.

    python -m bench.rollouts_to_target [--quick] [--json] [--results FILE] [--report docs/rollouts_to_target] [--jobs 2]
                                       [--pool middle-20] [--plain-advantages] [--ablations] [--only METHOD ...]

Every method trains the bundled policy on the bundled task with the real trainer: the same optimiser, the same two
updates a step, the same evaluation every 4,000 rollouts or so, until 100,000 rollouts are sampled. First each method
sweeps the learning rate with two seeds; then its best one (fewest rollouts to the middle target) gets four more. GRPO,
DAPO and PODS sweep n too. Rollouts are the measure. Seconds are processor seconds of sampling, rewards and updates on
one thread, so other work on the machine does not count; but sampling on a prefix tree makes a rollout cheaper the more
of them a prompt gets, so they say little about other engines.

`--pool` dilutes the bundled prompts that carry a signal with hard and with solved ones; the held-out ones stay.
`--plain-advantages` leaves out the division by the standard deviation.

Results are kept in a JSON-lines file, one line a run, so a stopped sweep goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from api import comparison
from pipeline.allocation import Fate
from pipeline.config import ROOT, parse_config, presets
from pipeline.events import AttemptFinished, EvaluationFinished, StepFinished, events_path, read_events
from pipeline.prompts import Prompt, load_run_prompts, prompt_id
from pipeline.train import main as train

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
    "DAPO n=8, surplus discarded": {"method": {"name": "dapo", "n": 8, "keep_surplus": False}},
    "DAPO n=8, surplus kept": {"method": {"name": "dapo", "n": 8}},
    "PODS 32 -> 8": grpo(32) | pods(8),
    "PODS 64 -> 16": grpo(64) | pods(16),
    "Pilot-Commit 4+4": pilot_commit(4, 4),
    "Pilot-Commit 4+12": pilot_commit(4, 12),
    "Pilot-Commit 4+12, 30% re-tests": pilot_commit(4, 12, retest_rate=0.3),
    "Pilot-Commit 4+28": pilot_commit(4, 28),
    "Pilot-Commit 8+24": pilot_commit(8, 24),
    "Pilot-Commit 8+24, PODS -> 16": pilot_commit(8, 24) | pods(16),
}
# With four pilots p is a multiple of 1/4: p_lower 0.25 is the same rule as 0.125, and p_upper 0.9 as 0.75.
ABLATIONS: dict[str, dict[str, Any]] = {
    "Pilot-Commit 4+12": pilot_commit(4, 12),
    "Pilot-Commit 8+8": pilot_commit(8, 8),
    "Pilot-Commit 2+14": pilot_commit(2, 14),
    "Pilot-Commit 4+4": pilot_commit(4, 4),
    "Pilot-Commit 2+6": pilot_commit(2, 6),
    "Pilot-Commit 4+12, p_lower 0.3": pilot_commit(4, 12, p_lower=0.3),
    "Pilot-Commit 4+12, p_upper 0.5": pilot_commit(4, 12, p_upper=0.5),
    "Pilot-Commit 4+12, binding off": pilot_commit(4, 12, binding=False),
    "Pilot-Commit 4+12, max_age 0": pilot_commit(4, 12, max_age=0),
    "Pilot-Commit 4+12, max_age 8": pilot_commit(4, 12, max_age=8),
    "Pilot-Commit 4+12, 30% re-tests": pilot_commit(4, 12, retest_rate=0.3),
    "Pilot-Commit 4+12, uncorrected pilots": pilot_commit(4, 12) | {"off_policy_cap": None},
}
# How many hard, middling and solved prompts a pool has, and up to and from which success rate before training (of 32
# rollouts) a prompt is hard or solved; middling is 0.125 to 0.75, as 43% of the bundled prompts are. The pools are so
# large that few prompts come twice.
POOLS: dict[str, tuple[tuple[int, int, int], float, float]] = {
    "middle-20": ((4500, 1800, 2700), 1 / 32, 15 / 16),
    "middle-10": ((5400, 900, 2700), 1 / 32, 15 / 16),
    "dead-80": ((3700, 1200, 1100), 0.0, 1.0),
}
# Rollouts of a step, roughly, so that every method is evaluated after about as many rollouts.
PER_PASS = {"grpo": lambda m, b: b * m["n"], "dapo": lambda m, b: 2.0 * b * m["n"],
            "pilot_commit": lambda m, b: b * (m["n_commit"] + 2.5 * m["n_pilot"])}  # fmt: skip


def config(settings: dict[str, Any], lr: float, seed: int, rollouts: int) -> dict[str, Any]:
    base = next(p["config"] for p in presets() if p["name"] == "demo")
    method, batch = settings["method"], settings.get("batch_prompts", BATCH)
    every = max(1, round(EVALUATE_EVERY / PER_PASS[method["name"]](method, batch)))
    update = base["update"] | {"lr": lr, "batch_prompts": batch}
    update |= {k: settings[k] for k in ("off_policy_cap", "normalise_std") if k in settings}
    return base | {
        "name": "bench",
        "seed": seed,
        "data": base["data"] | settings.get("data", {}),
        "method": method,
        "selection": settings.get("selection", {"name": "all"}),
        "update": update,
        "evaluation": {"every": every, "samples": 4},
        "budget": {"steps": 1_000_000, "rollouts": rollouts},
        "checkpoint": {"every": 1_000_000, "keep": 1},
        "engine": {"name": "torch", "threads": 1},
    }


def write_pool(counts: tuple[int, int, int], hard: float, solved: float, path: Path) -> None:
    """A JSONL file with that many hard, middling and solved prompts. The middling ones are bundled prompts; of the
    others there are too few bundled ones, so more are generated, and 32 rollouts of each tell what it is."""
    from pipeline.bundled.make_prompts import generate
    from pipeline.engines.torch import Engine

    settings = parse_config(config(METHODS["GRPO n=8"], 1.0, 0, 1))
    bundled, (held_out,) = load_run_prompts(settings)
    prompts = {prompt.text: prompt for prompt in bundled.prompts}
    draws = random.Random(0)
    for kind in (("mul", "3"), ("chain", "3"), ("add", "1"), ("add", "2"), ("sub", "1"), ("sub", "2"), ("chain", "1")):
        for text, answer, *_ in (generate(*kind, draws) for _ in range(10_000)):
            prompts.setdefault(text, Prompt(prompt_id(text, answer), text, answer, kind))
    for prompt in held_out.prompts:
        prompts.pop(prompt.text, None)
    candidates = list(prompts.values())
    engine = Engine(settings, settings.engine, candidates)
    answers = engine.answers(
        candidates, 32, temperature=1.0, top_p=1.0, greedy=False, step=0, stream="", scorer=None
    )  # fmt: skip
    p = np.array([[answer.accuracy for answer in group] for group in answers]).mean(1)
    is_bundled = np.arange(len(candidates)) < len(bundled)
    rng = np.random.default_rng(0)
    kinds = [np.flatnonzero(w) for w in (p <= hard, (p >= 0.125) & (p <= 0.75) & is_bundled, p >= solved)]
    chosen = [candidates[i] for w, n in zip(kinds, counts, strict=True) for i in rng.choice(w, n, replace=False)]
    rows = [{"prompt": prompt.text, "answer": prompt.answer, "tags": list(prompt.tags)} for prompt in chosen]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run(settings: dict[str, Any], lr: float, seed: int, rollouts: int) -> dict[str, Any]:
    """One run of the trainer, as what the report needs of it. Changes this process' clock, so it wants one of its own.

    Raises RuntimeError with the trainer's reason when the run fails."""
    time.perf_counter = time.process_time  # the trainer's seconds are then processor seconds
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(config(settings, lr, seed, rollouts)))
        train(folder, 1)
        events = [event for event, _ in read_events(events_path(folder, 1))]
    if isinstance(events[-1], AttemptFinished) and events[-1].outcome == "failed":
        raise RuntimeError(events[-1].reason)
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
    """`what` when the target is first reached; infinity when it never is."""
    return comparison.first_reached([c[what] for c in curve], [c["sampled"] for c in curve], target)


def late(curve: list[dict[str, float]], what: str) -> float:
    """The mean of the evaluations in the last quarter of a run: one alone is off by a point or two."""
    return float(np.mean([c[what] for c in curve if c["rollouts"] >= 0.75 * curve[-1]["rollouts"]]))


class Results:
    """Finished runs by (method, lr, seed, rollouts) under one condition, in memory and on disk."""

    def __init__(self, path: Path, condition: str) -> None:
        self.path, self.condition = path, condition
        self.found: dict[str, dict[str, Any]] = {}
        if path.exists():
            for line in path.read_text().splitlines():
                row = json.loads(line)
                self.found[row["key"]] = row

    def ensure(self, wanted: Iterable[tuple[str, dict[str, Any], float, int]], rollouts: int, jobs: int) -> None:
        """Run what is missing, `jobs` side by side, each in a process forked from one that has loaded torch."""
        missing = [w for w in wanted if self.key(w[0], w[2], w[3], rollouts) not in self.found]
        server = multiprocessing.get_context("forkserver")
        server.set_forkserver_preload(["pipeline.engines.torch"])
        self.path.parent.mkdir(parents=True, exist_ok=True)
        pool = ProcessPoolExecutor(jobs, mp_context=server, max_tasks_per_child=1)
        try:
            running = {pool.submit(run, *w[1:], rollouts): w for w in missing}
            for future in as_completed(running):
                name, _, lr, seed = running[future]
                row = {"key": self.key(name, lr, seed, rollouts), **future.result()}
                with self.path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                self.found[row["key"]] = row
                reached = first_reached(row["curve"], MIDDLE)
                print(f"  {name}, lr {lr:g}, seed {seed}: {MIDDLE:.0%} after {shown(reached)} rollouts", flush=True)
        finally:
            pool.shutdown(cancel_futures=True)

    def of(self, name: str, lr: float, seeds: int, rollouts: int) -> list[dict[str, Any]]:
        return [self.found[self.key(name, lr, seed, rollouts)] for seed in range(seeds)]

    def key(self, name: str, lr: float, seed: int, rollouts: int) -> str:
        return f"{name} | lr {lr:g} | seed {seed} | {rollouts} | {self.condition}"


def shown(value: float | None) -> str:
    return f"{value / 1000:.1f}k" if value is not None and math.isfinite(value) else "never"


def group_size(settings: dict[str, Any]) -> int:
    method = settings["method"]
    return int(method["n_pilot"] + method["n_commit"] if method["name"] == "pilot_commit" else method["n"])


def summarise(
    results: Results, methods: dict[str, Any], best: dict[str, float], seeds: int, rollouts: int
) -> dict[str, Any]:
    """Everything that the report shows, as one JSON object. A target that the median never reaches is null."""
    runs = {name: results.of(name, best[name], seeds, rollouts) for name in methods}
    reach = {n: {t: [first_reached(r["curve"], t) for r in rs] for t in TARGETS} for n, rs in runs.items()}

    def best_of(kind: str, what: str = "") -> str | None:
        these = [n for n in methods if n.startswith(kind) and what in n]
        return min(these, key=lambda n: np.median(reach[n][MIDDLE]), default=None)

    best_grpo, dapos = best_of("GRPO"), {what: best_of("DAPO", what) for what in ("discarded", "kept")}

    def median(values: Iterable[float]) -> float | None:
        value = float(np.nanmedian(list(values)))
        return value if math.isfinite(value) else None

    table = {}
    for name, rs in runs.items():
        sampled = sum(sum(r["fates"].values()) for r in rs)
        same_n = f"GRPO n={group_size(methods[name])}"
        bases = {"best GRPO": best_grpo, "GRPO of the same n": same_n if same_n in methods else None,
                 "DAPO, discards": dapos["discarded"], "DAPO, keeps": dapos["kept"]}  # fmt: skip
        table[name] = {
            "lr": best[name],
            "rollouts_to": {f"{t:.2f}": median(reach[name][t]) for t in TARGETS},
            "tokens_to": median(first_reached(r["curve"], MIDDLE, "tokens") for r in rs),
            "seconds_to": median(first_reached(r["curve"], MIDDLE, "seconds") for r in rs),
            "fewer_than": {
                what: {f"{t:.2f}": comparison.interval(reach[name][t], reach[base][t]) for t in TARGETS}
                for what, base in bases.items()
                if base and base != name
            },
            "reward_variance": float(np.mean([r["reward_variance"] for r in rs])),
            "fates": {
                f: sum(r["fates"].get(f, 0) for r in rs) / sampled for f in sorted({f for r in rs for f in r["fates"]})
            },
            "late_sampled": median(late(r["curve"], "sampled") for r in rs),
            "late_greedy": median(late(r["curve"], "greedy") for r in rs),
        }
    return {"seeds": seeds, "rollouts": rollouts, "best_grpo": best_grpo, "methods": table}


def tell(summary: dict[str, Any]) -> str:
    """The summary as Markdown tables."""
    methods = summary["methods"]
    compared = [b for b in ("best GRPO", "GRPO of the same n", "DAPO, discards", "DAPO, keeps")
                if any(b in row["fewer_than"] for row in methods.values())]  # fmt: skip
    reaching = [f"to {t:.0%}" for t in TARGETS]
    columns = ["method", "lr", *reaching, f"tokens to {MIDDLE:.0%}", "seconds", "late", "greedy"]
    lines = [
        f"Medians of {summary['seeds']} seeds at each method's best learning rate, {summary['rollouts']:,} rollouts. "
        "Late: sampled and greedy accuracy over the last quarter.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name, row in methods.items():
        cells = [shown(row["rollouts_to"][f"{t:.2f}"]) for t in TARGETS]
        seconds = f"{row['seconds_to']:.1f}" if row["seconds_to"] is not None else "never"
        lines.append(
            f"| {name} | {row['lr']:g} | {' | '.join(cells)} | {shown(row['tokens_to'])} | {seconds} | "
            f"{row['late_sampled']:.1%} | {row['late_greedy']:.1%} |"
        )
    for target in (t for t in TARGETS if t >= MIDDLE):
        if not compared:
            break
        lines += ["", f"Times fewer rollouts to {target:.0%} (95% bootstrap interval; above 1 is better):", ""]
        bases = [f"{b} ({summary['best_grpo'].removeprefix('GRPO ')})" if b == "best GRPO" else b for b in compared]
        lines += ["| method | than " + " | than ".join(bases) + " |", "|---|" + "---|" * len(compared)]
        for name, row in methods.items():
            reached = row["rollouts_to"][f"{target:.2f}"] is not None
            ratios = [row["fewer_than"].get(base, {}).get(f"{target:.2f}") for base in compared]
            lines.append(f"| {name} | {' | '.join(ratio(*r) if r and reached else '–' for r in ratios)} |")
    lines += ["", "| method | variance of trained groups | share of rollouts by fate |", "|---|---|---|"]
    for name, row in methods.items():
        shares = sorted(row["fates"].items(), key=lambda fate: -fate[1])
        fates = ", ".join(f"{fate} {share:.0%}" for fate, share in shares if share >= 0.005)
        lines.append(f"| {name} | {row['reward_variance']:.3f} | {fates} |")
    return "\n".join(lines)


def ratio(value: float, low: float, high: float) -> str:
    """A ratio with its interval; an end where one of the two never gets there has no number."""
    if value > 100:
        return "the other never does"
    return f"{value:.2f} ({f'{low:.2f}' if low > 0.01 else '?'}–{f'{high:.2f}' if high < 50 else '?'})"


def plot(results: Results, summary: dict[str, Any], condition: str, path: Path) -> None:
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
             title=f"Accuracy over rollouts, {condition}, median of {summary['seeds']} seeds")  # fmt: skip
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, ncol=2, loc="lower right")
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three methods, one seed, 12,000 rollouts")
    parser.add_argument("--ablations", action="store_true", help="Pilot-Commit's parts, at learning rate 5e-4")
    parser.add_argument("--pool", choices=("bundled", *POOLS), default="bundled", help="which prompts to train on")
    parser.add_argument("--plain-advantages", action="store_true", help="no division by the standard deviation")
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="these methods, by their names in the table")
    parser.add_argument("--json", action="store_true", help="one JSON object of figures last")
    parser.add_argument("--results", type=Path, default=ROOT / ".bench" / "rollouts_to_target.jsonl")
    parser.add_argument("--report", type=Path, help="write REPORT.json, beside what it holds already, and REPORT.png")
    parser.add_argument("--rates", type=float, nargs="+", default=RATES, help="learning rates of the sweep")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="seeds of each method at its best learning rate")
    parser.add_argument("--sweep-seeds", type=int, default=SWEEP_SEEDS, help="seeds of each learning rate of the sweep")
    parser.add_argument("--rollouts", type=int, default=MOST_ROLLOUTS, help="where a run ends")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side, one thread each")
    arguments = parser.parse_args()
    methods = ABLATIONS if arguments.ablations else METHODS
    rates, sweep_seeds, seeds, rollouts = arguments.rates, arguments.sweep_seeds, arguments.seeds, arguments.rollouts
    if arguments.quick:
        methods = {n: methods[n] for n in list(methods)[:: len(methods) // 3]}
        rates, sweep_seeds, seeds, rollouts = (5e-4,), 1, 1, 12_000
    if arguments.ablations:
        rates = (5e-4,)
    if arguments.only:
        if unknown := [n for n in arguments.only if n not in methods]:
            parser.error(f"--only: no method {unknown[0]!r}; there are {', '.join(methods)}")
        methods = {n: methods[n] for n in arguments.only}
    condition = f"{arguments.pool} pool{', plain advantages' if arguments.plain_advantages else ''}"
    results = Results(arguments.results, condition)
    if arguments.plain_advantages:
        methods = {n: s | {"normalise_std": False} for n, s in methods.items()}
    if arguments.pool != "bundled":
        pool = arguments.results.with_suffix(f".{arguments.pool}.jsonl").resolve()
        if not pool.exists():
            pool.parent.mkdir(parents=True, exist_ok=True)
            write_pool(*POOLS[arguments.pool], pool)
        methods = {n: s | {"data": {"train": str(pool)}} for n, s in methods.items()}
    sweep = [(n, s, lr, seed) for seed in range(sweep_seeds) for lr in rates for n, s in methods.items()]
    results.ensure(sweep, rollouts, arguments.jobs)

    def reached(name: str, lr: float) -> tuple[float, float]:
        """Rollouts to the middle target; where none gets there, the better end is the better rate."""
        runs = results.of(name, lr, sweep_seeds, rollouts)
        to_middle = np.median([first_reached(r["curve"], MIDDLE) for r in runs])
        return float(to_middle), -float(np.mean([r["curve"][-1]["sampled"] for r in runs]))

    best = {name: min(rates, key=lambda lr: reached(name, lr)) for name in methods}
    finals = [(n, s, best[n], seed) for seed in range(seeds) for n, s in methods.items()]
    results.ensure(finals, rollouts, arguments.jobs)
    summary = summarise(results, methods, best, seeds, rollouts)
    print(tell(summary))
    if arguments.report:
        path = arguments.report.with_suffix(".json")
        report = json.loads(path.read_text()) if path.exists() else {}
        report["ablations" if arguments.ablations else condition] = summary
        path.write_text(json.dumps(report, indent=1) + "\n")
        if not arguments.ablations:
            plot(results, summary, condition, arguments.report.with_suffix(".png"))
    if arguments.json:
        print(json.dumps(summary))
    return 0


if __name__ == "__main__":
    sys.exit(main())
