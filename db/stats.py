"""Numbers over all runs, for monitoring. Cheap enough to be asked every few seconds."""

from __future__ import annotations

from typing import NamedTuple

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from db import slots
from db.models import DEVICES, RUN_STATES, Delivery, Run


class Stats(NamedTuple):
    """runs: number by state. slots, free: offered by live hosts, by kind of device.

    rollouts, tokens: of all runs that are not deleted, for training. oldest_queued_s: how long the run that waits
    longest has waited, 0 with none. deliveries: to webhooks, still to be made.
    """

    runs: dict[str, int]
    slots: dict[str, int]
    free: dict[str, int]
    rollouts: int
    tokens: int
    oldest_queued_s: float
    deliveries: int


def collect(session: Session) -> Stats:
    rows = session.execute(
        select(
            Run.state,
            func.count(),
            func.sum(Run.rollouts),
            func.sum(Run.tokens),
            func.extract("epoch", func.now() - func.min(Run.created_at)),
        )
        .where(Run.deleted_at.is_(None), Run.evaluates.is_(None))
        .group_by(Run.state)
    ).all()
    waits = {state: float(seconds) for state, _, _, _, seconds in rows}
    pending = session.scalar(
        select(func.count()).where(Delivery.delivered_at.is_(None), Delivery.given_up_at.is_(None))
    )
    hosts = slots.hosts(session)
    return Stats(
        runs=dict.fromkeys(RUN_STATES, 0) | {state: n for state, n, _, _, _ in rows},
        slots={kind: sum(host.count(kind) for host in hosts) for kind in DEVICES},
        free={kind: sum(host.free(kind) for host in hosts) for kind in DEVICES},
        rollouts=int(sum(rollouts for _, _, rollouts, _, _ in rows)),
        tokens=int(sum(tokens for _, _, _, tokens, _ in rows)),
        oldest_queued_s=waits.get("queued", 0.0),
        deliveries=pending or 0,
    )
