"""Run configs: their schema, a check that starts nothing, and the shipped presets."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from fastapi import APIRouter, Depends, Response

from api.configs import accept
from api.dependencies import Reading, json_body
from api.etags import IfNoneMatch, answered, conditional
from api.openapi import problems
from api.schemas import ConfigCheck, Preset, RunCreate
from db import history
from pipeline.config import ConfigProblems, RunConfig, presets
from pipeline.forecast import EDGES, Forecast, History, Length, Pace, Seen, forecast
from pipeline.prompts import count_run_prompts

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


@router.post(
    "/config/forecast",
    operation_id="forecast_config",
    dependencies=[Depends(json_body)],
    responses=problems("invalid-request", "invalid-config", "invalid-json", "not-json", "body-too-large"),
)
def forecast_config(body: RunCreate, session: Reading) -> Forecast:
    """What a run with this config would sample and take, from the config and from earlier runs of the same model on
    the same prompts. Starts nothing.
    """
    config = accept(body.config)
    counts = count_run_prompts(config)
    responses = sum(n * (b.samples + b.greedy) for n, b in zip(counts.n_eval, config.benchmarks, strict=True))
    past = history.past(session, counts.digest, config.model.path, EDGES)
    return forecast(config, counts.n_train, responses, _history(config, past))


def _history(config: RunConfig, past: history.Past) -> History:
    ours = config.engine.name, config.engine.devices.kind, config.engine.n_gpus
    paces = [
        Pace(
            str(run.run),
            run.sample_s / run.rollouts,
            run.update_s / run.trained,
            run.eval_s / run.eval_rollouts,
            max(0.0, run.seconds - run.sample_s - run.update_s - run.eval_s) / run.steps,
        )
        for run in past.runs
        if (run.engine, run.device, run.n_gpus) == ours and run.trained and run.eval_rollouts
    ]
    return History(
        [Seen(str(seen.run), seen.part, seen.n, seen.k, seen.groups) for seen in past.groups],
        [Length(str(part.run), part.part, part.rollouts, part.tokens) for part in past.sampled if part.rollouts],
        paces,
        len(past.runs),
        past.prompts,
        max((run.steps for run in past.runs), default=0),
    )


@router.get("/presets", operation_id="list_presets")
def list_presets() -> list[Preset]:
    """Configs to begin with."""
    return [Preset.model_validate(preset) for preset in presets()]
