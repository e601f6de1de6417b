"""`python -m worker`: a Celery worker that launches runs, with the sweep beside it.

Environment: DATABASE_URL, REDIS_URL, PILOT_HOME; see worker.settings and worker.metrics for the others. One process,
two threads, and one more that serves metrics where they are asked for.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

from celery.platforms import SecurityWarning
from celery.signals import worker_ready, worker_shutting_down

from db import DatabaseUnavailable, database_url
from worker import metrics, tasks
from worker.app import app
from worker.settings import Settings
from worker.sweep import SweepThread


def main() -> int:
    """Runs until SIGTERM or SIGINT. The supervisors that it started go on."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        database_url()
        settings = Settings.from_environment()
        metrics.serve(lambda: len(tasks.supervisors))
    except (DatabaseUnavailable, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if not os.environ.get("REDIS_URL"):
        print(
            "REDIS_URL is not set. `./pilot up` starts a private broker and sets it; otherwise give the address of "
            "yours, such as redis://:password@host:6379/0.",
            file=sys.stderr,
        )
        return 2
    # About root and pickle; nothing but JSON is accepted here.
    warnings.filterwarnings("ignore", category=SecurityWarning)
    sweep = SweepThread(settings)

    def start_sweep(**_: object) -> None:
        sweep.start()

    def stop_sweep(**_: object) -> None:
        sweep.stop()

    worker_ready.connect(start_sweep, weak=False)
    worker_shutting_down.connect(stop_sweep, weak=False)
    app.worker_main(
        [
            "--quiet",  # no banner
            "worker",
            "--pool=threads",
            "--concurrency=1",
            "--without-gossip",
            "--without-mingle",
            "--without-heartbeat",
            "--loglevel=INFO",
        ]
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
