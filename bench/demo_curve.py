"""Does the demo learn? The demo preset with several seeds, straight through the trainer process.

    python -m bench.demo_curve [--quick] [--json] [--preset demo] [--plot docs/demo_curve.png]

Prints the held-out accuracy before and after for each seed, and exits 1 when fewer than 5 of 6 gain 8 points of sampled
accuracy or a run takes longer than 5 minutes. `--quick` runs one seed for 40 steps and asks for the gain of that one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.verdict import finish
from pipeline.config import ROOT, presets
from pipeline.events import EvaluationFinished, events_path, read_events

LEAST_GAIN, LEAST_SHARE, MOST_SECONDS = 0.08, 5 / 6, 300.0


def run(config: dict[str, Any], folder: Path) -> tuple[list[EvaluationFinished], float]:
    """The evaluations of one run and its seconds. Raises CalledProcessError with the trainer's output shown."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    start = time.perf_counter()
    command = [sys.executable, "-m", "pipeline", "train", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    seconds = time.perf_counter() - start
    events = [event for event, _ in read_events(events_path(folder, 1))]
    return [e for e in events if isinstance(e, EvaluationFinished)], seconds


def plot(curves: list[list[EvaluationFinished]], title: str, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(7, 4), dpi=150)
    x = np.mean([[e.rollouts_spent for e in c] for c in curves], axis=0) / 1000
    for name, values, colour in (
        ("sampled, avg@4", [[100 * e.sampled_accuracy for e in c] for c in curves], "#0072b2"),
        ("greedy", [[100 * e.greedy_accuracy for e in c] for c in curves], "#d55e00"),
    ):
        axes.plot(x, np.mean(values, axis=0), color=colour, label=name)
        axes.fill_between(x, np.min(values, axis=0), np.max(values, axis=0), color=colour, alpha=0.2, linewidth=0)
    axes.set(xlabel="training rollouts (thousands)", ylabel="held-out accuracy (%)", title=title)
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", title=f"mean of {len(curves)} seeds, band: lowest to highest")
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed, 40 steps")
    parser.add_argument("--json", action="store_true", help="one JSON object of figures last")
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--plot", type=Path, help="write the curves to this PNG file")
    arguments = parser.parse_args()
    preset = next((p for p in presets() if p["name"] == arguments.preset), None)
    if preset is None:
        parser.error(f"no preset {arguments.preset!r}; there are {', '.join(p['name'] for p in presets())}")
    curves, gains, times = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(1 if arguments.quick else 6):
            config = preset["config"] | {"seed": seed}
            if arguments.quick:
                config |= {"budget": {"steps": 40}}
            curve, seconds = run(config, Path(scratch) / str(seed))
            first, last = curve[0], curve[-1]
            curves.append(curve)
            gains.append(last.sampled_accuracy - first.sampled_accuracy)
            times.append(seconds)
            print(
                f"seed {seed}: sampled {100 * first.sampled_accuracy:.1f}% -> {100 * last.sampled_accuracy:.1f}% "
                f"({100 * gains[-1]:+.1f} points), greedy {100 * first.greedy_accuracy:.1f}% -> "
                f"{100 * last.greedy_accuracy:.1f}%, {last.rollouts_spent:,} rollouts, {seconds:.0f} s",
                flush=True,
            )
    enough = sum(gain >= LEAST_GAIN for gain in gains)
    print(f"{enough} of {len(gains)} seeds gain {100 * LEAST_GAIN:.0f} points or more; slowest {max(times):.0f} s")
    if arguments.plot:
        plot(curves, preset["title"], arguments.plot)
    missed = []
    if enough < LEAST_SHARE * len(gains):
        missed.append(f"seeds that gain {100 * LEAST_GAIN:.0f} points: {enough} of {len(gains)}, the bound is 5 of 6")
    if max(times) > MOST_SECONDS:
        missed.append(f"seconds: {max(times):.0f}, the bound is {MOST_SECONDS:.0f}")
    return finish({"gains": gains, "seconds": times, "seeds_that_gain": enough}, missed, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
