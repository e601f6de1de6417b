"""Following a run: a stream of server-sent events, or one request that waits."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Final, Literal

import anyio
import anyio.to_thread
from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from api.answers import run_detail
from api.dependencies import CleanText, Reading, RunId
from api.openapi import problems
from api.problems import refused
from api.schemas import EvaluationOut, RunDetail, RunProgress, StepOut
from db import DatabaseUnavailable, feed, runs
from db.models import FINISHED_STATES, StepMetrics

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["what a run did"])

_LOOK_S: Final = 0.5  # between two looks into the database
_HEARTBEAT_S: Final = 15.0  # proxies close connections on which nothing is said
_RETRY_MS: Final = 2000
_PASSING: Final = (DatabaseUnavailable, OperationalError, PoolTimeout)


class WaitQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    until: Literal["finished", "started"] = Field(
        "finished", description="`finished`: stopped, succeeded or failed; `started`: no longer queued."
    )
    timeout: float = Field(30, ge=0, le=300, description="Seconds after which the answer comes in any case.")


@router.get("/wait", operation_id="wait_for_run", responses=problems("run-not-found", "invalid-request"))
async def wait_for_run(run_id: RunId, query: Annotated[WaitQuery, Query()], request: Request) -> RunDetail:
    """The run, as soon as it has got so far, or as it is when the time is over: look at its `state`, and ask again."""
    deadline = time.monotonic() + query.timeout
    while True:
        async with request.app.state.sessions:
            run = await anyio.to_thread.run_sync(_detail, request, run_id)
        waited = run.state not in FINISHED_STATES if query.until == "finished" else run.state == "queued"
        if not waited or time.monotonic() >= deadline or request.app.state.ending():
            return run
        await anyio.sleep(min(_LOOK_S, max(0.0, deadline - time.monotonic())))
        if await request.is_disconnected():
            return run


@router.get(
    "/events",
    operation_id="follow_run",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "`run` (a RunProgress, at first and at every change of state), `step` (a StepOut), "
            "`evaluation` (an EvaluationOut), and `end` (a RunProgress) once the run has ended and all was told.",
            "content": {
                "text/event-stream": {
                    "schema": {
                        "type": "object",
                        "properties": {name: {"type": "string"} for name in ("event", "id", "data")},
                    }
                }
            },
        },
        **problems("run-not-found", "invalid-request"),
    },
)
def follow_run(
    run_id: RunId,
    request: Request,
    session: Reading,
    last_event_id: Annotated[
        CleanText | None, Header(max_length=100, description="Id of the last event that was seen: goes on after it.")
    ] = None,
) -> StreamingResponse:
    """Server-sent events from the first step on, then as they happen, until the run has ended.

    Each `step` and `evaluation` has an id; a client that comes back with it in `Last-Event-ID` misses none and sees
    none twice. A run that lost its trainer repeats steps: when `attempt` grows in a `run` event, those of older
    attempts beyond its `from_step` are void.
    """
    runs.get(session, run_id)
    stream = _events(request, run_id, _position(last_event_id))
    return StreamingResponse(
        stream, media_type="text/event-stream", headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _events(request: Request, run_id: uuid.UUID, position: feed.Position) -> AsyncIterator[str]:
    told: tuple[Any, ...] | None = None
    spoke_at = time.monotonic()
    yield f"retry: {_RETRY_MS}\n\n"
    while not request.app.state.ending():
        try:
            async with request.app.state.sessions:
                progress, items, more = await anyio.to_thread.run_sync(partial(_look, request, run_id, position))
        except runs.RunNotFound:
            yield 'event: end\ndata: {"state": "deleted"}\n\n'
            return
        except _PASSING:
            progress, items, more = None, [], False  # the client waits as we do
        said = ""
        if progress is not None:
            state = progress.state, progress.reason, progress.attempt, progress.from_step
            if state != told:
                said += _event("run", progress)
                told = state
        for position, body in items:
            name = "step" if isinstance(body, StepOut) else "evaluation"
            said += _event(name, body, id=f"{position.attempt}.{position.step}.{int(position.evaluated)}")
        if progress is not None and progress.state in FINISHED_STATES and not more:
            yield said + _event("end", progress)
            return
        if said:
            yield said
            spoke_at = time.monotonic()
        elif time.monotonic() - spoke_at > _HEARTBEAT_S:
            yield ": nothing new\n\n"
            spoke_at = time.monotonic()
        if not more:
            await anyio.sleep(_LOOK_S)


_Items = list[tuple[feed.Position, StepOut | EvaluationOut]]


def _look(request: Request, run_id: uuid.UUID, after: feed.Position) -> tuple[RunProgress, _Items, bool]:
    with Session(request.app.state.snapshots) as session:
        news = feed.since(session, run_id, after)
        run = news.run
        progress = RunProgress.model_validate(
            {name: getattr(run, name) for name in RunProgress.model_fields if hasattr(run, name)}
            | {"from_step": news.from_step}
        )
        items: _Items = [
            (
                position,
                StepOut.model_validate(row, from_attributes=True)
                if isinstance(row, StepMetrics)
                else EvaluationOut.model_validate(row, from_attributes=True),
            )
            for position, row in news.items
        ]
        return progress, items, news.more


def _detail(request: Request, run_id: uuid.UUID) -> RunDetail:
    with Session(request.app.state.snapshots) as session:
        return run_detail(session, runs.get(session, run_id))


def _event(name: str, body: BaseModel, id: str | None = None) -> str:
    return f"event: {name}\n{f'id: {id}{chr(10)}' if id else ''}data: {body.model_dump_json()}\n\n"


def _position(text: str | None) -> feed.Position:
    if not text:
        return feed.Position()
    parts = text.split(".")
    if len(parts) == 3 and all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in parts):
        return feed.Position(int(parts[0]), int(parts[1]), parts[2] != "0")
    raise refused("header.last-event-id", text, "this is not the id of an event; leave it out to begin again")
