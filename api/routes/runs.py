"""Runs: start, list, look at, stop, resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response, status
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session

from api import cursors
from api.answers import run_detail, run_summary
from api.configs import accept
from api.dependencies import CleanText, Reading, RunId, Writing, json_body
from api.openapi import problems
from api.schemas import RunCreate, RunDetail, RunPage, RunState
from db import runs
from worker import queue

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])

BROKER_AWAY = (
    "queued, but the broker cannot be reached; a worker starts the run when the broker is back. "
    "Check that it runs and that REDIS_URL is right."
)


class RunsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    state: RunState | None = Field(None, description="Only runs in this state.")
    limit: int = Field(50, ge=1, le=200, description="Most runs in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    operation_id="create_run",
    dependencies=[Depends(json_body)],
    responses={
        201: {"headers": {"Location": {"description": "Address of the run.", "schema": {"type": "string"}}}},
        **problems("invalid-config", "invalid-request", "invalid-json", "not-json", "body-too-large"),
    },
)
def create_run(body: RunCreate, session: Writing, response: Response) -> RunDetail:
    """Check a config, store the run and send it to a worker.

    Nothing is stored unless everything in the config is accepted. When the broker is away, the run is stored
    all the same: it stays queued, its `reason` says so, and a worker starts it when the broker is back.
    """
    config = accept(body.config)
    with session.begin():
        run = runs.create(
            session,
            name=config.name,
            config=config.model_dump(mode="json"),
            config_digest=config.digest(),
            method=config.method.name,
            model=config.model.path,
            device=config.engine.devices.kind,
            n_devices=config.engine.devices.n,
        )
        created = run_detail(run, [])
    response.headers["Location"] = f"{router.prefix}/{created.id}"
    return _sent(session, created)


@router.get("", operation_id="list_runs", responses=problems("invalid-request"))
def list_runs(query: Annotated[RunsQuery, Query()], session: Reading) -> RunPage:
    """Runs, newest first. Runs created meanwhile neither repeat nor displace any on later pages."""
    after = None
    if query.cursor is not None:
        at = cursors.decode(cursors.RunsCursor, query.cursor, state=query.state)
        after = runs.RunCursor(at.created_at, at.id)
    rows, following = runs.page(session, state=query.state, limit=query.limit, after=after)
    next_cursor = None
    if following is not None:
        next_cursor = cursors.encode(
            cursors.RunsCursor(state=query.state, created_at=following.created_at, id=following.id)
        )
    return RunPage(runs=[run_summary(run) for run in rows], next_cursor=next_cursor)


@router.get("/{run_id}", operation_id="get_run", responses=problems("run-not-found", "invalid-request"))
def get_run(run_id: RunId, session: Reading) -> RunDetail:
    """One run with its config and attempts."""
    return run_detail(runs.get(session, run_id), runs.attempts(session, run_id))


@router.post(
    "/{run_id}/stop",
    status_code=status.HTTP_202_ACCEPTED,
    operation_id="stop_run",
    responses=problems("run-not-found", "wrong-state", "invalid-request"),
)
def stop_run(run_id: RunId, session: Writing) -> RunDetail:
    """Ask a run to finish its step, save a checkpoint and end. A queued run is stopped at once.

    Asking again while it is stopping changes nothing; a finished run answers 409.
    """
    with session.begin():
        return run_detail(runs.request_stop(session, run_id), runs.attempts(session, run_id))


@router.post(
    "/{run_id}/resume",
    status_code=status.HTTP_202_ACCEPTED,
    operation_id="resume_run",
    responses=problems("run-not-found", "wrong-state", "invalid-request"),
)
def resume_run(run_id: RunId, session: Writing) -> RunDetail:
    """Queue a stopped or failed run again, from its newest checkpoint. 409 in every other state."""
    with session.begin():
        resumed = run_detail(runs.request_resume(session, run_id), runs.attempts(session, run_id))
    return _sent(session, resumed)


def _sent(session: Session, run: RunDetail) -> RunDetail:
    """The run after it was sent to a worker. Call it after the commit: a worker must find what it is sent."""
    try:
        queue.enqueue(run.id)
    except queue.BrokerUnavailable:
        with session.begin():
            row = runs.set_queued_reason(session, run.id, BROKER_AWAY)
            return run_detail(row, runs.attempts(session, run.id))
    return run
