"""How far forecasts are off: each run is forecast from what each other run on the same prompts saw, and compared.

python -m bench.forecast RUN_DIR RUN_DIR ...    # folders of finished runs, such as $PILOT_HOME/runs/*
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import RunConfig, load_config
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
    seen: Counter[tuple[Any, ...]] = Counter()
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
                seen[(run.name, part, n, round(visit.success_rate * n))] += 1
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
        [Seen(*key, groups) for key, groups in seen.items()],
        [Length(run.name, part, sampled[part], tokens[part]) for part in sampled],
        [pace],
        1,
        len(prompts),
        last,
    )


def error(found: Range, outcome: float) -> str:
    assert found.expected is not None and found.low is not None and found.high is not None
    inside = "in" if found.low <= outcome <= found.high else "out"
    return f"{found.expected:>10,.4g} {outcome:>10,.4g} {100 * (found.expected / outcome - 1):>+6.1f} % {inside:>4}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR")
    runs = [read(path) for path in parser.parse_args().runs]
    for run in runs:
        last = run.steps[-1]
        for other in runs:
            if other is run:
                continue
            told = forecast(run.config, run.n_train, run.n_eval, history(other))
            stages = {stage.stage: stage for stage in told.stages}
            pilots = sum(v.n for step in run.steps for v in step.visits if v.stage == "pilot")
            print(f"{run.name} from {other.name}:   forecast    outcome    error  90 %")
            print(f"  training rollouts   {error(told.rollouts, last.rollouts)}")
            if pilots:
                print(f"  of these pilots     {error(stages['pilot'].rollouts, pilots)}")
            print(f"  tokens              {error(told.tokens, last.tokens)}")
            spent = sum(e.eval_rollouts for e in run.evaluations)
            print(f"  evaluation rollouts {error(stages['evaluation'].rollouts, spent)}")
            print(f"  GPU-hours           {error(told.gpu_hours, run.seconds / 3600)}")


if __name__ == "__main__":
    main()
