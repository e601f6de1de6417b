"""Uploaded prompt sets: add, check, list, look into, download, delete.

A file from outside is written to disk as it comes in; a data set of the hub is fetched to where runs find it, too. It
is read by a process of its own (pipeline.prompts.read), which writes what it accepts as JSONL. That file appears in its
place whole, then the row: a set that is listed is there.

Fetching goes on when the browser that asked for it leaves: whoever asks again finds what came.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, Literal

import anyio
import anyio.to_thread
from fastapi import APIRouter, Path, Query, Request, Response, status
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from api import cursors
from api.access import Anyone, Caller, Runner, needs_run
from api.dependencies import CleanText, Reading, Writing
from api.forms import FormRefused, OneFile, is_form
from api.openapi import problems
from api.problems import ApiProblem, refused
from api.schemas import PromptCheck, PromptSetDetail, PromptSetOut, PromptSetPage, PromptSetRows, RunUsing
from db import prompt_sets
from db.models import StoredPromptSet
from db.paging import Place
from pipeline.config import FieldProblem, MappingName, pilot_home, resolve, spelled
from pipeline.prompts import (
    HUB_PATTERN,
    HUB_WORDS,
    Bounds,
    Fetched,
    FileFault,
    HubAway,
    Job,
    NoSandbox,
    PromptReport,
    Read,
    SetRef,
    fetch_hub,
    hub_ref,
    read,
    rows_of_set,
    set_ref,
)

router = APIRouter(prefix="/api/v1/prompt-sets", tags=["prompt sets"])

MAX_UPLOAD: Final = 256 << 20  # bytes
MAX_HUB: Final = 1 << 30  # bytes of a split
MAX_SHARDS: Final = 256  # the sandbox takes each as an argument
HUB_S: Final = 300.0
UPLOADS: Final = ("/api/v1/prompt-sets", "/api/v1/prompt-sets/check")
_SUFFIXES: Final = (".jsonl", ".json", ".csv", ".parquet")
_ABANDONED_S: Final = 86400.0
_AT_A_TIME: Final = 2  # files that are read
_readers = anyio.CapacityLimiter(_AT_A_TIME)
_fetchers = anyio.CapacityLimiter(_AT_A_TIME)
_BODY: Final[dict[str, Any]] = {
    "requestBody": {
        "description": f"The file as it is, or as the one file of a form, at most {MAX_UPLOAD >> 20} MiB; none with "
        "`hub`.",
        "content": {
            "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "properties": {"file": {"type": "string", "format": "binary"}},
                    "required": ["file"],
                }
            },
        },
    }
}
_FILE: Final = spelled(r"^[^/\\\x00-\x1f\x7f]+$", "a plain file name")
_ROWS_REWARD: Final = spelled(
    r"^[^=\x00-\x1f\x7f]+=(exact|numeric|gsm8k|math|choice|code|reasoning_gym)$",
    "VALUE=REWARD, REWARD one of exact, numeric, gsm8k, math, choice, code, reasoning_gym",
)
_NAME: Final = spelled(
    r"^[a-z0-9][a-z0-9._-]{0,63}$", "up to 64 small letters, digits and ._-, a letter or digit first"
)
SetName = Annotated[str, Path(pattern=_NAME, description="Name of the set.", examples=["gsm8k"])]
Version = Annotated[
    str,
    Path(
        pattern=spelled(r"^[0-9a-f]{16}$", "16 hexadecimal digits"),
        description="Its version.",
        examples=["9a3eda8c4b317c79"],
    ),
]


_REFUSALS: Final = (
    "invalid-request", "invalid-prompts", "hub-refused", "body-too-large", "hub-unreachable", "storage-failed",
    "no-sandbox",
)  # fmt: skip


class FileQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    file: str | None = Field(
        None, min_length=1, max_length=200, pattern=_FILE,
        description="Name of the file; its ending (.jsonl, .json, .csv, .parquet) tells the format. Unset: the name in "
        "the form.",
        examples=["train.jsonl"],
    )  # fmt: skip
    hub: str | None = Field(
        None, pattern=spelled(HUB_PATTERN, HUB_WORDS),
        description="In place of a file: a data set of the Hugging Face hub. The API fetches the split, at most "
        f"{MAX_HUB >> 20} MiB, and keeps its files at their commit. Needs the scope `run`.",
        examples=["hub:openai/gsm8k:main/train"],
    )  # fmt: skip
    mapping: MappingName = Field("plain", description="Which columns hold prompt and answer, as data.mapping.")
    prompt_key: CleanText = Field("prompt", min_length=1, max_length=200, description="As data.prompt_key.")
    answer_key: CleanText = Field("answer", min_length=1, max_length=200, description="As data.answer_key.")
    tags_key: CleanText = Field("tags", min_length=1, max_length=200, description="As data.tags_key.")
    reward_key: CleanText = Field("reward", min_length=1, max_length=200, description="As data.reward_key.")
    reward: Literal["exact", "numeric", "gsm8k", "math", "choice", "code", "reasoning_gym"] | None = Field(
        None, description="Check that this reward can use the reference answers.", examples=["math"]
    )
    rewards: list[Annotated[str, Field(max_length=120, pattern=_ROWS_REWARD)]] = Field(
        [],
        max_length=20,
        description="What rows mean by the name of a reward that they give, where it is not the reward's own.",
        examples=[["letter=choice"]],
    )
    against: CleanText | None = Field(
        None, max_length=100, description="Find prompts that are in this set, too.", examples=["set:NAME@VERSION"]
    )
    model: CleanText | None = Field(None, max_length=500, description="Count tokens as this model folder does.")


class UploadQuery(FileQuery):
    name: str = Field(pattern=_NAME, description="Name of the set.", examples=["gsm8k"])


class SetsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: CleanText | None = Field(None, max_length=100, description="Only versions of this set.")
    limit: int = Field(50, ge=1, le=200, description="Most versions in one page.")
    cursor: CleanText | None = Field(None, description="`next_cursor` of the page before.")


class RowsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    offset: int = Field(0, ge=0, lt=2**31, description="Prompts to pass over; `next_offset` of the part before.")
    limit: int = Field(20, ge=1, le=200, description="Most prompts to answer.")


@router.post(
    "",
    status_code=status.HTTP_201_CREATED,
    operation_id="upload_prompt_set",
    openapi_extra=_BODY,
    responses={
        200: {"model": PromptSetDetail, "description": "These prompts were there already, under this name."},
        **problems(*_REFUSALS),
    },
)
async def upload_prompt_set(
    query: Annotated[UploadQuery, Query()], caller: Runner, request: Request, response: Response
) -> PromptSetDetail:
    """Add a file of prompts, or a data set of the hub, as a version of a set: all of it, or nothing with every fault
    counted.

    The same prompts in another order or format are the same version, and answer 200.
    """
    with _scratch() as folder:
        done, source = await _read_given(query, caller, request, folder)
        if not done.report.accepted:
            raise _not_accepted(done.report, "file" if query.hub is None else "data set")
        stored, new = await run_in_threadpool(_store, request.app.state.engine, caller, query, source, done, folder)
    response.status_code = 201 if new else 200
    return stored


@router.post(
    "/check",
    operation_id="check_prompts",
    openapi_extra=_BODY,
    responses=problems(*_REFUSALS, "scope-missing"),
)
async def check_prompts(query: Annotated[FileQuery, Query()], caller: Anyone, request: Request) -> PromptCheck:
    """What adding a file, or a data set of the hub, would find, and its first prompts. No set is kept."""
    with _scratch() as folder:
        done, source = await _read_given(query, caller, request, folder)
        return PromptCheck(**dict(done.report), hub=source if query.hub is not None else None)


@router.get("", operation_id="list_prompt_sets", responses=problems("invalid-request"))
def list_prompt_sets(query: Annotated[SetsQuery, Query()], session: Reading) -> PromptSetPage:
    """Versions of all sets, newest first."""
    after = None
    if query.cursor is not None:
        at = cursors.decode(cursors.PromptSetsCursor, query.cursor, name=query.name)
        after = Place(at.created_at, at.id)
    rows, following = prompt_sets.page(session, name=query.name, limit=query.limit, after=after)
    next_cursor = None
    if following is not None:
        next_cursor = cursors.encode(cursors.PromptSetsCursor(name=query.name, **following._asdict()))
    return PromptSetPage(prompt_sets=[_out(session, row) for row in rows], next_cursor=next_cursor)


@router.get(
    "/{name}/{version}",
    operation_id="get_prompt_set",
    responses=problems("prompt-set-not-found", "invalid-request"),
)
def get_prompt_set(name: SetName, version: Version, session: Reading) -> PromptSetDetail:
    """One version with the report of its upload, and the runs that use it."""
    return _detail(session, prompt_sets.get(session, name, version))


@router.get(
    "/{name}/{version}/rows",
    operation_id="list_prompt_set_rows",
    responses=problems("prompt-set-not-found", "invalid-request"),
)
def list_prompt_set_rows(
    name: SetName, version: Version, query: Annotated[RowsQuery, Query()], session: Reading
) -> PromptSetRows:
    """Its prompts, in the order of their ids. Long texts are cut."""
    prompt_sets.get(session, name, version)
    try:
        found = list(islice(rows_of_set(SetRef(name, version)), query.offset, query.offset + query.limit + 1))
    except FileFault:
        raise prompt_sets.PromptSetNotFound(name, version) from None
    more = len(found) > query.limit
    return PromptSetRows(rows=found[: query.limit], next_offset=query.offset + query.limit if more else None)


@router.get(
    "/{name}/{version}/file",
    operation_id="get_prompt_set_file",
    response_class=FileResponse,
    responses={
        200: {"description": "JSONL, a prompt a line.", "content": {"application/octet-stream": {}}},
        **problems("prompt-set-not-found", "invalid-request"),
    },
)
def get_prompt_set_file(name: SetName, version: Version, session: Reading) -> FileResponse:
    """The whole set."""
    prompt_sets.get(session, name, version)
    path = SetRef(name, version).path
    if not path.is_file():
        raise prompt_sets.PromptSetNotFound(name, version)
    return FileResponse(
        path, filename=f"{name}-{version}.jsonl", media_type="application/octet-stream",
        headers={"X-Content-Type-Options": "nosniff"},
    )  # fmt: skip


@router.delete(
    "/{name}/{version}",
    operation_id="delete_prompt_set",
    responses=problems("prompt-set-not-found", "prompt-set-in-use", "invalid-request"),
)
def delete_prompt_set(name: SetName, version: Version, caller: Runner, session: Writing) -> PromptSetOut:
    """Delete a version that no run uses. There is no way back."""
    with session.begin():
        deleted = _out(session, prompt_sets.get(session, name, version))
        prompt_sets.delete(session, name, version)
        caller.record(session, "prompt-set.delete", deleted.ref, before=deleted.model_dump(mode="json", include=_TOLD))
        shutil.rmtree(SetRef(name, version).folder, ignore_errors=True)  # while nobody can upload the same again
    return deleted


_TOLD: Final = {"name", "version", "file", "mapping", "n_prompts"}


@contextmanager
def _scratch() -> Iterator[FilePath]:
    """A folder for one upload, on the same disk as the sets, and gone afterwards."""
    root = pilot_home() / "prompt-sets"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for left in root.glob(".incoming-*"):  # by an API that was killed
            with suppress(FileNotFoundError):  # one that was just done
                if time.time() - left.stat().st_mtime > _ABANDONED_S:
                    shutil.rmtree(left)
        with tempfile.TemporaryDirectory(prefix=".incoming-", dir=root) as folder:
            yield FilePath(folder)
    except OSError as error:
        raise ApiProblem("storage-failed", f"{error.strerror or error}. Tell whoever runs the platform.") from None


async def _read_given(query: FileQuery, caller: Caller, request: Request, folder: FilePath) -> tuple[Read, str]:
    """What the reader says, and what it read: the file's name, or the data set at its commit."""
    against = _against(query.against)
    if query.hub is None:
        path, source = await _arrive(query, request, folder)
        paths, what = [path], "file"
    else:
        fetched = await _fetch(query, query.hub, caller, request)
        paths, source, what = fetched.files, str(fetched.ref), "data set"
    job = Job(
        paths=paths,
        out=folder / "prompts.jsonl",
        against=against,
        reward=None if query.reward is None else {"name": query.reward},
        rewards={of: {"name": name} for of, _, name in (pair.partition("=") for pair in query.rewards)},
        model=None if query.model is None else resolve(query.model),
        **query.model_dump(include={"mapping", "prompt_key", "answer_key", "tags_key", "reward_key"}),
    )
    try:
        return await anyio.to_thread.run_sync(read, job, limiter=_readers), source
    except FileFault as error:
        raise ApiProblem("invalid-prompts", f"The {what} {error}.") from None
    except NoSandbox as error:
        raise ApiProblem("no-sandbox", f"Files cannot be read here: {error}. Tell whoever runs the platform.") from None


