"""Starting a run, or an evaluation: stored once, however often the request arrives, and then sent to a worker."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

from fastapi import Header, Response
from sqlalchemy.orm import Session

from api.access import Caller
from api.answers import run_detail
from api.dependencies import CleanText
from api.schemas import CheckpointEvaluation, RunDetail
from db import idempotency, prompt_sets, runs
from db.models import Run
from pipeline.config import RunConfig
from pipeline.prompts import sets_of
from worker import queue

_Made = TypeVar("_Made", RunDetail, CheckpointEvaluation)
_Prepared = TypeVar("_Prepared")
BROKER_AWAY: Final = (
    "the broker cannot be reached (check that it runs and that REDIS_URL is right); a worker finds the run all the same"
)
IdempotencyKey = Annotated[
    CleanText | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="Any text that is new for each run or evaluation. Sent again within 24 hours, with "
        "the same body, it gets the first answer again and starts nothing: a request whose answer was lost may be "
        "repeated.",
    ),
]
CREATED: Final[dict[int | str, dict[str, Any]]] = {
    201: {
        "headers": {
            "Location": {"description": "Address of what was created.", "schema": {"type": "string"}},
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

    def store(accepted: RunConfig) -> RunDetail:
        prompt_sets.hold(session, sets_of(accepted))
        return _create(session, caller, action, accepted, priority, cloned_from)

    run = once(session, response, caller, key, [action, request], RunDetail, config, store, run_detail)
    response.headers["Location"] = f"/api/v1/runs/{run.id}"
    return run


def once(
    session: Session,
    response: Response,
    caller: Caller,
    key: str | None,
    request: object,
    body: type[_Made],
    prepare: Callable[[], _Prepared],
    store: Callable[[_Prepared], _Made],
    shown: Callable[[Session, Run], _Made],
) -> _Made:
    """Put something into the queue and tell the workers, unless the same request with the same key did.

    prepare: what takes long, called outside of a transaction and only when it is needed. store: within one. shown: the
    answer from the row. Raises KeyReused, and what these raise.
    """
    digest = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    earlier = None
    if key is not None:
        with session.begin():
            earlier = idempotency.find(session, caller.id, key, digest)
    if earlier is None:
        prepared = prepare()
        with session.begin():
            if key is not None:
                earlier = idempotency.take(session, caller.id, key, digest)
            if earlier is None:
                created = store(prepared)
                if key is not None:
                    idempotency.keep(session, caller.id, key, created.model_dump(mode="json"))
    if earlier is not None:
        response.headers["Idempotency-Replayed"] = "true"
        return body.model_validate(earlier)
    made = sent(session, created, shown)
    if key is not None and made.reason != created.reason:
        with session.begin():
            idempotency.keep(session, caller.id, key, made.model_dump(mode="json"))
    return made


def sent(session: Session, made: _Made, shown: Callable[[Session, Run], _Made]) -> _Made:
    """The run or evaluation after it was sent to a worker. Call it after the commit: a worker must find it."""
    try:
        queue.enqueue(made.id)
    except queue.BrokerUnavailable:
        with session.begin():
            return shown(session, runs.set_queued_reason(session, made.id, BROKER_AWAY))
    return made


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
