"""Whether the API lives, and whether what it needs is there."""

from __future__ import annotations

import logging

import redis
from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from redis.backoff import NoBackoff
from redis.retry import Retry

from api.dependencies import Reading
from api.openapi import problems
from api.problems import ApiProblem
from api.schemas import Health
from db import DatabaseUnavailable, SchemaMismatch
from db.ready import check_ready

router = APIRouter(tags=["health"])

_TIMEOUT_S = 3.0
_log = logging.getLogger("api")


@router.get("/healthz", operation_id="get_health")
def get_health() -> Health:
    """Answers as long as the process does; looks at nothing else."""
    return Health(status="ok", checks={"api": "ok"})


@router.get("/readyz", operation_id="get_readiness", responses=problems("not-ready"))
def get_readiness(request: Request, session: Reading) -> Health:
    """Looks at the database, its schema and the broker. 503 tells which of them failed and what to do.

    Needs no token, so it tells no addresses; the API's log has them.
    """
    checks = {"database": "ok", "migrations": "ok", "broker": _broker(request.app.state.settings.redis_url)}
    try:
        check_ready(session)
    except SchemaMismatch as error:
        checks["migrations"] = str(error)
    except Exception as error:  # whatever is wrong with the database, the answer tells of the others, too
        _log.warning("the database is not ready: %s", error if isinstance(error, DatabaseUnavailable) else repr(error))
        checks["database"] = "It cannot be used. Check that it runs and that DATABASE_URL is right; see the API's log."
        checks["migrations"] = "unknown while the database cannot be used"
    failed = [name for name, found in checks.items() if found != "ok"]
    if failed:
        raise ApiProblem("not-ready", f"Not ready: {', '.join(failed)}; see checks.", checks=checks)
    return Health(status="ok", checks=checks)


@router.get(
    "/metrics",
    operation_id="get_platform_metrics",
    response_class=Response,
    responses={200: {"description": "For Prometheus.", "content": {"text/plain": {"schema": {"type": "string"}}}}},
)
def get_platform_metrics(request: Request) -> Response:
    """Numbers for Prometheus: requests that this process answered, runs by state, slots, what waits."""
    return Response(generate_latest(request.app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)


def _broker(url: str) -> str:
    try:
        once = Retry(NoBackoff(), 0)  # an answer within the time limit matters more than a second try
        with redis.Redis.from_url(
            url, retry=once, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        ) as client:
            client.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        _log.warning("the broker is not ready: %s", error)
        return "It does not answer. Check that it runs and that REDIS_URL is right; see the API's log."
    return "ok"
