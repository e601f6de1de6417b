"""Every reward that a run config can name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pipeline.rewards.choice import ChoiceReward
from pipeline.rewards.exact import ExactReward
from pipeline.rewards.formatting import FormatReward
from pipeline.rewards.gsm8k import Gsm8kReward
from pipeline.rewards.maths import MathReward
from pipeline.rewards.numeric import NumericReward
from pipeline.rewards.weighted import Part, SumReward

# What can judge prompts by itself; what only shapes is a part of a sum.
RewardConfig = Annotated[
    ExactReward | NumericReward | Gsm8kReward | MathReward | ChoiceReward | FormatReward | SumReward,
    Field(discriminator="name"),
]


def parts_of(config: RewardConfig) -> tuple[tuple[Part, ...], str]:
    """The weighted parts of a reward, and the name of the one that judges."""
    if isinstance(config, SumReward):
        return config.parts, config.judging
    return (Part(reward=config),), config.name
