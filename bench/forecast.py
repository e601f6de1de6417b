"""How far forecasts are off: each run is forecast from what the others on the same prompts saw, from each of them alone
and from all together, and compared with what it took.

python -m bench.forecast [--json] RUN_DIR RUN_DIR ...    # folders of finished runs, such as $PILOT_HOME/runs/*
python -m bench.forecast [--quick] [--json]              # trains the demo presets first, one run longer than the others
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import demo_curve
from bench.verdict import finish
from pipeline.config import RunConfig, load_config, presets
from pipeline.events import AttemptStarted, EvaluationFinished, StepFinished, events_path, read_events
from pipeline.forecast import History, Length, Pace, Range, Seen, forecast, part_of


class Outcome(NamedTuple):
    """A run as its event log tells it."""

    name: str
    config: RunConfig
    n_train: int
    n_eval: int
    steps: list[StepFinished]
    evaluations: list[EvaluationFinished]
    seconds: float


def read(run_dir: Path) -> Outcome:
    """A run of one attempt."""
    events = [event for event, _ in read_events(events_path(run_dir, 1))]
    (start,) = [e for e in events if isinstance(e, AttemptStarted)]
    return Outcome(
        run_dir.name,
        load_config(run_dir / "config.json"),
        start.n_train,
        [e for e in events if isinstance(e, EvaluationFinished)][0].eval_rollouts,
        [e for e in events if isinstance(e, StepFinished)],
        [e for e in events if isinstance(e, EvaluationFinished)],
        events[-1].time - events[0].time,
    )


def history(run: Outcome) -> History:
    last = run.steps[-1].step
    stage = "pilot" if run.config.method.name == "pilot_commit" else "commit"
    seen: Counter[tuple[int, int, int]] = Counter()
    sampled: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    prompts = set()
    for step in run.steps:
        part = part_of(step.step)
        for visit in step.visits:
            sampled[part] += visit.n
            tokens[part] += visit.tokens
            if visit.stage == stage and visit.success_rate is not None:
                n = visit.n - visit.n_failed
                seen[part, n, round(visit.success_rate * n)] += 1
                prompts.add(visit.prompt_id)
    total = {name: sum(step.metrics.get(name) or 0.0 for step in run.steps) for name in run.steps[0].metrics}
    sample = total["seconds_generate"] + total["seconds_reward"]
    evaluating = sum(e.seconds for e in run.evaluations)
    pace = Pace(
        run.name,
        sample / run.steps[-1].rollouts,
        total["seconds_update"] / total["trained_rollouts"],
        evaluating / sum(e.eval_rollouts for e in run.evaluations),
        max(0.0, run.seconds - sample - total["seconds_update"] - evaluating) / last,
    )
    return History(
        [Seen(run.name, *key, groups) for key, groups in seen.items()],
        [Length(run.name, part, sampled[part], tokens[part]) for part in sampled],
        [pace],
        1,
        len(prompts),
        last,
    )


def together(histories: Sequence[History]) -> History:
    """Of several runs; the prompts that any of them visited are not counted apart."""
    return History(
        [seen for past in histories for seen in past.seen],
        [length for past in histories for length in past.lengths],
        [pace for past in histories for pace in past.paces],
        len(histories),
        max(past.prompts for past in histories),
        max(past.steps for past in histories),
    )


def trained(folder: Path, *, quick: bool) -> list[Path]:
    """Runs of the demo presets: three of the same length, and one that goes on for longer."""
    config = {preset["name"]: preset["config"] for preset in presets()}
    steps, longer = (20, 60) if quick else (150, 400)
    wanted = {
        "demo": config["demo"] | {"budget": {"steps": steps}},
        "demo, seed 1": config["demo"] | {"seed": 1, "budget": {"steps": steps}},
        "demo GRPO": config["demo-grpo"] | {"budget": {"steps": steps}},
        "demo, seed 2, longer": config["demo"] | {"seed": 2, "budget": {"steps": longer}},
    }
    for name, one in wanted.items():
        print(f"training {name}: {one['budget']['steps']} steps", file=sys.stderr, flush=True)
        demo_curve.run(one, folder / name)
    return [folder / name for name in wanted]


class Told(NamedTuple):
    """One figure of a forecast, and what came."""

    run: str
    source: str
    figure: str
    low: float | None
    expected: float | None
    high: float | None
    outcome: float
    reached: bool
    """History went as far as the run did."""

    @property
    def inside(self) -> bool:
        return self.low is not None and self.high is not None and self.low <= self.outcome <= self.high

    def __str__(self) -> str:
        if self.expected is None:
            return f"{'not told':>10} {self.outcome:>10,.4g}"
        off = f"{100 * (self.expected / self.outcome - 1):>+6.1f} %"
        return f"{self.expected:>10,.4g} {self.outcome:>10,.4g} {off} {'in' if self.inside else 'out':>4}"


def compare(run: Outcome, source: str, past: History) -> list[Told]:
    told = forecast(run.config, run.n_train, run.n_eval, past)
    stages = {stage.stage: stage for stage in told.stages}
    last = run.steps[-1]
    pilots = sum(v.n for step in run.steps for v in step.visits if v.stage == "pilot")
    figures: list[tuple[str, Range, float]] = [("training rollouts", told.rollouts, last.rollouts)]
    if pilots:
        figures.append(("of these pilots", stages["pilot"].rollouts, pilots))
    figures += [
        ("tokens", told.tokens, last.tokens),
        ("evaluation rollouts", stages["evaluation"].rollouts, sum(e.eval_rollouts for e in run.evaluations)),
        ("GPU-hours", told.gpu_hours, run.seconds / 3600),
    ]
    reached = past.steps >= last.step
    return [Told(run.name, source, name, r.low, r.expected, r.high, came, reached) for name, r, came in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN_DIR")
    parser.add_argument("--quick", action="store_true", help="train 20 and 60 steps instead of 150 and 400")
    parser.add_argument("--json", action="store_true", help="one JSON object of figures last")
    arguments = parser.parse_args()
    if len(arguments.runs) == 1:
        parser.error("one run has no other to be forecast from; name two or more, or none to train the demo presets")
    with tempfile.TemporaryDirectory() as scratch:
        runs = [read(path) for path in arguments.runs or trained(Path(scratch), quick=arguments.quick)]
    all_told: list[Told] = []
    for run in runs:
        others = {other.name: history(other) for other in runs if other is not run}
        if len(others) > 1:
            others[f"all {len(others)} others"] = together(list(others.values()))
        for source, past in others.items():
            print(f"{run.name} from {source}:   forecast    outcome    error  range")
            for told in compare(run, source, past):
                print(f"  {told.figure:<19} {told}")
                all_told.append(told)
    inside: dict[str, list[int]] = {}
    for figure in dict.fromkeys(told.figure for told in all_told):
        for reached in (True, False):
            held = [told.inside for told in all_told if told.figure == figure and told.reached is reached]
            if held:
                name = figure if reached else f"{figure}, of runs longer than history"
                inside[name] = [sum(held), len(held)]
                print(f"{name}: {sum(held)} of {len(held)} outcomes lay inside")
    return finish({"forecasts": [told._asdict() for told in all_told], "inside": inside}, [], arguments.json)


if __name__ == "__main__":
    sys.exit(main())