async def _fetch(query: FileQuery, source: str, caller: Caller, request: Request) -> Fetched:
    """The split of the data set, kept where runs find it."""
    needs_run(request)
    try:
        ref = hub_ref(source)
    except FileFault as error:
        raise refused("query.hub", source, str(error)) from None
    assert ref is not None, "the pattern has it"
    if query.file is not None:
        raise refused("query.file", query.file, "leave it out; `hub` names what is read")
    async for chunk in request.stream():
        if chunk:
            raise refused("body", None, "leave it out; `hub` names what is read")
    beyond = (
        f"Where the API runs, `./pilot data fetch {ref}` takes more, for as long as it needs; a run config names the "
        "data set as it tells"
    )
    bounds = Bounds(MAX_HUB, MAX_SHARDS, HUB_S, request.app.state.ending, beyond)
    try:
        fetched = await anyio.to_thread.run_sync(fetch_hub, ref, bounds, limiter=_fetchers)
    except HubAway as error:
        raise ApiProblem(
            "hub-unreachable",
            f"{ref} {error}. Try again. Where the API has no network, name a mirror that it reaches in HF_ENDPOINT, or "
            "upload the data set's file.",
        ) from None
    except FileFault as error:
        raise ApiProblem("hub-refused", f"{ref} {error}.") from None
    if fetched.new:
        await run_in_threadpool(_record_fetch, request.app.state.engine, caller, fetched)
    return fetched


