"""What a run leaves on disk: its log, its checkpoints, its rollouts. Run directories are on storage that the API shares
with the workers; nothing outside them can be read, whatever a path says (pipeline.rundir).
"""

from __future__ import annotations

import datetime as dt
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from api.dependencies import CleanText, Reading, RunId
from api.openapi import problems
from api.problems import ApiProblem
from api.schemas import (
    CheckpointOut,
    Checkpoints,
    EvaluationFile,
    EvaluationFiles,
    FileOut,
    LogPart,
    RolloutFile,
    RolloutPage,
)
from db import runs
from db.models import Run
from pipeline import rundir

router = APIRouter(
    prefix="/api/v1/runs/{run_id}",
    tags=["what a run left"],
    responses=problems("run-not-found", "invalid-request"),
)

_CHUNK: Final = 1 << 20
_EVALUATIONS: Final = re.compile(r"evaluations/step_(\d{6,})/([a-z0-9][a-z0-9._-]*)\.parquet")
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_ROLLOUTS: Final = re.compile(r"rollouts/step_(\d{6,})\.parquet")

Step = Annotated[int, PathParameter(ge=0, lt=2**31, description="The step after which it was written.")]


class LogQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    attempt: int | None = Field(None, ge=1, lt=2**31, description="Of this attempt; the newest one by default.")
    offset: int | None = Field(
        None, ge=0, lt=2**53, description="From this byte on: `next_offset` of the part before. Left out: the end."
    )
    limit: int = Field(65_536, ge=1, le=1_048_576, description="Most bytes to answer.")


@router.get("/log", operation_id="get_log")
def get_log(run_id: RunId, query: Annotated[LogQuery, Query()], session: Reading, request: Request) -> LogPart:
    """A part of what the trainer printed. To follow it, ask again from `next_offset` on; an empty part is no news.

    Long logs are rotated: when the part at `offset` is gone, the oldest that is left comes instead.
    """
    return log_part(request, runs.get(session, run_id), query)


def log_part(request: Request, run: Run, query: LogQuery) -> LogPart:
    """Of a run, or of an evaluation."""
    attempt = run.attempt if query.attempt is None else query.attempt
    part = rundir.read_log(folder(request, run.id), attempt, query.offset, query.limit)
    data = part.data
    if len(data) >= 4:  # fewer would never become a whole character
        data = data[: len(data) - _torn(data)]
    text = data.decode("utf-8", "replace").replace("\x00", "\ufffd")
    return LogPart(attempt=attempt, offset=part.start, text=text, next_offset=part.start + len(data), size=part.size)


@router.get("/checkpoints", operation_id="list_checkpoints")
def list_checkpoints(run_id: RunId, session: Reading, request: Request) -> Checkpoints:
    """The checkpoints that are kept, oldest first, and their files. The config says how many are."""
    runs.get(session, run_id)
    found = [
        CheckpointOut(
            step=saved.step,
            accuracy=saved.accuracy,
            saved_at=dt.datetime.fromtimestamp(saved.saved_at, dt.UTC),
            n_bytes=saved.n_bytes,
            files=[
                FileOut(path=file.path.removeprefix(f"checkpoints/{saved.path.name}/"), n_bytes=file.n_bytes)
                for file in saved.files
            ],
        )
        for saved in rundir.saved(folder(request, run_id))
    ]
    known = [c for c in found if c.accuracy is not None]
    best = max(known, key=lambda c: (c.accuracy, c.step), default=None)
    return Checkpoints(checkpoints=found, best_step=best.step if best else None)


@router.get(
    "/checkpoints/{step}/{path:path}",
    operation_id="get_checkpoint_file",
    response_class=StreamingResponse,
    responses={
        200: {"description": "The file.", "content": {"application/octet-stream": {}}},
        206: {"description": "The bytes of `Range`.", "content": {"application/octet-stream": {}}},
        **problems("run-not-found", "file-not-found", "no-such-range", "invalid-request"),
    },
)
def get_checkpoint_file(
    run_id: RunId,
    step: Step,
    path: Annotated[CleanText, PathParameter(max_length=500, description="As the list of checkpoints gives it.")],
    session: Reading,
    request: Request,
) -> StreamingResponse:
    """One file of a checkpoint."""
    runs.get(session, run_id)
    file = _opened(folder(request, run_id), f"checkpoints/step_{step:06d}/{path}")
    return download(file, f"step_{step:06d}-{path.rpartition('/')[2]}", "application/octet-stream", request.headers)


class RolloutsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    from_step: int = Field(0, ge=0, lt=2**31, description="First step; `next_step` of the page before.")
    limit: int = Field(500, ge=1, le=5000, description="Most files in one page.")


@router.get("/rollouts", operation_id="list_rollouts")
def list_rollouts(
    run_id: RunId, query: Annotated[RolloutsQuery, Query()], session: Reading, request: Request
) -> RolloutPage:
    """The files of rollouts, one a step, in order."""
    runs.get(session, run_id)
    try:
        files = rundir.files(folder(request, run_id), "rollouts")
    except FileNotFoundError:
        files = []  # it has sampled nothing yet
    found = [RolloutFile(step=int(m[1]), n_bytes=f.n_bytes) for f in files if (m := _ROLLOUTS.fullmatch(f.path))]
    found = sorted((f for f in found if f.step >= query.from_step), key=lambda f: f.step)
    next_step = found[query.limit].step if len(found) > query.limit else None
    return RolloutPage(files=found[: query.limit], next_step=next_step)


