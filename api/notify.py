"""The thread that tells webhooks: it looks for new alerts, and delivers what is due.

Deliveries follow the Standard Webhooks specification: `webhook-id`, `webhook-timestamp` and `webhook-signature`, an
HMAC-SHA256 of id, timestamp and body. Several API processes may run one each: deliveries are claimed.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from api.answers import alerts_now
from api.outbound import AddressRefused, Network, post
from db import DatabaseUnavailable, webhooks
from db.runs import RunNotFound

_log = logging.getLogger("api.notify")
_EVERY_S: Final = 1.0
_ALERTS_EVERY_S: Final = 10.0
_AT_ONCE: Final = 4


class Notifier(threading.Thread):
    def __init__(self, engine: sa.Engine, allowed: Sequence[Network]) -> None:
        super().__init__(name="notify", daemon=True)
        self._engine, self._allowed = engine, allowed
        self._end = threading.Event()

    def run(self) -> None:
        looked_at = 0.0
        while not self._end.wait(_EVERY_S):
            try:
                if time.monotonic() - looked_at >= _ALERTS_EVERY_S:
                    looked_at = time.monotonic()
                    look(self._engine)
                while deliver(self._engine, self._allowed) and not self._end.is_set():
                    pass  # there may be more
            except (DatabaseUnavailable, sa.exc.SQLAlchemyError) as error:
                _log.warning("webhooks wait: %s", error)
            except Exception:  # whatever it is, the next round is due
                _log.exception("webhooks could not be told")

    def stop(self) -> None:
        self._end.set()
        self.join(timeout=15)


def look(engine: sa.Engine) -> None:
    """Note new alerts for delivery."""
    with Session(engine) as session, session.begin():
        webhooks.forget_old(session)
        for run_id in webhooks.to_watch(session):
            try:
                alerts = alerts_now(session, run_id)
            except RunNotFound:
                continue  # deleted meanwhile
            told = {alert.kind: {"run": str(run_id), **alert.model_dump()} for alert in alerts}
            webhooks.raise_alerts(session, run_id, told)


def deliver(engine: sa.Engine, allowed: Sequence[Network]) -> int:
    """One round: what is due, a few at a time. Returns how many were tried."""
    with Session(engine) as session, session.begin():
        due = webhooks.claim(session, _AT_ONCE)
    if due:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            results = list(pool.map(lambda one: _send(one, allowed), due))
        with Session(engine) as session, session.begin():
            for one, (status, error) in zip(due, results, strict=True):
                webhooks.settle(session, one, status=status, error=error)
    return len(due)


def signed(due: webhooks.Due, timestamp: int) -> tuple[bytes, dict[str, str]]:
    """The body and headers of a delivery."""
    body = json.dumps({"type": due.event, "timestamp": due.created_at.isoformat(), "data": due.body}).encode()
    key = base64.b64decode(due.secret.removeprefix("whsec_"))
    content = f"{due.id}.{timestamp}.".encode() + body
    signature = base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode()
    return body, {
        "content-type": "application/json",
        "user-agent": "pilot-commit",
        "webhook-id": str(due.id),
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }


def _send(due: webhooks.Due, allowed: Sequence[Network]) -> tuple[int | None, str | None]:
    """(status, error) of one attempt; error is None when it was taken."""
    body, headers = signed(due, int(time.time()))
    try:
        status = post(due.url, body, headers, allowed)
    except (AddressRefused, OSError) as error:
        return None, str(error)
    return status, None if 200 <= status < 300 else f"it answered {status}; an answer from 200 to 299 is needed"
