"""Writing down how an attempt and its run ended: by its supervisor, or by the sweep when that one is gone too."""

from __future__ import annotations

import uuid

from sqlalchemy.orm import Session

from db import ingest as tables
from db import leases, slots
from pipeline.events import AttemptFinished
from worker import host
from worker.outcome import Death, Outcome, judge


def settle(
    session: Session,
    run_id: uuid.UUID,
    fence: int,
    end: AttemptFinished | Death,
    *,
    exit_code: int | None = None,
    shut_down: bool = False,
    gone: bool = True,
    seconds: float | None = None,
    passed: str | None = None,
) -> Outcome:
    """Finish the run's newest attempt, put the run into its next state, give back the lease and this host's slots.

    The caller has ingested all events and ended all processes of the attempt on this host. gone: it has succeeded;
    else the slots stay held until a sweep does. seconds: how long the trainer ran; None: what its supervisor last said.
    passed: as in `judge`. Raises LeaseLost.
    """
    run = leases.owned(session, run_id, fence)
    outcome = judge(
        end,
        stop_asked=run.stop_requested_at is not None,
        shut_down=shut_down,
        checkpoint=tables.newest_checkpoint(session, run),
        setbacks=run.setbacks,
        passed=passed,
        evaluation=run.evaluates is not None,
    )
    tables.finish_attempts(session, run, outcome.attempt, outcome.reason, exit_code, seconds)
    if outcome.run == "queued":
        tables.queue_again(run, outcome.reason)
    else:
        tables.finish_run(run, outcome.run, outcome.reason)
    session.flush()
    leases.release(session, run_id, fence)
    if gone:
        slots.free(session, host.HOST, run_id, fence)
    return outcome
