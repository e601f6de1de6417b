"""The OpenAPI document: problem responses with examples, the same for every route."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from api.access import OPEN, needs_admin, needs_run
from api.examples import ANSWERS
from api.problems import KINDS, MEDIA_TYPE
from api.schemas import Problem

_REFERENCE = "#/components/schemas/{model}"
_EVERYWHERE = ("unknown-host", "internal-error")
_WITH_TOKEN = (
    "token-missing", "token-refused", "too-many-requests",
    "database-unavailable", "database-busy", "database-not-migrated",
)  # fmt: skip


def problems(*kinds: str) -> dict[int | str, dict[str, Any]]:
    """For a route's `responses`: the problems that it may answer, by status, with examples."""
    responses: dict[int | str, dict[str, Any]] = {}
    for kind in kinds:
        status, title = KINDS[kind]
        response = responses.setdefault(status, {"description": title, "content": {MEDIA_TYPE: {}}})
        content = response["content"][MEDIA_TYPE]
        content["schema"] = {"$ref": _REFERENCE.format(model="Problem")}
        content.setdefault("examples", {})[kind] = {"summary": title, "value": _example(kind)}
    return responses


def _example(kind: str) -> dict[str, Any]:
    status, title = KINDS[kind]
    example: dict[str, Any] = {"type": f"/problems/{kind}", "title": title, "status": status, "errors": []}
    example |= {"detail": "What went wrong and what to do.", "instance": "/api/v1/runs"}
    if kind == "invalid-config":
        message = "p_lower=0.9 is above p_upper=0.75: no prompt could ever be committed; give p_lower <= p_upper"
        example["errors"] = [{"field": "method", "value": "{'p_lower': 0.9}", "message": message}]
    if kind == "invalid-reward":
        example["errors"] = [{"field": "reward.tol", "value": "1", "message": "unknown field 'tol'"}]
    if kind == "invalid-request":
        message = "Input should be less than or equal to 200"
        example["errors"] = [{"field": "query.limit", "value": "1000", "message": message}]
    if kind == "not-ready":
        example["instance"] = "/readyz"
        example["checks"] = {
            "database": "ok",
            "migrations": "The database has no tables yet. Run `pilot db upgrade`.",
            "broker": "ok",
        }
    return example


def complete(app: FastAPI) -> None:
    """Make the app's document whole: the Problem schema, and the problems that every route can answer."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = generate()
            schemas = document.setdefault("components", {}).setdefault("schemas", {})
            problem = Problem.model_json_schema(ref_template=_REFERENCE)
            schemas |= problem.pop("$defs", {})
            schemas["Problem"] = problem
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            document["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "`./pilot token create` makes one."}
            }
            scopes = _scopes(app)
            for path, operations in document["paths"].items():
                for method, operation in operations.items():
                    for status, response in operation["responses"].items():
                        if status < "400" and (content := response.get("content", {}).get("application/json")):
                            content["example"] = ANSWERS[operation["operationId"]]
                    kinds = [*_EVERYWHERE, *(() if path in OPEN else _WITH_TOKEN)]
                    kinds += ["foreign-origin"] if method != "get" else []
                    if path not in OPEN:
                        operation["security"] = [{"token": []}]
                        scope = scopes[operation["operationId"]]
                        operation["description"] += f"\n\nNeeds a token with the scope `{scope}`."
                        kinds += ["scope-missing"] if scope != "read" else []
                    for status, response in problems(*kinds).items():
                        known = operation["responses"].setdefault(str(status), response)
                        known["content"][MEDIA_TYPE]["examples"] |= response["content"][MEDIA_TYPE]["examples"]
        return app.openapi_schema or document

    app.openapi = openapi  # type: ignore[method-assign]


def _scopes(app: FastAPI) -> dict[str, str]:
    """The scope that each operation needs."""
    found = {}
    for route in app.routes:
        if isinstance(route, APIRoute) and route.operation_id is not None:
            calls = {dependency.call for dependency in route.dependant.dependencies}
            found[route.operation_id] = "admin" if needs_admin in calls else "run" if needs_run in calls else "read"
    return found
