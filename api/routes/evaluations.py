"""Evaluations on demand: of any checkpoint that a run has kept, by the workers, as runs are."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response, status
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field

from api import cursors
from api.access import Runner
from api.answers import checkpoint_evaluation, checkpoint_evaluations
from api.configs import accept_evaluation
from api.dependencies import CleanText, Reading, RunId, Writing, json_body
from api.openapi import problems
from api.problems import refused
from api.routes.files import LogQuery, folder, log_part
from api.schemas import CheckpointEvaluation, CheckpointEvaluations, EvaluationAsk, LogPart, RunState
from api.start import CREATED, IdempotencyKey, once
from db import evaluations, prompt_sets, runs
from db.models import FINISHED_STATES, Run
from db.paging import Place
from pipeline import rundir
from pipeline.config import RunConfig, VerlEngine, parse_config
from pipeline.prompts import sets_of

router = APIRouter(prefix="/api/v1", tags=["evaluations"])

EvaluationId = Annotated[
    uuid.UUID,
    PathParameter(description="The evaluation's id.", examples=["d41a7c2e-90b3-4f6e-8a52-1c7be9a5d033"]),
]


class EvaluationsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    run: uuid.UUID | None = Field(None, description="Only of this run's checkpoints.")
    state: list[RunState] = Field([], max_length=7, description="Only those in one of these states.")
    limit: int = Field(50, ge=1, le=200, description="Most evaluations in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")

    def filters(self) -> str:
        """What a cursor belongs to."""
        return self.model_dump_json(exclude={"limit", "cursor"})


@router.post(
    "/runs/{run_id}/evaluations",
    status_code=status.HTTP_201_CREATED,
    operation_id="create_evaluation",
    dependencies=[Depends(json_body)],
    responses={
        **CREATED,
        **problems(
            "run-not-found", "prompt-set-not-found", "wrong-state", "invalid-config", "invalid-request", "key-reused",
            "invalid-json", "not-json", "body-too-large",
        ),
    },
)  # fmt: skip
def create_evaluation(
    run_id: RunId,
    body: EvaluationAsk,
    caller: Runner,
    session: Writing,
    request: Request,
    response: Response,
    key: IdempotencyKey = None,
) -> CheckpointEvaluation:
    """Measure one of the run's checkpoints on benchmarks. It waits in the queue of runs for what its run needs.

    Its results come with the run's own evaluations of that step, its spend into the run's ledger under evaluation; the
    run's state stays as it is, and it may train meanwhile, on a slot of its own.
    """
    with session.begin():
        run = runs.get(session, run_id)
        _check_cluster(run)
        step = _step(folder(request, run_id), run, body.step)

    def store(config: RunConfig) -> CheckpointEvaluation:
        prompt_sets.hold(session, sets_of(config))
        row = evaluations.create(
            session,
            run_id,
            step=step,
            config=config.model_dump(mode="json"),
            config_digest=config.digest(),
            created_by=caller.name,
        )
        after = {"evaluation": str(row.id), "step": step, "benchmarks": [b.name for b in config.benchmarks]}
        caller.record(session, "run.evaluate", run_id, after=after)
        return checkpoint_evaluation(session, row)

    asked = ["run.evaluate", str(run_id), body.model_dump()]
    made = once(
        session, response, caller, key, asked, CheckpointEvaluation, lambda: accept_evaluation(run.config, body), store,
        checkpoint_evaluation,
    )  # fmt: skip
    response.headers["Location"] = f"/api/v1/evaluations/{made.id}"
    return made


@router.get("/evaluations", operation_id="list_evaluations", responses=problems("invalid-request"))
def list_evaluations(query: Annotated[EvaluationsQuery, Query()], session: Reading) -> CheckpointEvaluations:
    """What was asked for, newest first. The evaluations that runs make by themselves are in their metrics."""
    after = None
    if query.cursor is not None:
        at = cursors.decode(cursors.EvaluationsCursor, query.cursor, filters=query.filters())
        after = Place(at.created_at, at.id)
    rows, following = evaluations.page(session, run_id=query.run, states=query.state, limit=query.limit, after=after)
    next_cursor = None
    if following is not None:
        next_cursor = cursors.encode(cursors.EvaluationsCursor(filters=query.filters(), **following._asdict()))
    return CheckpointEvaluations(evaluations=checkpoint_evaluations(session, rows), next_cursor=next_cursor)


@router.get(
    "/evaluations/{evaluation_id}",
    operation_id="get_evaluation",
    responses=problems("evaluation-not-found", "invalid-request"),
)
def get_evaluation(evaluation_id: EvaluationId, session: Reading) -> CheckpointEvaluation:
    """One evaluation with its results."""
    return checkpoint_evaluation(session, evaluations.get(session, evaluation_id))


@router.post(
    "/evaluations/{evaluation_id}/stop",
    status_code=status.HTTP_202_ACCEPTED,
    operation_id="stop_evaluation",
    responses=problems("evaluation-not-found", "wrong-state", "invalid-request"),
)
def stop_evaluation(evaluation_id: EvaluationId, caller: Runner, session: Writing) -> CheckpointEvaluation:
    """Ask it to end. A queued one is stopped at once; what a running one has found is dropped. Ended: 409."""
    with session.begin():
        before = evaluations.get(session, evaluation_id)
        state, run_id = before.state, before.evaluates
        stopping = checkpoint_evaluation(session, runs.request_stop(session, evaluation_id))
        after = {"evaluation": str(evaluation_id), "state": stopping.state}
        caller.record(session, "run.evaluate.stop", run_id, before={"state": state}, after=after)
    return stopping


@router.get(
    "/evaluations/{evaluation_id}/log",
    operation_id="get_evaluation_log",
    responses=problems("evaluation-not-found", "invalid-request"),
)
def get_evaluation_log(
    evaluation_id: EvaluationId, query: Annotated[LogQuery, Query()], session: Reading, request: Request
) -> LogPart:
    """A part of what its process printed, as of a run's trainer."""
    return log_part(request, evaluations.get(session, evaluation_id), query)


