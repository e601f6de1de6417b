"""What the OpenAPI document promises is what the API does: schemathesis tries every operation with what its schemas
allow and with what they do not, against the real application over HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from api.settings import Settings
from db.models import FINISHED_STATES
from tests.api.rows import add_prompts, add_run
from tests.api.served import ApiServer
from tests.hub import Hub

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_headers_conformance,
    response_schema_conformance,
]  # fmt: skip


@pytest.fixture
def server(database_url: str, broker_url: str, home: Path, hub: Hub) -> Iterator[ApiServer]:
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=home, rate_limit=0)
    with ApiServer(settings) as server:
        yield server


@pytest.fixture
def known(engine: sa.Engine) -> dict[str, str]:
    """Ids that exist: of a run that has ended, so that nothing waits for it, and of one of its prompts."""
    state = FINISHED_STATES[0]
    run = add_run(engine, dataset_id=add_prompts(engine, 3), state=state, attempt=1, step=1)
    return {"run_id": str(run.id), "prompt_id": "p001"}


def operations() -> list[schemathesis.APIOperation]:
    nowhere = Settings(database_url="postgresql://u@127.0.0.1:1/x", redis_url="redis://127.0.0.1:1")
    document = schemathesis.openapi.from_dict(create_app(nowhere).openapi())
    return [found.ok() for found in document.get_all_operations()]


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_every_operation(operation: schemathesis.APIOperation, server: ApiServer, known: dict[str, str]) -> None:
    @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in schemathesis.GenerationMode)))
    def check(case: schemathesis.Case) -> None:
        if case.method != "DELETE" and is_id(case.path_parameters.get("run_id")):
            case.path_parameters |= {name: value for name, value in known.items() if name in case.path_parameters}
        case.call_and_validate(
            base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, checks=CHECKS, timeout=30
        )

    check()


def is_id(value: object) -> bool:
    try:
        return bool(uuid.UUID(str(value)))
    except ValueError:
        return False
