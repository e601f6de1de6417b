"""Audits of logs: files that are sent, or a run of ours. The work is done in a child process with hard limits, one at a
time; files that are sent lie in a folder of their own until it is done. Nothing is kept and nothing is changed.
"""

from __future__ import annotations

import re
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Depends, File, Form, Request, UploadFile
from pydantic import ValidationError
from sqlalchemy.orm import Session

from api.dependencies import RunId, json_body
from api.openapi import problems
from api.problems import ApiProblem, refused
from api.schemas import Audit
from db import runs
from pipeline.audit import AuditSettings, BadLog, NoSandbox, Report, bounded, page

router = APIRouter(prefix="/api/v1", tags=["audits"])

UPLOAD: Final = "/api/v1/audits"
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9 ._-]{0,119}")
_under_way: Final = threading.Semaphore()


@router.post(
    "/audits",
    operation_id="audit_files",
    responses=problems("invalid-request", "invalid-json", "log-refused", "body-too-large", "audit-busy", "no-sandbox"),
)
def audit_files(
    files: Annotated[
        list[UploadFile],
        File(
            description="A log: verl's STEP.jsonl, TRL's completions_STEP.parquet, a run's step_STEP.parquet, or CSV."
        ),
    ],
    settings: Annotated[
        str,
        Form(
            description="AuditSettings as JSON, as the audit of a run takes it. What is left out takes its default.",
            examples=['{"n_pilot": 4}'],
            max_length=10_000,
        ),
    ] = "{}",
) -> Audit:
    """Audit a log: what taught nothing, and what others would have spent on the same stream. May take minutes."""
    chosen = _settings(settings)
    with tempfile.TemporaryDirectory(prefix="pilot-audit-") as private:
        folder = Path(private, "log")
        folder.mkdir(0o755)  # its reader may be another user than us; the folder around it is ours alone
        for file in files:
            _keep(file, folder)
        path = folder / (files[0].filename or "") if len(files) == 1 else folder
        source = files[0].filename or "" if len(files) == 1 else f"{len(files)} files from {files[0].filename}"
        return _audited(path, chosen, source)


@router.post(
    "/runs/{run_id}/audit",
    operation_id="audit_run",
    dependencies=[Depends(json_body)],
    responses=problems(
        "run-not-found",
        "invalid-request",
        "invalid-json",
        "not-json",
        "log-refused",
        "body-too-large",
        "audit-busy",
        "no-sandbox",
    ),
)
def audit_run(run_id: RunId, body: AuditSettings, request: Request) -> Audit:
    """Audit the rollouts of a run. May take minutes."""
    with Session(request.app.state.snapshots) as session:  # not held while the audit goes on
        run = runs.get(session, run_id)
        name = run.name
    home: Path = request.app.state.settings.pilot_home
    return _audited(home.expanduser().resolve() / "runs" / str(run_id), body, f"run {name}")


def _settings(given: str) -> AuditSettings:
    try:
        return AuditSettings.model_validate_json(given)
    except ValidationError as error:
        fault = error.errors()[0]
        field = ".".join(["body", "settings", *map(str, fault["loc"])])
        raise refused(field, given[:200], fault["msg"].removeprefix("Value error, ")) from None


def _keep(file: UploadFile, folder: Path) -> None:
    """Write it into the folder. Raises ApiProblem for a name that is more than a plain file name, or comes twice."""
    name = file.filename or ""
    if not _NAME.fullmatch(name):
        raise refused("body.files", name[:200], "send plain file names of letters, digits, blanks, '.', '_' and '-'")
    try:
        with (folder / name).open("xb") as kept:
            shutil.copyfileobj(file.file, kept)
        (folder / name).chmod(0o644)
    except FileExistsError:
        raise refused("body.files", name, "is there twice; send each file once") from None


def _audited(path: Path, settings: AuditSettings, source: str) -> Audit:
    if not _under_way.acquire(blocking=False):
        raise ApiProblem(
            "audit-busy", "One audit at a time; try again in half a minute.", headers={"Retry-After": "30"}
        )
    try:
        report: Report = bounded(path, settings)
    except NoSandbox as error:
        raise ApiProblem("no-sandbox", f"Logs cannot be read here: {error}. Tell whoever runs the platform.") from None
    except BadLog as error:
        # Where it lay here is nothing that the sender knows.
        told = str(error).replace(str(path), source).removesuffix(".")
        named = tuple(file.name for file in (path, *path.rglob("*")))
        first = told[:1] if told.startswith(named) else told[:1].upper()  # a file is called as its sender calls it
        raise ApiProblem("log-refused", f"{first}{told[1:]}.") from None
    finally:
        _under_way.release()
    report = report.model_copy(update={"source": source})
    return Audit(report=report, page=page(report))
