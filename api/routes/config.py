"""Run configs: their schema, a check that starts nothing, and the shipped presets."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, Response

from api.configs import accept
from api.dependencies import json_body
from api.etags import IfNoneMatch, answered, conditional
from api.openapi import problems
from api.schemas import ConfigCheck, Preset, RunCreate
from pipeline.config import ConfigProblems, RunConfig, presets

router = APIRouter(prefix="/api/v1", tags=["configs"])


@router.get(
    "/config/schema",
    operation_id="get_config_schema",
    response_model=None,
    responses={**conditional("A JSON schema."), **problems("invalid-request")},
)
def get_config_schema(response: Response, if_none_match: IfNoneMatch = None) -> Any:
    """The JSON schema of a run config, with defaults, bounds and descriptions."""
    schema, version = _schema()
    return answered(schema, version, response, if_none_match)


@cache
def _schema() -> tuple[dict[str, Any], str]:
    schema = RunConfig.model_json_schema()
    return schema, hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


@router.post(
    "/config/validate",
    operation_id="validate_config",
    dependencies=[Depends(json_body)],
    responses=problems("invalid-request", "invalid-json", "not-json", "body-too-large"),
)
def validate_config(body: RunCreate) -> ConfigCheck:
    """Check a config and its files as creating a run would. Faults are named in a 200 answer."""
    try:
        config = accept(body.config)
    except ConfigProblems as error:
        return ConfigCheck(valid=False, config=None, problems=error.problems)
    return ConfigCheck(valid=True, config=config.model_dump(mode="json"), problems=[])


@router.get("/presets", operation_id="list_presets")
def list_presets() -> list[Preset]:
    """Configs to begin with."""
    return [Preset.model_validate(preset) for preset in presets()]
