"""The API application. `uvicorn --factory api.app:create_app`, or `python -m api`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

from api import openapi, reference
from api.guard import Guard
from api.metrics import Metrics
from api.problems import HANDLED, UPLOAD_LIMIT, ApiProblem, answer
from api.routes import (
    audits,
    compare,
    config,
    evaluations,
    events,
    files,
    health,
    marks,
    platform,
    prompt_sets,
    prompts,
    rewards,
    runs,
    tokens,
    views,
    webhooks,
)
from api.settings import Settings
from db import create_engine

_CONNECTIONS = 5  # kept; as many again under load, and no more threads than that
# Requests with a database session at a time. A request keeps its connection while it waits for a thread, so no thread
# may wait for a connection. Whoever takes one without this leave keeps it within one thread; the rest is theirs.
_SESSIONS = 2 * _CONNECTIONS - 2


def create_app(settings: Settings | None = None) -> FastAPI:
    """The app, with settings from the environment unless given. Connects to nothing until the first request.

    Raises SettingsMissing, and DatabaseUnavailable when DATABASE_URL is not a Postgres address.
    """
    settings = settings or Settings.from_environment()
    engine = create_engine(settings.database_url, application="pilot-api", pool_size=_CONNECTIONS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = 2 * _CONNECTIONS
        yield
        engine.dispose()

    app = FastAPI(
        title="Pilot-Commit",
        summary="Start, watch and stop RL post-training runs that spend rollouts where they count.",
        description="Send `Authorization: Bearer <token>`. Every error is an RFC 9457 problem "
        "(`application/problem+json`) that says what to do.",
        version="1",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.engine = engine
    app.state.sessions = anyio.Semaphore(_SESSIONS)
    app.state.metrics = Metrics(engine)
    app.state.ending = lambda: False  # whoever serves the app replaces it: streams end when it is true
    app.state.snapshots = engine.execution_options(isolation_level="REPEATABLE READ")
    topics = (runs, events, views, compare, audits, evaluations, files, prompts, marks, prompt_sets, config, tokens)
    for topic in (*topics, webhooks, platform, rewards, health):
        app.include_router(topic.router)
    for error in (ApiProblem, *HANDLED, Exception):
        app.add_exception_handler(error, answer)
    app.add_middleware(
        Guard,
        engine=engine,
        sessions=app.state.sessions,
        metrics=app.state.metrics,
        allowed_hosts=settings.allowed_hosts,
        allowed_origins=settings.cors_origins,
        rate_per_s=settings.rate_limit,
        uploads={audits.UPLOAD: UPLOAD_LIMIT, **dict.fromkeys(prompt_sets.UPLOADS, prompt_sets.MAX_UPLOAD)},
    )
    if settings.cors_origins:
        # The outermost: a browser asks for leave without a token, and reads refusals, too.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
            allow_headers=["authorization", "content-type", "idempotency-key", "if-none-match", "last-event-id"],
            expose_headers=["etag", "idempotency-replayed", "location", "retry-after", "x-request-id"],
        )
    openapi.complete(app)
    reference.add_to(app)
    return app
