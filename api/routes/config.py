"""Run configs: their schema, a check that starts nothing, and the shipped presets."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends

from api.configs import accept
from api.dependencies import json_body
from api.openapi import problems
from api.schemas import ConfigCheck, Preset, RunCreate
from pipeline.config import ConfigProblems, RunConfig, presets

router = APIRouter(prefix="/api/v1", tags=["configs"])


@router.get("/config/schema", operation_id="get_config_schema")
def get_config_schema() -> dict[str, Any]:
    """The JSON schema of a run config, with defaults, bounds and descriptions."""
    return RunConfig.model_json_schema()


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
