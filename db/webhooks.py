"""Webhooks and their deliveries. Nothing here commits.

A delivery is made at least once: it is claimed for a minute, sent outside of any transaction, and what came of it is
written down. One whose sender died is due again when the minute is over.
"""

from __future__ import annotations

import base64
import datetime as dt
import secrets
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import delete as sa_delete
from sqlalchemy import func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import insert as pg_insert
from sqlalchemy.orm import Session

from db.models import FINISHED_STATES, Delivery, RaisedAlert, Run, Webhook
from db.paging import newest

EVENTS: Final = ("run.state", "run.alert")
BACK_OFF_S: Final = (5, 30, 120, 600, 3600, 6 * 3600, 24 * 3600)
"""Seconds after a failed attempt; after the last one the delivery is given up."""
_CLAIM: Final = dt.timedelta(minutes=1)
_KEPT: Final = dt.timedelta(days=30)
_ALERTS_LOCK: Final = 0x414C455254  # any number, the same for every process that looks for alerts


class WebhookNotFound(LookupError):
    def __init__(self, webhook_id: uuid.UUID) -> None:
        super().__init__(f"there is no webhook {webhook_id}")


class Due(NamedTuple):
    """A delivery that is the caller's to make. attempt: 1 the first time."""

    id: int
    event: str
    body: dict[str, Any]
    created_at: dt.datetime
    attempt: int
    url: str
    secret: str


def create(session: Session, *, url: str, events: Sequence[str], created_by: str) -> Webhook:
    """A webhook with a new secret: `whsec_` and the base64 of 32 random bytes, which are the key of the signatures."""
    secret = "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()
    webhook = Webhook(url=url, events=list(events), secret=secret, created_by=created_by)
    session.add(webhook)
    session.flush()
    session.refresh(webhook)
    return webhook


def get(session: Session, webhook_id: uuid.UUID) -> Webhook:
    """Raises WebhookNotFound."""
    webhook = session.get(Webhook, webhook_id)
    if webhook is None:
        raise WebhookNotFound(webhook_id)
    return webhook


def listed(session: Session) -> Sequence[Webhook]:
    """All, oldest first."""
    return session.scalars(select(Webhook).order_by(Webhook.created_at, Webhook.id)).all()


def delete(session: Session, webhook_id: uuid.UUID) -> Webhook:
    """Remove it with its deliveries. Raises WebhookNotFound."""
    webhook = get(session, webhook_id)
    session.delete(webhook)
    session.flush()
    return webhook


def deliveries(
    session: Session, webhook_id: uuid.UUID, *, limit: int, after: int | None = None
) -> tuple[Sequence[Delivery], int | None]:
    """Up to `limit` deliveries, newest first, and the id after which the next page begins. Raises WebhookNotFound."""
    get(session, webhook_id)
    query = select(Delivery).where(Delivery.webhook_id == webhook_id)
    rows, more = newest(session, query, (Delivery.id,), limit, None if after is None else (after,))
    return rows, rows[-1].id if more else None


def add(session: Session, webhook_id: uuid.UUID, event: str, body: Mapping[str, Any]) -> Delivery:
    """Something to deliver to this webhook, whatever events it asked for."""
    delivery = Delivery(webhook_id=webhook_id, event=event, body=dict(body))
    session.add(delivery)
    session.flush()
    session.refresh(delivery)
    return delivery


def claim(session: Session, limit: int) -> list[Due]:
    """Deliveries that are due, oldest first; nobody else gets them for a minute."""
    due = (
        select(Delivery.id)
        .where(Delivery.delivered_at.is_(None), Delivery.given_up_at.is_(None), Delivery.due_at <= func.now())
        .order_by(Delivery.due_at)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    rows = session.execute(
        update(Delivery)
        .where(Delivery.id.in_(due), Webhook.id == Delivery.webhook_id)
        .values(attempts=Delivery.attempts + 1, due_at=func.now() + _CLAIM)
        .returning(
            Delivery.id, Delivery.event, Delivery.body, Delivery.created_at, Delivery.attempts, Webhook.url,
            Webhook.secret,
        )
        .execution_options(synchronize_session=False)
    ).all()  # fmt: skip
    return sorted(Due(*row) for row in rows)


def settle(session: Session, due: Due, *, status: int | None, error: str | None) -> None:
    """What came of an attempt. error: None when it was taken; else it is tried again later, or given up."""
    values: dict[str, Any] = {"status": status, "error": error}
    if error is None:
        values["delivered_at"] = func.now()
    elif due.attempt > len(BACK_OFF_S):
        values["given_up_at"] = func.now()
    else:
        values["due_at"] = func.now() + dt.timedelta(seconds=BACK_OFF_S[due.attempt - 1])
    session.execute(
        update(Delivery).where(Delivery.id == due.id).values(values).execution_options(synchronize_session=False)
    )


def forget_old(session: Session) -> None:
    """Deliveries that are over are kept for 30 days."""
    over = func.coalesce(Delivery.delivered_at, Delivery.given_up_at)
    session.execute(sa_delete(Delivery).where(over < func.now() - _KEPT))


def to_watch(session: Session) -> list[uuid.UUID]:
    """Runs whose alerts somebody wants to be told of; empty while another process looks at them."""
    if not session.scalar(select(func.pg_try_advisory_xact_lock(_ALERTS_LOCK))):
        return []
    wanted = select(literal(1)).where(Webhook.events.contains(["run.alert"])).exists()
    return list(
        session.scalars(
            select(Run.id).where(
                Run.state.not_in((*FINISHED_STATES, "queued")),
                Run.deleted_at.is_(None),
                Run.evaluates.is_(None),
                wanted,
            )
        )
    )


def raise_alerts(session: Session, run_id: uuid.UUID, alerts: Mapping[str, Mapping[str, Any]]) -> None:
    """Tell webhooks of the alerts, by kind, that were not told yet; those that are over may be told anew."""
    session.execute(
        sa_delete(RaisedAlert).where(RaisedAlert.run_id == run_id, RaisedAlert.kind.not_in(list(alerts) or [""]))
    )
    for kind, body in alerts.items():
        new = session.scalar(
            pg_insert(RaisedAlert).values(run_id=run_id, kind=kind).on_conflict_do_nothing().returning(RaisedAlert.kind)
        )
        if new is not None:
            told = select(Webhook.id, literal("run.alert"), literal(dict(body), Delivery.body.type)).where(
                Webhook.events.contains(["run.alert"])
            )
            session.execute(insert(Delivery).from_select(["webhook_id", "event", "body"], told))
