"""Runs: start, list, look at, stop, resume, clone, label, archive, move in the queue, delete."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response, status
from pydantic import BaseModel, ConfigDict, Field

from api import cursors
from api.access import Runner
from api.answers import run_detail, run_summaries
from api.configs import accept, merged
from api.dependencies import CleanText, Reading, RunId, Writing, json_body
from api.etags import IfNoneMatch, answered, conditional
from api.openapi import problems
from api.schemas import RunChange, RunClone, RunCreate, RunDetail, RunFacets, RunPage, RunSort, RunState
from api.start import CREATED, IdempotencyKey, sent, start
from db import run_list, runs
from db.models import Run

router = APIRouter(prefix="/api/v1/runs", tags=["runs"])


class RunsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    state: list[RunState] = Field([], max_length=7, description="Only runs in one of these states.")
    method: CleanText | None = Field(None, description="Only runs of this method.")
    tag: CleanText | None = Field(None, description="Only runs with this tag.")
    owner: CleanText | None = Field(None, description="Only runs that the token of this name created.")
    search: CleanText | None = Field(
        None,
        max_length=200,
        description="Part of the name or of the model's path in any case, a whole tag, or the beginning of the id.",
    )
    archived: run_list.Archived = Field("no", description="`any`: archived ones, too; `only`: no others.")
    sort: RunSort = Field("-created", description="A leading `-` means newest or largest first.")
    limit: int = Field(50, ge=1, le=200, description="Most runs in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")

    def filters(self) -> str:
        """What a cursor belongs to."""
        return self.model_dump_json(exclude={"limit", "cursor"})


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
    return start(
        session,
        response,
        caller,
        key,
        "run.create",
        body.model_dump(),
        lambda: accept(body.config),
        priority=body.priority,
    )


@router.get("", operation_id="list_runs", responses=problems("invalid-request"))
def list_runs(query: Annotated[RunsQuery, Query()], session: Reading) -> RunPage:
    """Runs, filtered and sorted. Of the newest first, those created meanwhile neither repeat nor displace any."""
    after, descending = None, query.sort.startswith("-")
    sort: run_list.Sort = query.sort.removeprefix("-")  # type: ignore[assignment]
    kind = cursors.RUNS[sort]
    if query.cursor is not None:
        at = cursors.decode(kind, query.cursor, filters=query.filters())
        after = run_list.RunPlace(at.value, at.id)
    wanted = run_list.Filter(query.state, query.method, query.tag, query.owner, query.search, query.archived)
    rows, total, following = run_list.page(
        session, wanted, sort=sort, descending=descending, limit=query.limit, after=after
    )
    next_cursor = None
    if following is not None:
        place = {"filters": query.filters(), "value": following.value, "id": following.id}
        next_cursor = cursors.encode(kind.model_validate(place))
    return RunPage(runs=run_summaries(session, rows), total=total, next_cursor=next_cursor)


@router.get("/facets", operation_id="list_facets")
def list_facets(session: Reading) -> RunFacets:
    """What runs can be filtered by: the methods, tags and owners that there are."""
    return RunFacets.model_validate(run_list.facets(session)._asdict())


@router.get("/{run_id}", operation_id="get_run", responses=problems("run-not-found", "invalid-request"))
def get_run(run_id: RunId, session: Reading) -> RunDetail:
    """One run with its config and attempts."""
    return run_detail(session, runs.get(session, run_id))


@router.get(
    "/{run_id}/config",
    operation_id="get_config",
    response_model=None,
    responses={**conditional("The run's config, whole."), **problems("run-not-found", "invalid-request")},
)
def get_config(run_id: RunId, session: Reading, response: Response, if_none_match: IfNoneMatch = None) -> Any:
    """The run's config with all defaults. It never changes; a clone has another one."""
    run = runs.get(session, run_id)
    return answered(run.config, run.config_digest, response, if_none_match)


@router.patch(
    "/{run_id}",
    operation_id="change_run",
    dependencies=[Depends(json_body)],
    responses=problems(
        "run-not-found", "wrong-state", "invalid-request", "invalid-json", "not-json", "body-too-large"
    ),
)  # fmt: skip
def change_run(run_id: RunId, body: RunChange, caller: Runner, session: Writing) -> RunDetail:
    """Name, tag or archive a run, or move it in the queue: now, or when it is resumed."""
    changes = body.model_dump(exclude_none=True)
    with session.begin():
        before = _labels(runs.get(session, run_id))
        if body.priority is not None:
            runs.set_priority(session, run_id, body.priority)
        run = runs.set_labels(session, run_id, name=body.name, tags=body.tags)
        if body.archived is not None:
            run = runs.archive(session, run_id, body.archived)
        caller.record(session, "run.change", run_id, before={name: before[name] for name in changes}, after=changes)
        return run_detail(session, run)


def _labels(run: Run) -> dict[str, Any]:
    archived = run.archived_at is not None
    return {"name": run.name, "tags": list(run.tags), "archived": archived, "priority": run.priority}


@router.delete(
    "/{run_id}",
    operation_id="delete_run",
    responses=problems("run-not-found", "wrong-state", "invalid-request"),
)
def delete_run(run_id: RunId, caller: Runner, session: Writing) -> RunDetail:
    """Delete a run that has ended: its numbers, checkpoints and rollouts. There is no way back.

    It is gone from every list at once; a worker removes its files and rows. Answers the run as it was.
    """
    with session.begin():
        deleted = run_detail(session, runs.get(session, run_id))
        runs.delete(session, run_id)
        caller.record(session, "run.delete", run_id, before={"name": deleted.name, "state": deleted.state})
    return deleted


@router.post(
    "/{run_id}/clone",
    status_code=status.HTTP_201_CREATED,
    operation_id="clone_run",
    dependencies=[Depends(json_body)],
    responses={
        **CREATED,
        **problems(
            "run-not-found", "invalid-config", "invalid-request", "key-reused", "invalid-json", "not-json",
            "body-too-large",
        ),
    },
)  # fmt: skip
def clone_run(
    run_id: RunId, body: RunClone, caller: Runner, session: Writing, response: Response, key: IdempotencyKey = None
) -> RunDetail:
    """Start a new run with this one's config and some changes. It begins at step 0; only the config is taken over."""
    with session.begin():
        source = runs.get(session, run_id).config
    return start(
        session,
        response,
        caller,
        key,
        "run.clone",
        {"run": str(run_id), **body.model_dump()},
        lambda: accept(merged(source, body.config)),
        priority=body.priority,
        cloned_from=run_id,
    )


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
        stopping = run_detail(session, runs.request_stop(session, run_id))
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
        resumed = run_detail(session, runs.request_resume(session, run_id))
        caller.record(session, "run.resume", run_id, before={"state": before}, after={"state": resumed.state})
    return sent(session, resumed, run_detail)
