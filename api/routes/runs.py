"""Runs: start, list, look at, stop, resume."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response, status
from pydantic import BaseModel, ConfigDict, Field

from api import cursors
from api.access import Runner
from api.answers import run_detail, run_summary
from api.configs import accept
from api.dependencies import CleanText, Reading, RunId, Writing, json_body
from api.openapi import problems
from api.schemas import RunCreate, RunDetail, RunPage, RunState
from api.start import CREATED, IdempotencyKey, sent, start
from db import runs

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


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
        **CREATED,
        **problems("invalid-config", "invalid-request", "key-reused", "invalid-json", "not-json", "body-too-large"),
    },
)
def create_run(
    body: RunCreate, caller: Runner, session: Writing, response: Response, key: IdempotencyKey = None
) -> RunDetail:
    """Check a config, store the run and send it to a worker.

    Nothing is stored unless everything in the config is accepted. When the broker is away, the run is stored
    all the same: it stays queued, its `reason` says so, and a worker starts it when the broker is back.
    """
    return start(session, response, caller, key, "run.create", body.config, lambda: accept(body.config))


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
def stop_run(run_id: RunId, caller: Runner, session: Writing) -> RunDetail:
    """Ask a run to finish its step, save a checkpoint and end. A queued run is stopped at once.

    Asking again while it is stopping changes nothing; a finished run answers 409.
    """
    with session.begin():
        before = runs.get(session, run_id).state
        stopping = run_detail(runs.request_stop(session, run_id), runs.attempts(session, run_id))
        caller.record(session, "run.stop", run_id, before={"state": before}, after={"state": stopping.state})
    return stopping


@router.post(
    "/{run_id}/resume",
    status_code=status.HTTP_202_ACCEPTED,
    operation_id="resume_run",
    responses=problems("run-not-found", "wrong-state", "invalid-request"),
)
def resume_run(run_id: RunId, caller: Runner, session: Writing) -> RunDetail:
    """Queue a stopped or failed run again, from its newest checkpoint. 409 in every other state."""
    with session.begin():
        before = runs.get(session, run_id).state
        resumed = run_detail(runs.request_resume(session, run_id), runs.attempts(session, run_id))
        caller.record(session, "run.resume", run_id, before={"state": before}, after={"state": resumed.state})
    return sent(session, resumed)
