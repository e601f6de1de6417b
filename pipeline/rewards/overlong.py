from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from pipeline.rewards.types import Response, Reward, Verdict, failed
from pipeline.section import Positive


class OverlongReward(Reward):
    """DAPO's soft overlong punishment (arXiv 2503.14476 eq. 13): 0 up to max_tokens - cache, then falling to -1.

    With y the response's tokens: 0 where y <= max_tokens - cache; (max_tokens - cache - y) / cache up to max_tokens;
    -1 beyond. It shapes and does not judge: use it as a part of a sum.
    """

    judges: ClassVar[bool] = False

    name: Literal["overlong"] = "overlong"
    max_tokens: Positive = Field(description="Length from which the penalty is -1. DAPO: 20480.")
    cache: Positive = Field(description="Tokens before max_tokens over which the penalty grows. DAPO: 4096.")

    @model_validator(mode="after")
    def _cache_fits(self) -> Self:
        if self.cache >= self.max_tokens:
            raise ValueError(f"cache={self.cache} is not below max_tokens={self.max_tokens}; give a smaller cache")
        return self

    def look(self, response: Response) -> Verdict:
        if response.n_tokens is None:
            return failed("the number of response tokens is not known")
        free = self.max_tokens - self.cache
        value = max(-1.0, min(0.0, (free - response.n_tokens) / self.cache))
        why = f"{response.n_tokens:,} tokens; free are {free:,}, the penalty is -1 from {self.max_tokens:,}"
        return Verdict(value, why, extracted=f"{response.n_tokens}", expected=f"at most {free}")