@router.get(
    "/rollouts/{step}",
    operation_id="get_rollouts",
    response_class=StreamingResponse,
    responses={
        200: {"description": "A Parquet file.", "content": {"application/vnd.apache.parquet": {}}},
        206: {"description": "The bytes of `Range`.", "content": {"application/vnd.apache.parquet": {}}},
        **problems("run-not-found", "file-not-found", "no-such-range", "invalid-request"),
    },
)
def get_rollouts(run_id: RunId, step: Step, session: Reading, request: Request) -> StreamingResponse:
    """Every rollout of a step: prompt, stage, response, reward, tokens, log-probability."""
    runs.get(session, run_id)
    file = _opened(folder(request, run_id), f"rollouts/step_{step:06d}.parquet")
    return download(file, f"{run_id}-step_{step:06d}.parquet", "application/vnd.apache.parquet", request.headers)


@router.get("/evaluations", operation_id="list_evaluation_files")
def list_evaluation_files(
    run_id: RunId, query: Annotated[RolloutsQuery, Query()], session: Reading, request: Request
) -> EvaluationFiles:
    """The files of responses that evaluations gave, one a benchmark and step, in order. `limit` is of steps."""
    runs.get(session, run_id)
    try:
        files = rundir.files(folder(request, run_id), "evaluations")
    except FileNotFoundError:
        files = []  # it has not been evaluated yet
    found = [
        EvaluationFile(step=int(m[1]), benchmark=m[2], n_bytes=f.n_bytes)
        for f in files
        if (m := _EVALUATIONS.fullmatch(f.path)) and int(m[1]) >= query.from_step
    ]
    steps = sorted({f.step for f in found})
    shown = set(steps[: query.limit])
    return EvaluationFiles(
        files=sorted((f for f in found if f.step in shown), key=lambda f: (f.step, f.benchmark)),
        next_step=steps[query.limit] if len(steps) > query.limit else None,
    )


@router.get(
    "/evaluations/{step}/{benchmark}",
    operation_id="get_evaluation_file",
    response_class=StreamingResponse,
    responses={
        200: {"description": "A Parquet file.", "content": {"application/vnd.apache.parquet": {}}},
        206: {"description": "The bytes of `Range`.", "content": {"application/vnd.apache.parquet": {}}},
        **problems("run-not-found", "file-not-found", "no-such-range", "invalid-request"),
    },
)
def get_evaluation_file(
    run_id: RunId,
    step: Step,
    benchmark: Annotated[CleanText, PathParameter(max_length=60, description="As the list of files gives it.")],
    session: Reading,
    request: Request,
) -> StreamingResponse:
    """Every response of a benchmark: prompt, reference, response, what was extracted, reward, verdicts, tokens."""
    runs.get(session, run_id)
    file = _opened(folder(request, run_id), f"evaluations/step_{step:06d}/{benchmark}.parquet")
    name = f"{run_id}-step_{step:06d}-{benchmark}.parquet"
    return download(file, name, "application/vnd.apache.parquet", request.headers)


def folder(request: Request, run_id: object) -> Path:
    """The run's directory."""
    home: Path = request.app.state.settings.pilot_home
    return home.expanduser().resolve() / "runs" / str(run_id)


def _opened(folder: Path, path: str) -> BinaryIO:
    try:
        return rundir.open_file(folder, path)
    except FileNotFoundError:
        raise ApiProblem(
            "file-not-found", f"The run has no file {path!r}, or not any more; the lists tell what there is."
        ) from None


def download(file: BinaryIO, name: str, media_type: str, asked: Mapping[str, str] | None = None) -> StreamingResponse:
    """The file as an answer, which closes it.

    asked: the request's headers. A range of bytes in them is answered alone (206), so that a download that broke off
    goes on, unless `If-Range` names another version of the file; several ranges are answered as the whole file.
    """
    status = os.fstat(file.fileno())
    size, first, last, code = status.st_size, 0, status.st_size - 1, 200
    ascii_name = re.sub(r"[^A-Za-z0-9._-]", "_", name)
    headers: dict[str, Any] = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{ascii_name}"',
        "ETag": f'"{status.st_ino:x}-{status.st_mtime_ns:x}-{size:x}"',
        "X-Content-Type-Options": "nosniff",
    }
    asked = asked or {}
    wanted = (
        _RANGE.fullmatch(asked.get("range", "")) if asked.get("if-range", headers["ETag"]) == headers["ETag"] else None
    )
    if wanted and (wanted[1] or wanted[2]):
        if wanted[1]:
            first, last = int(wanted[1]), min(last, int(wanted[2] or last))
        else:
            first = max(0, size - int(wanted[2]))
        if first > last:
            file.close()
            raise ApiProblem(
                "no-such-range",
                f"The file has {size} bytes, and none in {asked['range']!r}.",
                headers={"Content-Range": f"bytes */{size}"},
            )
        code, headers["Content-Range"] = 206, f"bytes {first}-{last}/{size}"
    headers["Content-Length"] = str(last - first + 1)
    file.seek(first)
    return StreamingResponse(_chunks(file, last - first + 1), code, media_type=media_type, headers=headers)


def _chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    with file:
        while size > 0 and (chunk := file.read(min(_CHUNK, size))):
            size -= len(chunk)
            yield chunk


def _torn(data: bytes) -> int:
    """How many bytes at the end are the beginning of a UTF-8 character whose rest is to come."""
    for back in range(1, 4):
        byte = data[-back]
        if byte & 0b1100_0000 != 0b1000_0000:  # the first byte of a character
            length = 4 if 0xF0 <= byte <= 0xF4 else 3 if 0xE0 <= byte < 0xF0 else 2 if 0xC2 <= byte < 0xE0 else 1
            return back if back < length else 0
    return 0
