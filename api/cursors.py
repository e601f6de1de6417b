"""Page cursors: opaque to clients, checked when they come back, tied to the question they belong to."""

from __future__ import annotations

import base64
import binascii
import uuid
from typing import Annotated, TypeVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from api.problems import refused


class Cursor(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RunsCursor(Cursor):
    """By sort key: NewestRuns, RunsByName, RunsByNumber."""

    filters: str
    id: uuid.UUID


class NewestRuns(RunsCursor):
    value: AwareDatetime


class RunsByName(RunsCursor):
    value: Annotated[str, Field(pattern=r"^[^\x00]*$")]


class RunsByNumber(RunsCursor):
    value: Annotated[float, Field(ge=-1, lt=2**63)]


RUNS: dict[str, type[NewestRuns | RunsByName | RunsByNumber]] = {
    "created": NewestRuns, "name": RunsByName, "accuracy": RunsByNumber, "rollouts": RunsByNumber,
    "state": RunsByNumber, "variance": RunsByNumber, "owner": RunsByName,
}  # fmt: skip


class PromptsCursor(Cursor):
    bucket: str | None
    search: str | None
    tag: str | None
    min_rate: float | None
    max_rate: float | None
    marked: str | None
    sort: str
    value: Annotated[float, Field(ge=-(2**31), lt=2**53)]
    id: Annotated[str, Field(pattern=r"^[^\x00]*$")]


class TokensCursor(Cursor):
    everything: str
    created_at: AwareDatetime
    id: uuid.UUID


class PromptSetsCursor(Cursor):
    name: str | None
    created_at: AwareDatetime
    id: uuid.UUID


class EvaluationsCursor(Cursor):
    filters: str
    created_at: AwareDatetime
    id: uuid.UUID


class AuditCursor(Cursor):
    target: str | None
    id: Annotated[int, Field(ge=0, lt=2**63)]


class DeliveriesCursor(Cursor):
    webhook: str
    id: Annotated[int, Field(ge=0, lt=2**63)]


_Cursor = TypeVar("_Cursor", bound=Cursor)


def encode(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(cursor.model_dump_json().encode()).decode().rstrip("=")


def decode(kind: type[_Cursor], text: str, **question: object) -> _Cursor:
    """The cursor in `text`. Raises ApiProblem when it is none of ours or belongs to another `question`."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        cursor = kind.model_validate_json(raw)
    except (ValidationError, ValueError, binascii.Error):
        raise refused(
            "query.cursor", text[:200], "this is not a next_cursor of a page of this list; leave it out to begin again"
        ) from None
    for name, value in question.items():
        if getattr(cursor, name) != value:
            raise refused(
                "query.cursor",
                text[:200],
                f"this cursor belongs to a page with another {name!r}; leave the cursor out to begin again",
            )
    return cursor
