"""The prompts of a run: which are too hard, too easy or just right, and what each has cost."""

from __future__ import annotations

from typing import Annotated, Final, Literal, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from api import cursors, exports
from api.answers import prompt_row
from api.dependencies import CleanText, PromptId, Reading, RunId
from api.openapi import problems
from api.routes.files import download, folder
from api.schemas import (
    Bucket,
    Move,
    PromptHistory,
    PromptMarkName,
    PromptMarkOut,
    PromptPage,
    PromptRollouts,
    PromptSort,
    PromptTags,
    RolloutOut,
    TagCount,
    Visit,
)
from db import marks, views
from pipeline import rundir

MOST_CHARACTERS: Final = 4_000_000

router = APIRouter(prefix="/api/v1/runs/{run_id}/prompts", tags=["prompts"])


Rate = Annotated[float | None, Field(ge=0, le=1, allow_inf_nan=False)]


class Selection(BaseModel):
    """Which of a run's prompts; what is left out does not matter."""

    model_config = ConfigDict(extra="forbid")
    bucket: Bucket | None = Field(None, description="Only prompts that are in this bucket now.")
    search: CleanText | None = Field(
        None, max_length=500, description="Part of the prompt's text in any case, or a whole id or tag."
    )
    tag: CleanText | None = Field(None, max_length=500, description="Only prompts with this tag.")
    min_rate: Rate = Field(None, description="Least success rate at the last visit; leaves out unseen prompts.")
    max_rate: Rate = Field(None, description="Greatest success rate at the last visit; leaves out unseen prompts.")
    marked: Literal[PromptMarkName, "any"] | None = Field(
        None, description="Only prompts with this mark: it holds, or is to come."
    )

    def filter(self) -> views.PromptFilter:
        return views.PromptFilter(self.bucket, self.search, self.tag, self.min_rate, self.max_rate, self.marked)


class PromptsQuery(Selection):
    sort: PromptSort = Field(
        "-visits",
        description="`-` means largest first. Prompts without a value come last in both directions.",
    )
    limit: int = Field(50, ge=1, le=500, description="Most prompts in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")


@router.get("", operation_id="list_prompts", responses=problems("run-not-found", "invalid-request"))
def list_prompts(run_id: RunId, query: Annotated[PromptsQuery, Query()], session: Reading) -> PromptPage:
    """The run's training prompts, untouched ones included. Empty until the trainer has read its prompts."""
    after = None
    if query.cursor is not None:
        at = cursors.decode(cursors.PromptsCursor, query.cursor, **query.filter()._asdict(), sort=query.sort)
        after = views.PromptCursor(at.value, at.id)
    found = views.prompts(
        session,
        run_id,
        which=query.filter(),
        sort=cast(views.SortKey, query.sort.removeprefix("-")),
        descending=query.sort.startswith("-"),
        limit=query.limit,
        after=after,
    )
    next_cursor = None
    if found.after is not None:
        at = cursors.PromptsCursor(
            **query.filter()._asdict(), sort=query.sort, value=found.after.value, id=found.after.id
        )
        next_cursor = cursors.encode(at)
    held = marks.current(session, run_id, [row.id for row in found.rows])
    rows = [prompt_row(row, held.get(row.id, ())) for row in found.rows]
    return PromptPage(prompts=rows, total=found.total, next_cursor=next_cursor)


@router.get("/tags", operation_id="list_prompt_tags", responses=problems("run-not-found", "invalid-request"))
def list_prompt_tags(
    run_id: RunId, session: Reading, limit: Annotated[int, Query(ge=1, le=500, description="Most tags to answer.")] = 50
) -> PromptTags:
    """The most frequent tags of the run's training prompts."""
    return PromptTags(tags=[TagCount(tag=tag, prompts=n) for tag, n in views.tags(session, run_id, limit)])


class ExportQuery(Selection):
    format: Literal["jsonl", "parquet"] = Field("jsonl", description="JSON lines or Parquet.")


@router.get(
    "/export",
    operation_id="export_prompts",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The prompts, by id.",
            "content": {"application/x-ndjson": {}, "application/vnd.apache.parquet": {}},
        },
        **problems("run-not-found", "invalid-request"),
    },
)
def export_prompts(run_id: RunId, query: Annotated[ExportQuery, Query()], session: Reading) -> StreamingResponse:
    """All prompts of a selection: prompt, answer and tags, as `data.train` of another run takes them, and how each
    stands in this run.
    """
    rows = views.selected(session, run_id, query.filter())
    file = exports.written(rows, query.format)
    media_type = {"jsonl": "application/x-ndjson", "parquet": "application/vnd.apache.parquet"}[query.format]
    return download(file, f"{run_id}-prompts.{query.format}", media_type)


class PromptRolloutsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    before: int = Field(2**31 - 1, ge=1, lt=2**31, description="Only steps before this one; `next_step` goes on.")
    steps: int = Field(4, ge=1, le=20, description="Most visited steps to read.")


@router.get(
    "/{prompt_id}/rollouts",
    operation_id="list_prompt_rollouts",
    responses=problems("run-not-found", "prompt-not-found", "invalid-request"),
)
def list_prompt_rollouts(
    run_id: RunId,
    prompt_id: PromptId,
    query: Annotated[PromptRolloutsQuery, Query()],
    session: Reading,
    request: Request,
) -> PromptRollouts:
    """What the policy answered to one prompt, from the steps that visited it, the newest first. An answer of more than
    4 MB ends after the step that passed it.
    """
    at = 0
    visited = views.visited_steps(session, run_id, prompt_id, query.before, query.steps + 1)
    session.close()  # the files may be large
    rollouts: list[RolloutOut] = []
    missing: list[int] = []
    size = 0
    for step in visited[: query.steps]:
        at += 1
        try:
            rows = rundir.rollouts_of(folder(request, run_id), step, prompt_id)
        except FileNotFoundError:
            missing.append(step)
            continue
        rollouts += [RolloutOut.model_validate(row) for row in rows]
        size += sum(len(row["response"]) + len(row["verdicts"] or "") for row in rows)
        if size > MOST_CHARACTERS:
            break
    return PromptRollouts(rollouts=rollouts, missing=missing, next_step=visited[at - 1] if len(visited) > at else None)


@router.get(
    "/{prompt_id}",
    operation_id="get_prompt",
    responses=problems("run-not-found", "prompt-not-found", "invalid-request"),
)
def get_prompt(run_id: RunId, prompt_id: PromptId, session: Reading) -> PromptHistory:
    """One prompt and all its visits in the order in which they happened."""
    history = views.prompt_history(session, run_id, prompt_id)
    held = marks.current(session, run_id, [prompt_id])
    return PromptHistory(
        prompt=prompt_row(history.prompt, held.get(prompt_id, ())),
        visits=[Visit.model_validate(visit, from_attributes=True) for visit in history.visits],
        moves=[Move.model_validate(move, from_attributes=True) for move in history.moves],
        marks=[PromptMarkOut.model_validate(mark, from_attributes=True) for mark in history.marks],
    )
