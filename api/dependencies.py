"""What routes are given: a database session for reading, one for writing, and checked parameters."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Annotated

from fastapi import Depends, Path, Request
from pydantic import AfterValidator
from sqlalchemy.orm import Session

from api.problems import ApiProblem, refused
from db import views


def _no_nul(text: str) -> str:
    if "\x00" in text:
        raise ValueError("the NUL character is not accepted")
    return text


CleanText = Annotated[str, AfterValidator(_no_nul)]
RunId = Annotated[uuid.UUID, Path(description="The run's id.", examples=["0b9f4a52-6f0e-4b5d-9c1d-3a2f6f1e8d70"])]
PromptId = Annotated[CleanText, Path(description="The prompt's id.", max_length=200, examples=["5f2b8c0de1a94773"])]


async def _leave(request: Request) -> AsyncIterator[None]:
    """Waits, without a thread, until the request may have a connection. `api.app` says why."""
    async with request.app.state.sessions:
        yield


_Leave = Annotated[None, Depends(_leave, scope="function")]


def _reading(request: Request, _: _Leave) -> Iterator[Session]:
    """One snapshot for the whole request, however many statements it takes."""
    with Session(request.app.state.snapshots) as session:
        yield session


def _writing(request: Request, _: _Leave) -> Iterator[Session]:
    """Writes nothing by itself: a route commits with `with session.begin():`, before it tells others."""
    with Session(request.app.state.engine, expire_on_commit=False) as session:
        yield session


# Scope "function": the connection goes back to the pool before the answer travels to a slow client.
Reading = Annotated[Session, Depends(_reading, scope="function")]
Writing = Annotated[Session, Depends(_writing, scope="function")]


def check_metrics(session: Session, run_ids: Sequence[uuid.UUID], **fields: Sequence[str]) -> None:
    """Raises ApiProblem for a metric that no step of the runs has, named in one of these query fields."""
    if unknown := views.unknown_metric(session, run_ids, [name for names in fields.values() for name in names]):
        field = next(field for field, names in fields.items() if unknown.name in names)
        message = f"no step has such a metric; there are: {', '.join(unknown.known)}"
        raise refused(f"query.{field}", unknown.name, message)


def json_body(request: Request) -> None:
    """Raises ApiProblem unless the body is declared to be JSON; a web form of another page can't be."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not (
        media_type.startswith("application/") and media_type.endswith("+json")
    ):
        given = f"not {media_type!r}" if media_type else "which is missing"
        raise ApiProblem("not-json", f"Send the body with Content-Type: application/json, {given}.")
