"""Marks of a run's prompts: pin, exclude, test again, or clear."""

from __future__ import annotations

from typing import Annotated, Final, Self

from fastapi import APIRouter, Depends, status
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.access import Runner
from api.dependencies import CleanText, RunId, Writing, json_body
from api.openapi import problems
from api.problems import ApiProblem, refused
from api.routes.prompts import Selection
from api.schemas import FieldProblem, PromptMarkName, PromptsMarked
from db import marks, views

MOST: Final = 10_000  # prompts in one request
NAMED: Final = 20  # of those that are refused, or in the audit log

router = APIRouter(prefix="/api/v1/runs/{run_id}/prompts/marks", tags=["prompts"])


class PromptsMark(BaseModel):
    """A mark for some prompts: those with these ids, or all of a selection."""

    model_config = ConfigDict(extra="forbid")
    mark: PromptMarkName = Field(examples=["exclude"])
    prompts: list[Annotated[CleanText, Field(max_length=200)]] | None = Field(
        None, min_length=1, max_length=MOST, description="Ids.", examples=[["5f2b8c0de1a94773"]]
    )
    selection: Selection | None = Field(
        None, description=f"As `list_prompts` takes it; at most {MOST:,} prompts may match."
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.prompts is None) == (self.selection is None):
            raise ValueError("give either `prompts`, a list of ids, or `selection`")
        return self


@router.post(
    "",
    status_code=status.HTTP_202_ACCEPTED,
    operation_id="mark_prompts",
    dependencies=[Depends(json_body)],
    responses=problems(
        "run-not-found", "wrong-state", "invalid-request", "invalid-json", "not-json", "body-too-large"
    ),
)  # fmt: skip
def mark_prompts(run_id: RunId, body: PromptsMark, caller: Runner, session: Writing) -> PromptsMarked:
    """Wish a mark for prompts; the trainer honours it from its next step on, and `applied_step` tells which that was.

    Asking again changes nothing. All of the prompts get it or, when one cannot, none. A run that is queued, or was
    stopped or failed, honours it when it goes on; one that has succeeded answers 409.
    """
    with session.begin():
        if body.selection is not None:
            ids = views.selected_ids(session, run_id, body.selection.filter(), MOST + 1)
            if len(ids) > MOST:
                raise refused("body.selection", None, f"more than {MOST:,} prompts match; narrow it")
        else:
            ids = body.prompts or []
        try:
            new = marks.wish(session, run_id, ids, body.mark, caller.name)
        except marks.PromptsRefused as error:
            raise _refused(error, body.prompts) from None
        before = dict(list(new.items())[:NAMED])
        caller.record(
            session, "prompts.mark", run_id, before={"marks": before}, after={"mark": body.mark, "prompts": len(new)}
        )
    return PromptsMarked(mark=body.mark, marked=len(new), unchanged=len(set(ids)) - len(new))


def _refused(error: marks.PromptsRefused, given: list[str] | None) -> ApiProblem:
    named = [
        FieldProblem(
            field=f"body.prompts.{given.index(id)}" if given else "body.selection", value=id, message=error.message
        )
        for id in error.ids[:NAMED]
    ]
    n = len(error.ids)
    more = f"; the first {NAMED} are named" if n > NAMED else ""
    detail = f"{'1 prompt is' if n == 1 else f'{n:,} prompts are'} not accepted{more}. Nothing was changed."
    return ApiProblem("invalid-request", detail, errors=named)
