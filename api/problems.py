"""Errors: one exception, one table of kinds, one handler; all leave as problem+json (RFC 9457)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from psycopg import errors as postgres
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from api.schemas import Problem
from db import DatabaseUnavailable, SchemaMismatch
from db.evaluations import EvaluationNotFound
from db.idempotency import KeyReused
from db.prompt_sets import PromptSetInUse, PromptSetNotFound
from db.runs import RunNotFound, WrongState
from db.tokens import TokenNotFound, TokenRefused
from db.views import PromptNotFound
from db.webhooks import WebhookNotFound
from pipeline.config import ConfigProblems, FieldProblem, spelling

MEDIA_TYPE = "application/problem+json"
BODY_LIMIT = 1024 * 1024  # bytes
UPLOAD_LIMIT = 64 * BODY_LIMIT  # bytes, of all files of a log together
CHALLENGE = {"WWW-Authenticate": "Bearer"}

KINDS: dict[str, tuple[int, str]] = {
    "invalid-json": (400, "The body is not JSON"),
    "token-missing": (401, "A token is needed"),
    "token-refused": (401, "The token is not accepted"),
    "scope-missing": (403, "The token may not do this"),
    "foreign-origin": (403, "Requests from other web pages are refused"),
    "route-not-found": (404, "There is nothing at this address"),
    "run-not-found": (404, "There is no such run"),
    "prompt-set-not-found": (404, "There is no such prompt set"),
    "prompt-not-found": (404, "There is no such prompt"),
    "evaluation-not-found": (404, "There is no such evaluation"),
    "webhook-not-found": (404, "There is no such webhook"),
    "file-not-found": (404, "There is no such file"),
    "token-not-found": (404, "There is no such token"),
    "method-not-allowed": (405, "This address does not take this method"),
    "wrong-state": (409, "The run's state does not allow this"),
    "prompt-set-in-use": (409, "Runs use this prompt set"),
    "body-too-large": (413, "The body is too large"),
    "not-json": (415, "The body must be JSON"),
    "no-such-range": (416, "The file has no such bytes"),
    "unknown-host": (421, "The API does not answer to this host name"),
    "invalid-request": (422, "The request is not accepted"),
    "invalid-config": (422, "The run config is not accepted"),
    "invalid-reward": (422, "The reward is not accepted"),
    "invalid-prompts": (422, "The prompts are not accepted"),
    "hub-refused": (422, "The hub's data set cannot be taken"),
    "reward-elsewhere": (422, "The API does not run this reward"),
    "too-many-requests": (429, "Too many requests"),
    "key-reused": (422, "The idempotency key belongs to another request"),
    "log-refused": (422, "The log cannot be audited"),
    "internal-error": (500, "Something in the API went wrong"),
    "hub-unreachable": (502, "The hub does not answer"),
    "database-unavailable": (503, "The database cannot be used"),
    "database-busy": (503, "The database is too busy"),
    "database-not-migrated": (503, "The database has another schema"),
    "audit-busy": (503, "Other logs are being audited"),
    "no-sandbox": (503, "Files from outside cannot be read safely on this machine"),
    "storage-failed": (507, "The file cannot be stored"),
    "not-ready": (503, "The platform is not ready"),
}

HANDLED = (
    ConfigProblems,
    DatabaseUnavailable,
    EvaluationNotFound,
    HTTPException,
    KeyReused,
    PromptNotFound,
    PromptSetInUse,
    PromptSetNotFound,
    RequestValidationError,
    RunNotFound,
    SQLAlchemyError,
    SchemaMismatch,
    TokenNotFound,
    TokenRefused,
    WebhookNotFound,
    WrongState,
)
"""Raised below the routes and answered by `answer`; ApiProblem and unforeseen exceptions are, too."""

_log = logging.getLogger("api")


class ApiProblem(Exception):
    """An error with its answer. `kind` is a key of KINDS; `detail` says what went wrong and what to do."""

    def __init__(
        self,
        kind: str,
        detail: str,
        *,
        errors: Sequence[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
        checks: dict[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.detail = detail
        self.errors = list(errors)
        self.headers = dict(headers or {})
        self.checks = checks
        super().__init__(detail)

    def response(self, path: str) -> Response:
        status, title = KINDS[self.kind]
        problem = Problem(
            type=f"/problems/{self.kind}",
            title=title,
            status=status,
            detail=self.detail,
            instance=path,
            errors=self.errors,
            checks=self.checks,
        )
        # What was given is echoed, and it may be what no JSON encoder takes: then as Python writes it.
        try:
            body = problem.model_dump_json(exclude={"checks"} if self.checks is None else None)
        except ValueError:
            problem.errors = [e.model_copy(update={"value": ascii(e.value)[:200]}) for e in self.errors]
            problem.instance = ascii(path)
            body = problem.model_dump_json(exclude={"checks"} if self.checks is None else None)
        return Response(body, status_code=status, headers=self.headers, media_type=MEDIA_TYPE)


async def answer(request: Request, error: Exception) -> Response:
    """The one handler. Details of an unexpected error go to the log, not over the wire."""
    if isinstance(error, HTTPException) and error.status_code == 405:  # the framework names one route's methods only
        matching = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
        methods = {method for route in matching for method in getattr(route, "methods", None) or ()}
        error = HTTPException(405, headers={"Allow": ", ".join(sorted(methods))})
    problem = problem_of(error)
    where = f"{request.method} {request.url.path}"
    if problem.kind != "internal-error":
        if KINDS[problem.kind][0] >= 500:
            _log.warning("%s: %s", where, problem.detail)
    elif isinstance(error, HANDLED):  # the server logs the others itself
        _log.error("%s failed", where, exc_info=error)
    return problem.response(request.url.path)


def problem_of(error: Exception) -> ApiProblem:
    match error:
        case ApiProblem():
            return error
        case ConfigProblems(problems=problems):
            return not_accepted("invalid-config", problems)
        case RequestValidationError():
            return _invalid(error)
        case RunNotFound():
            return ApiProblem("run-not-found", f"{_sentence(error)} GET /api/v1/runs lists the runs.")
        case PromptNotFound():
            return ApiProblem("prompt-not-found", f"{_sentence(error)} GET /api/v1/runs/{{run_id}}/prompts lists them.")
        case PromptSetNotFound():
            return ApiProblem("prompt-set-not-found", f"{_sentence(error)} GET /api/v1/prompt-sets lists them.")
        case PromptSetInUse():
            return ApiProblem("prompt-set-in-use", _sentence(error))
        case TokenNotFound():
            return ApiProblem("token-not-found", f"{_sentence(error)} GET /api/v1/tokens lists the tokens.")
        case EvaluationNotFound():
            return ApiProblem("evaluation-not-found", f"{_sentence(error)} GET /api/v1/evaluations lists them.")
        case WebhookNotFound():
            return ApiProblem("webhook-not-found", f"{_sentence(error)} GET /api/v1/webhooks lists them.")
        case TokenRefused():
            return ApiProblem("token-refused", _sentence(error), headers=CHALLENGE)
        case WrongState():
            return ApiProblem("wrong-state", _sentence(error))
        case KeyReused():
            return ApiProblem("key-reused", _sentence(error))
        case DatabaseUnavailable():
            return ApiProblem("database-unavailable", str(error), headers={"Retry-After": "5"})
        case SchemaMismatch():
            return ApiProblem("database-not-migrated", str(error))
        case HTTPException():
            return _http(error)
        case SQLAlchemyError():
            return _database(error)
    return _unexpected()


def _database(error: SQLAlchemyError) -> ApiProblem:
    if isinstance(error, ProgrammingError) and isinstance(
        error.orig, postgres.UndefinedTable | postgres.UndefinedColumn
    ):
        return ApiProblem(
            "database-not-migrated",
            "A table or column that this code needs is missing. Run `pilot db upgrade`.",
        )
    if isinstance(error, PoolTimeout | OperationalError):
        return ApiProblem(
            "database-busy",
            "The database did not answer in time or refused. Try again; if it lasts, look at its log.",
            headers={"Retry-After": "5"},
        )
    return _unexpected()


def _unexpected() -> ApiProblem:
    return ApiProblem("internal-error", "This is a fault of the API, not of the request; its log has the details.")


def _http(error: HTTPException) -> ApiProblem:
    """What the framework refuses by itself."""
    if error.status_code == 404:
        return ApiProblem("route-not-found", "/openapi.json lists the addresses of this API.")
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        return ApiProblem("method-not-allowed", f"Use {allowed} here.", headers=error.headers)
    if error.status_code == 400:
        return ApiProblem("invalid-json", "Send a JSON object in UTF-8 that is not nested too deeply.")
    return _unexpected()


def refused(field: str, value: Any, message: str) -> ApiProblem:
    """One field of a request is not accepted."""
    return not_accepted("invalid-request", [FieldProblem(field=field, value=value, message=message)])


def not_accepted(kind: str, problems: Sequence[FieldProblem]) -> ApiProblem:
    n = "1 field is" if len(problems) == 1 else f"{len(problems)} fields are"
    return ApiProblem(kind, f"{n} not accepted; see errors.", errors=problems)


def _invalid(error: RequestValidationError) -> ApiProblem:
    faults = error.errors()
    for fault in faults:
        if fault["type"] == "json_invalid":
            where = fault["loc"][-1]
            why = fault.get("ctx", {}).get("error", "it cannot be parsed")
            return ApiProblem("invalid-json", f"At character {where}: {why}. Send a JSON object.")
    return not_accepted("invalid-request", [_field_problem(fault) for fault in faults])


def _field_problem(fault: Any) -> FieldProblem:
    path = [str(part) for part in fault["loc"]]
    value = fault.get("input")
    message = str(fault["msg"]).removeprefix("Value error, ")
    if not isinstance(value, str | int | float | bool | None):
        value = ascii(value)
    if isinstance(value, str):
        value = value[:200]
    if fault["type"] == "missing":
        value, message = None, "this field is required"
    if fault["type"] == "string_pattern_mismatch":
        message = spelling(fault["ctx"]["pattern"])
    if fault["type"] == "extra_forbidden":
        message = f"unknown field {path[-1]!r}"
    return FieldProblem(field=".".join(path), value=value, message=message)


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + "."