def _record_fetch(engine: Engine, caller: Caller, fetched: Fetched) -> None:
    with Session(engine) as session, session.begin():
        n_bytes = sum(file.stat().st_size for file in fetched.files)
        after = {"files": len(fetched.files), "n_bytes": n_bytes}
        caller.record(session, "prompt-set.fetch", fetched.ref, after=after)


async def _arrive(query: FileQuery, request: Request, folder: FilePath) -> tuple[FilePath, str]:
    """The uploaded file, and its name."""
    arriving = folder / "arriving"
    try:
        name = query.file or ""
        with arriving.open("wb") as file:
            content_type = request.headers.get("content-type", "")
            form = OneFile(content_type, file) if is_form(content_type) else None
            if form is None:
                _suffix(name)  # rather now than after 256 MiB
            size = 0
            async for chunk in request.stream():
                size += len(chunk)
                if size > MAX_UPLOAD:
                    raise ApiProblem(
                        "body-too-large",
                        f"At most {MAX_UPLOAD >> 20} MiB are accepted. Put a larger file on storage that the workers "
                        "share, and name its path in the config.",
                        headers={"Connection": "close"},
                    )
                (form or file).write(chunk)
            if form is not None:
                name = query.file or form.finish()
    except FormRefused as error:
        raise refused("body", content_type[:200], str(error)) from None
    return arriving.rename(folder / f"upload{_suffix(name)}"), name


