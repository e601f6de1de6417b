"""`python -m pipeline train RUN_DIR --attempt N`: the trainer process, as the supervisor starts it."""

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

        given = [str(run_dir), "--attempt", str(arguments.attempt), "--seconds-before", str(arguments.seconds_before)]
        return follow(address, run_dir, arguments.attempt, [sys.executable, "-m", "pipeline", "train", *given])
    from pipeline.train import main as run  # torch is imported only when training starts

    return run(run_dir, arguments.attempt, arguments.seconds_before)


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
