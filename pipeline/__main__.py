"""`python -m pipeline train RUN_DIR --attempt N`: the trainer process, as the supervisor starts it; and
`python -m pipeline evaluate RUN_DIR --step N`: one of its checkpoints, measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="The trainer process.")
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="run one attempt of a run")
    train.add_argument("run_dir", type=Path, help="folder with config.json; everything is written there")
    train.add_argument("--attempt", type=int, default=1, help="number of this attempt, from 1")
    train.add_argument("--seconds-before", type=float, default=0.0, help="what earlier attempts took, for the budget")
    measure = commands.add_parser("evaluate", help="measure a checkpoint of a run on benchmarks")
    add_arguments(measure)
    arguments = parser.parse_args()
    if not (arguments.run_dir / "config.json").is_file():
        parser.error(f"{arguments.run_dir} has no config.json: a run directory starts with its run config")

    # Threads that wait must not spin: on a machine with other work a spinning team makes every small operation wait
    # for a core. It has to be set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "0")
    run_dir = arguments.run_dir.resolve()
    if address := ray_address(run_dir):
        from pipeline.engines.verl.submit import follow

        if arguments.attempt is None:
            parser.error(f"{run_dir} belongs to the Ray cluster at {address}: ask the platform to evaluate the run")
        told = [str(run_dir) if word == str(arguments.run_dir) else word for word in sys.argv[1:]]
        return follow(address, run_dir, arguments.attempt, [sys.executable, "-m", "pipeline", *told])
    if arguments.command == "evaluate":
        from pipeline.evaluate import main as evaluate

        return evaluate(arguments)
    from pipeline.train import main as run  # torch is imported only when training starts

    return run(run_dir, arguments.attempt, arguments.seconds_before)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, help="folder with config.json and checkpoints")
    parser.add_argument("--step", type=int, help="the checkpoint's step; unset: the newest one")
    parser.add_argument(
        "--benchmark", action="append", default=[], metavar="NAME|FILE",
        help="one of the run's benchmarks, or a prompt set; may be repeated; unset: all of the run's",
    )  # fmt: skip
    parser.add_argument("--samples", type=int, help="sampled responses per prompt, in place of each benchmark's own")
    parser.add_argument("--temperature", type=float, help="the same for the temperature")
    parser.add_argument("--top-p", type=float, help="the same for top-p")
    parser.add_argument("--greedy", action="store_true", help="also one greedy response per prompt, of every benchmark")
    parser.add_argument("--reward", help="what judges, in place of each benchmark's own: a reward's name, or JSON")
    parser.add_argument("--out", type=Path, help="new folder for the responses, NAME.parquet each; unset: not kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--attempt", type=int, help="for the platform: RUN_DIR is an evaluation's own")
    parser.add_argument("--of", type=Path, help="with --attempt: the folder of the run whose checkpoint it is")


def ray_address(run_dir: Path) -> str | None:
    """Where this trainer is to be submitted as a Ray job; None when it is to run here, also because it is that job."""
    from pipeline.config import ConfigProblems, VerlEngine, load_config
    from pipeline.engines.verl.job import MARK

    try:
        engine = load_config(run_dir / "config.json").engine
    except ConfigProblems:
        return None  # the trainer tells what is wrong
    return engine.ray_address if isinstance(engine, VerlEngine) and MARK not in os.environ else None


if __name__ == "__main__":
    sys.exit(main())
