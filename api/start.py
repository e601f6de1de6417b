"""Starting a run: stored once, however often the request arrives, and then sent to a worker."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Final

from fastapi import Header, Response
from sqlalchemy.orm import Session

from api.access import Caller
from api.answers import run_detail
from api.dependencies import CleanText
from api.schemas import RunDetail
from db import idempotency, prompt_sets, runs
from pipeline.config import RunConfig
from pipeline.prompts import sets_of
from worker import queue

BROKER_AWAY: Final = (
    "the broker cannot be reached (check that it runs and that REDIS_URL is right); a worker finds the run all the same"
)
IdempotencyKey = Annotated[
    CleanText | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Any text that is new for each run to start. Sent again within 24 hours, with the same body, it "
        "gets the first answer again and starts nothing; so a request whose answer was lost can be repeated.",
    ),
]
CREATED: Final[dict[int | str, dict[str, Any]]] = {
    201: {
        "headers": {
            "Location": {"description": "Address of the run.", "schema": {"type": "string"}},
            "Idempotency-Replayed": {
                "description": "`true`: this is the answer that an earlier request with the same key got.",
                "schema": {"type": "string"},
            },
        }
    }
}


def start(
    session: Session,
    response: Response,
    caller: Caller,
    key: str | None,
    action: str,
    request: object,
    config: Callable[[], RunConfig],
    *,
    priority: int = 0,
    cloned_from: uuid.UUID | None = None,
) -> RunDetail:
    """Create the run, unless the same request with the same key did, and fill in the response's headers.

    request: what the key stands for, as JSON. config: called when the run is needed; may raise ConfigProblems.
    Raises KeyReused.
    """
    digest = hashlib.sha256(json.dumps([action, request], sort_keys=True).encode()).hexdigest()
    earlier = None
    if key is not None:
        with session.begin():
            earlier = idempotency.find(session, caller.id, key, digest)
    if earlier is None:
        accepted = config()  # reads files: not within a transaction
        with session.begin():
            if key is not None:
                earlier = idempotency.take(session, caller.id, key, digest)
            if earlier is None:
                prompt_sets.hold(session, sets_of(accepted))
                created = _create(session, caller, action, accepted, priority, cloned_from)
                if key is not None:
                    idempotency.keep(session, caller.id, key, created.model_dump(mode="json"))
    if earlier is not None:
        run = RunDetail.model_validate(earlier)
        response.headers["Idempotency-Replayed"] = "true"
    else:
        run = sent(session, created)
        if key is not None and run.reason != created.reason:
            with session.begin():
                idempotency.keep(session, caller.id, key, run.model_dump(mode="json"))
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run


def sent(session: Session, run: RunDetail) -> RunDetail:
    """The run after it was sent to a worker. Call it after the commit: a worker must find what it is sent."""
    try:
        queue.enqueue(run.id)
    except queue.BrokerUnavailable:
        with session.begin():
            row = runs.set_queued_reason(session, run.id, BROKER_AWAY)
            return run_detail(session, row)
    return run


def _create(
    session: Session, caller: Caller, action: str, config: RunConfig, priority: int, cloned_from: uuid.UUID | None
) -> RunDetail:
    run = runs.create(
        session,
        name=config.name,
        config=config.model_dump(mode="json"),
        config_digest=config.digest(),
        method=config.method.name,
        model=config.model.path,
        device=config.engine.devices.kind,
        n_devices=config.engine.devices.n,
        priority=priority,
        cloned_from=cloned_from,
        created_by=caller.name,
    )
    after = {"name": run.name, "method": run.method, "model": run.model, "config_digest": run.config_digest}
    if cloned_from is not None:
        after["cloned_from"] = str(cloned_from)
    caller.record(session, action, run.id, after=after)
    return run_detail(session, run)
