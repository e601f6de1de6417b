from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.rewards.choice import ChoiceReward
from pipeline.rewards.coding import CodeReward
from pipeline.rewards.exact import ExactReward
from pipeline.rewards.formatting import FormatReward
from pipeline.rewards.function import FunctionReward
from pipeline.rewards.gsm8k import Gsm8kReward
from pipeline.rewards.gym import ReasoningGymReward
from pipeline.rewards.judge import JudgeReward
from pipeline.rewards.maths import MathReward
from pipeline.rewards.numeric import NumericReward
from pipeline.rewards.overlong import OverlongReward
from pipeline.section import Section

JudgingReward = (
    ExactReward
    | NumericReward
    | Gsm8kReward
    | MathReward
    | ChoiceReward
    | CodeReward
    | FunctionReward
    | ReasoningGymReward
    | JudgeReward
    | FormatReward
)
"""What can judge a response by itself."""

PartReward = Annotated[JudgingReward | OverlongReward, Field(discriminator="name")]


class Part(Section):
    """One summand."""

    weight: float = Field(1.0, description="What its value is multiplied by.")
    reward: PartReward


class SumReward(Section):
    """The weighted sum of several rewards. Each part is kept; one of them judges how right a response is."""

    name: Literal["sum"] = "sum"
    version: Literal[1] = 1
    parts: tuple[Part, ...] = Field(min_length=1, max_length=16, description="Each reward at most once.")
    judge: str | None = Field(
        None, description="The part whose value judges prompts and is the accuracy; unset means the first part."
    )

    @model_validator(mode="after")
    def _one_part_judges(self) -> Self:
        names = [part.reward.name for part in self.parts]
        if len(set(names)) < len(names):
            raise ValueError(f"parts {', '.join(names)}: name each reward once")
        judging = [part.reward.name for part in self.parts if part.reward.judges]
        if self.judging not in judging:
            raise ValueError(
                f"judge {self.judging!r} can't judge a response; parts that can: {', '.join(judging) or 'none'}"
            )
        return self

    @property
    def judging(self) -> str:
        return self.judge if self.judge is not None else self.parts[0].reward.name