def _check_cluster(run: Run) -> None:
    """Raises WrongState while the run trains on a Ray cluster, for that takes one job of ours at a time."""
    engine = parse_config(run.config).engine
    if isinstance(engine, VerlEngine) and engine.ray_address and run.state not in FINISHED_STATES:
        message = f"the run is {run.state} on the Ray cluster at {engine.ray_address}, which takes one job at a time"
        raise runs.WrongState(run.state, f"{message}; stop it first, then have it evaluated")


def _step(run_dir: Path, run: Run, asked: int | str) -> int:
    """The checkpoint that is asked for. Raises ApiProblem that says which there are; ConfigProblems."""
    kept = dict(rundir.checkpoints(run_dir))
    config = parse_config(run.config).checkpoint
    if isinstance(asked, int) and asked in kept:
        return asked
    if not kept:
        message = f"the run has no checkpoint: one is saved every {config.every} steps and at its end"
        raise refused("body.step", asked, message)
    if asked == "newest":
        return max(kept)
    if asked == "best":
        if ranked := rundir.most_accurate(run_dir):
            return ranked[0][0]
        raise refused("body.step", asked, f"none of the checkpoints was evaluated; there are {_named(kept)}")
    if int(asked) > run.step:
        message = f"the run has come to step {run.step}"
    elif int(asked) and int(asked) % config.every == 0:
        message = f"its checkpoint is not kept any more (checkpoint.keep={config.keep}, keep_best="
        message += f"{config.keep_best})"
    else:
        message = f"no checkpoint is saved there (checkpoint.every={config.every})"
    raise refused("body.step", asked, f"{message}; there are checkpoints of step {_named(kept)}")


def _named(kept: dict[int, Path]) -> str:
    return ", ".join(map(str, sorted(kept)))
