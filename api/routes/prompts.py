"""The prompts of a run: which are too hard, too easy or just right, and what each has cost."""

from __future__ import annotations

from typing import Annotated, cast

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from api import cursors
from api.answers import prompt_row
from api.dependencies import CleanText, PromptId, Reading, RunId
from api.openapi import problems
from api.schemas import Bucket, Move, PromptHistory, PromptPage, PromptSort, Visit
from db import views

router = APIRouter(prefix="/api/v1/runs/{run_id}/prompts", tags=["prompts"])


class PromptsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    bucket: Bucket | None = Field(None, description="Only prompts that are in this bucket now.")
    search: CleanText | None = Field(
        None, max_length=500, description="Part of the prompt's text in any case, or a whole id or tag."
    )
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
        at = cursors.decode(
            cursors.PromptsCursor, query.cursor, bucket=query.bucket, search=query.search, sort=query.sort
        )
        after = views.PromptCursor(at.value, at.id)
    found = views.prompts(
        session,
        run_id,
        bucket=query.bucket,
        search=query.search,
        sort=cast(views.SortKey, query.sort.removeprefix("-")),
        descending=query.sort.startswith("-"),
        limit=query.limit,
        after=after,
    )
    next_cursor = None
    if found.after is not None:
        at = cursors.PromptsCursor(
            bucket=query.bucket,
            search=query.search,
            sort=query.sort,
            value=found.after.value,
            id=found.after.id,
        )
        next_cursor = cursors.encode(at)
    return PromptPage(prompts=[prompt_row(row) for row in found.rows], total=found.total, next_cursor=next_cursor)


@router.get(
    "/{prompt_id}",
    operation_id="get_prompt",
    responses=problems("run-not-found", "prompt-not-found", "invalid-request"),
)
def get_prompt(run_id: RunId, prompt_id: PromptId, session: Reading) -> PromptHistory:
    """One prompt and all its visits in the order in which they happened."""
    history = views.prompt_history(session, run_id, prompt_id)
    return PromptHistory(
        prompt=prompt_row(history.prompt),
        visits=[Visit.model_validate(visit, from_attributes=True) for visit in history.visits],
        moves=[Move.model_validate(move, from_attributes=True) for move in history.moves],
    )