def _suffix(name: str) -> str:
    suffix = FilePath(name).suffix.lower()
    if suffix not in _SUFFIXES or not re.fullmatch(_FILE, name) or len(name) > 200:
        message = f"name the file; files end in {', '.join(_SUFFIXES)}; unpack an archive first"
        raise refused("query.file", name[:200] or None, message)
    return suffix


def _against(ref: str | None) -> FilePath | None:
    if ref is None:
        return None
    try:
        found = set_ref(ref)
        if found is None or not found.path.is_file():
            raise FileFault("is not an uploaded set: give set:NAME@VERSION")
    except FileFault as error:
        raise refused("query.against", ref, str(error)) from None
    return found.path


def _not_accepted(report: PromptReport, what: str) -> ApiProblem:
    errors = [
        FieldProblem(field=f"row {found.row}", value=None, message=found.message)
        for finding in report.findings
        if finding.refuses
        for found in finding.rows
    ]
    counted = [f"{finding.title} ({finding.n:,})" for finding in report.findings if finding.refuses]
    if report.fault:
        counted.insert(0, f"the {what} {report.fault}")
    return ApiProblem("invalid-prompts", f"Nothing was stored: {'; '.join(counted)}.", errors=errors)


def _store(
    engine: Engine, caller: Caller, query: UploadQuery, source: str, done: Read, folder: FilePath
) -> tuple[PromptSetDetail, bool]:
    assert done.version is not None, "an accepted file has a version"
    ref = SetRef(query.name, done.version)
    # A session from here only: the upload may have taken minutes.
    with Session(engine, expire_on_commit=False) as session, session.begin():
        stored, new = prompt_sets.keep(
            session,
            name=ref.name,
            version=ref.version,
            file=source,
            mapping=query.mapping,
            n_prompts=done.report.n_prompts,
            n_bytes=done.n_bytes,
            report=done.report.model_dump(mode="json"),
            created_by=caller.name,
        )
        ref.folder.mkdir(parents=True, exist_ok=True)
        os.replace(folder / "prompts.jsonl", ref.path)  # the same content, if it was there
        detail = _detail(session, stored)
        if new:
            caller.record(session, "prompt-set.upload", detail.ref, after=detail.model_dump(mode="json", include=_TOLD))
    return detail, new


def _columns(session: Session, row: StoredPromptSet) -> dict[str, Any]:
    named = {name: getattr(row, name) for name in PromptSetOut.model_fields if hasattr(row, name)}
    return named | {
        "ref": str(SetRef(row.name, row.version)),
        "n_runs": prompt_sets.n_users(session, row.name, row.version),
    }


def _out(session: Session, row: StoredPromptSet) -> PromptSetOut:
    return PromptSetOut.model_validate(_columns(session, row))


def _detail(session: Session, row: StoredPromptSet) -> PromptSetDetail:
    using = prompt_sets.users(session, row.name, row.version)
    return PromptSetDetail(
        **_columns(session, row),
        report=PromptReport.model_validate(row.report),
        runs=[RunUsing.model_validate(run, from_attributes=True) for run in using],
    )
