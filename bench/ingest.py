"""How fast a trainer's event log goes into Postgres, and how much faster than row by row.

    python -m bench.ingest [--quick] [--json]

A log of steps as the paper has them (384 pilots and 128 commits each) is brought in as a supervisor does it: parsed,
checked, copied, and merged into the state of each prompt, in transactions of a few megabytes. At least 20,000 visits a
second are wanted, on two cores that have nothing else to do. The same visits, inserted one statement each, in one
transaction a step, are the yardstick; they are parsed beforehand and no state is kept of them. A private Postgres is
started for it, as `pilot up` does.
"""

from __future__ import annotations

import argparse
import datetime as dt
import random
import resource
import sys
import tempfile
import time
import uuid
from pathlib import Path

import psutil
import sqlalchemy as sa
from sqlalchemy.orm import Session

import db
from bench.verdict import finish
from cli import services
from db import ingest as tables
from db import leases
from db.models import PromptVisit, Run
from pipeline.events import (
    AttemptStarted,
    Count,
    EventLog,
    PromptRecord,
    PromptsLoaded,
    StepFinished,
    VisitRecord,
    events_path,
)
from worker.tail import Tail

POOL, PILOTS, COMMITS = 20_000, 384, 128
MOST_MIB = 256
LEAST_PER_S, LEAST_RATIO = 20_000, 5.0


def steps(n: int) -> list[StepFinished]:
    rng, rollouts, found = random.Random(0), 0, []
    for step in range(1, n + 1):
        prompts = [f"{i:016x}" for i in rng.sample(range(POOL), PILOTS + COMMITS)]
        visits = []
        for i, prompt in enumerate(prompts):
            commit = i < COMMITS
            size, rate = (96, rng.randrange(97) / 96) if commit else (32, rng.randrange(33) / 32)
            bucket = "committed" if commit else rng.choice(["ready", "skipped", "deferred", "evicted"])
            visits.append(
                VisitRecord(
                    prompt_id=prompt,
                    stage="commit" if commit else "pilot",
                    n=size,
                    n_failed=0,
                    success_rate=rate,
                    reward_variance=rate * (1 - rate),
                    tokens=size * rng.randrange(100, 400),
                    bucket=bucket,
                )
            )
        sampled = sum(v.n for v in visits)
        rollouts += sampled
        spend = Count(rollouts=sampled, tokens=sum(v.tokens for v in visits))
        found.append(
            StepFinished(
                step=step,
                epoch=1,
                metrics={f"metric_{i}": rng.random() for i in range(50)},
                fates={"trained": spend},
                buckets={"unseen": POOL},
                visits=visits,
                moves={},
                rollouts=rollouts,
                tokens=0,
            )
        )
    return found


def new_run(engine: sa.Engine) -> uuid.UUID:
    with Session(engine) as session, session.begin():
        run = Run(name="bench", config={}, config_digest="d", method="pilot_commit", model="m")
        session.add(run)
        session.flush()
        leases.claim(session, run.id, "bench:1:1:1", dt.timedelta(hours=1))
        tables.begin_attempt(session, leases.owned(session, run.id, 1), 1, "bench")
        return run.id


def row_by_row(engine: sa.Engine, run_id: uuid.UUID, told: list[StepFinished]) -> float:
    """Seconds for one INSERT per visit, each step in a transaction."""
    insert = sa.insert(PromptVisit)
    start = time.perf_counter()
    for event in told:
        with Session(engine) as session, session.begin():
            for position, visit in enumerate(event.visits):
                session.execute(
                    insert,
                    {"run_id": run_id, "step": event.step, "position": position, "attempt": 1, **visit._asdict()},
                )
    return time.perf_counter() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="60 steps instead of 400")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object, last")
    arguments = parser.parse_args()
    n_steps, n_naive = (60, 4) if arguments.quick else (400, 20)
    told = steps(n_steps)
    with tempfile.TemporaryDirectory(prefix="pilot-bench-") as folder:
        home = Path(folder)
        home.chmod(0o711)  # as root the server runs under a uid of its own
        with services.start(home / "services", {"REDIS_URL": ""}) as running:
            db.upgrade(running.database_url)
            engine = db.create_engine(running.database_url)
            run_id, run_dir = new_run(engine), home / "run"
            log = EventLog(events_path(run_dir, 1))
            log.append(AttemptStarted(attempt=1, from_step=0, lost=Count(), n_train=POOL, n_eval=1, model_parameters=1))
            for first in range(0, POOL, 1000):
                records = [
                    PromptRecord(id=f"{i:016x}", text=f"What is {i} + {i}?", answer=str(2 * i))
                    for i in range(first, first + 1000)
                ]
                log.append(PromptsLoaded(dataset="bench", name="bench", prompts=records))
            tail = Tail(engine, run_id, 1, 1, run_dir)
            tail.drain()
            prompts_end = events_path(run_dir, 1).stat().st_size
            for event in told:
                log.append(event)
            log.close()
            with engine.connect() as connection:
                backend = connection.scalar(sa.text("SELECT pg_backend_pid()"))
            server = psutil.Process(backend)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            start, own, theirs = time.perf_counter(), time.process_time(), sum(server.cpu_times()[:2])
            tail.drain()
            seconds = time.perf_counter() - start
            cpu = time.process_time() - own + sum(server.cpu_times()[:2]) - theirs
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
            with Session(engine) as session:
                n = session.scalar(sa.select(sa.func.count()).select_from(PromptVisit)) or 0
            assert n == n_steps * (PILOTS + COMMITS)
            mib = (events_path(run_dir, 1).stat().st_size - prompts_end) / 2**20
            naive_s = row_by_row(engine, new_run(engine), told[:n_naive])
            engine.dispose()
    naive = n_naive * (PILOTS + COMMITS) / naive_s
    figures = {
        "visits": n,
        "mib": mib,
        "visits_per_s": n / seconds,
        "visits_per_cpu_s": n / cpu,
        "memory_mib": memory,
        "row_by_row_visits_per_s": naive,
        "ratio": n / seconds / naive,
    }
    print(
        f"{n:,} visits of {n_steps} steps ({mib:.0f} MiB of log) in {seconds:.1f} s: {n / seconds:,.0f} a second "
        f"(bound {LEAST_PER_S:,}), {n / cpu:,.0f} a CPU second of both sides, {memory:.0f} MiB of memory more"
    )
    print(f"row by row: {naive:,.0f} a second; ratio {figures['ratio']:.1f} (bound {LEAST_RATIO})")
    missed = []
    if figures["visits_per_s"] < LEAST_PER_S:
        missed.append(f"visits_per_s is {figures['visits_per_s']:,.0f}, the bound is {LEAST_PER_S:,}")
    if figures["ratio"] < LEAST_RATIO:
        missed.append(f"ratio is {figures['ratio']:.1f}, the bound is {LEAST_RATIO}")
    if memory > MOST_MIB:
        missed.append(f"memory_mib is {memory:.0f}, the bound is {MOST_MIB}: the tail holds more than a few batches")
    return finish(figures, missed, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
