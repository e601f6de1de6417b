"""Every reward that a run config can name."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, get_args

from pydantic import Field

from pipeline.rewards.weighted import JudgingReward, Part, PartReward, SumReward

RewardConfig = Annotated[JudgingReward | SumReward, Field(discriminator="name")]


def parts_of(config: RewardConfig) -> tuple[tuple[Part, ...], str]:
    """The weighted parts of a reward, and the name of the one that judges."""
    if isinstance(config, SumReward):
        return config.parts, config.judging
    return (Part(reward=config),), config.name


def described() -> list[dict[str, Any]]:
    """Every reward, each {name, version, judges, title, description, schema}: title is the first line of what it says
    about itself, schema the JSON schema of its section."""
    rewards = [*get_args(get_args(PartReward)[0]), SumReward]
    return [
        {
            "name": reward.model_fields["name"].default,
            "version": reward.model_fields["version"].default,
            "judges": getattr(reward, "judges", True),
            "title": (reward.__doc__ or "").splitlines()[0],
            "description": inspect.cleandoc(reward.__doc__ or ""),
            "schema": reward.model_json_schema(),
        }
        for reward in rewards
    ]
