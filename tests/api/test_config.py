"""Config schema, validation without starting anything, presets; and the OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api import schemas
from api.access import OPEN
from db.models import BUCKETS, RUN_STATES, Run
from pipeline.config import RunConfig


def test_the_schema_is_that_of_the_config(api: TestClient) -> None:
    assert api.get("/api/v1/config/schema").json() == RunConfig.model_json_schema()


def test_a_valid_config_comes_back_whole_and_starts_nothing(
    api: TestClient, engine: sa.Engine, config: dict[str, Any]
) -> None:
    body = api.post("/api/v1/config/validate", json={"config": config}).json()
    assert (body["valid"], body["problems"]) == (True, [])
    assert body["config"] == RunConfig.model_validate(config).model_dump(mode="json")
    with Session(engine) as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Run)) == 0


def test_a_config_whose_files_are_missing_is_not_valid(api: TestClient, config: dict[str, Any]) -> None:
    config["model"]["path"] = "/nowhere"
    config["data"]["eval"] = config["data"]["train"]
    body = api.post("/api/v1/config/validate", json={"config": config}).json()
    assert (body["valid"], body["config"]) == (False, None)
    assert {p["field"] for p in body["problems"]} == {"model.path", "data.eval"}


def test_an_override_that_the_config_decides_is_named_before_the_run(api: TestClient, config: dict[str, Any]) -> None:
    config["engine"] = {"name": "verl", "overrides": {"actor_rollout_ref.actor.optim.lr": 1, "trainer.use_v1": False}}
    body = api.post("/api/v1/config/validate", json={"config": config}).json()
    assert {p["field"]: p["message"] for p in body["problems"]} == {
        "engine.overrides.actor_rollout_ref.actor.optim.lr": "is what update.lr decides; change that instead",
        "engine.overrides.trainer.use_v1": "cannot be changed: the recipe is a trainer of verl's v1 interface",
    }


def test_every_preset_is_a_config(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    for preset in api.get("/api/v1/presets").json():
        RunConfig.model_validate(preset["config"])
    shipped = [{"name": "a", "group": "", "title": "A", "description": "d", "config": {"seed": 1}}]
    monkeypatch.setattr("api.routes.config.presets", lambda: shipped)
    assert api.get("/api/v1/presets").json() == shipped


def test_names_agree_with_the_database() -> None:
    assert schemas.RunState.__args__ == RUN_STATES  # type: ignore[attr-defined]
    assert schemas.Bucket.__args__ == BUCKETS  # type: ignore[attr-defined]


@pytest.fixture
def document(api: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = api.get("/openapi.json").json()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_every_operation_is_named_and_described(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for _, operation in operations(document)]
    assert len(names) == len(set(names)) >= 20
    for name, operation in operations(document):
        assert operation["description"], name
        assert all(parameter["description"] for parameter in operation.get("parameters", [])), name


def test_every_reference_of_the_document_leads_somewhere(document: dict[str, Any]) -> None:
    pending: list[Any] = [document]
    while pending:
        here = pending.pop()
        if isinstance(here, dict):
            if (reference := here.get("$ref")) is not None:
                kind, name = reference.removeprefix("#/components/").split("/")
                assert name in document["components"][kind], reference
            pending += here.values()
        elif isinstance(here, list):
            pending += here


def test_errors_are_documented_as_problems_with_examples_that_fit(document: dict[str, Any]) -> None:
    schema = {"$ref": "#/components/schemas/Problem", **document}
    for name, operation in operations(document):
        errors = {status: r for status, r in operation["responses"].items() if status >= "400"}
        assert {"421", "500"} <= set(errors), name
        is_open = name.removeprefix("GET ") in OPEN
        assert ("401" in errors) == ("security" in operation) == (not is_open), name
        assert ("503" in errors) == (not is_open or "readyz" in name), name
        assert "403" in errors or name.startswith("GET"), name
        for status, response in errors.items():
            assert list(response["content"]) == ["application/problem+json"], (name, status)
            examples = response["content"]["application/problem+json"]["examples"]
            for kind, example in examples.items():
                jsonschema.validate(example["value"], schema)
                assert (example["value"]["type"], str(example["value"]["status"])) == (f"/problems/{kind}", status)


def test_requests_and_answers_have_examples_that_fit(api: TestClient, document: dict[str, Any]) -> None:
    example = document["components"]["schemas"]["RunCreate"]["properties"]["config"]["examples"][0]
    RunConfig.model_validate(example)
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            if status < "400" and "application/json" in response.get("content", {}):
                content = response["content"]["application/json"]
                assert "example" in content, name
                jsonschema.validate(content["example"], {**content["schema"], "components": document["components"]})
