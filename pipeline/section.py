"""What every part of the run config is made of."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

_SPELLINGS: Final[dict[str, str]] = {}


def spelled(pattern: str, words: str) -> str:
    """The pattern, for a field of text. words: what it accepts, for whoever wrote something else."""
    _SPELLINGS[pattern] = words
    return pattern


def spelling(pattern: str) -> str:
    """What a text that does not match the pattern is told."""
    return f"accepted: {_SPELLINGS[pattern]}" if pattern in _SPELLINGS else f"must match {pattern}"


Positive = Annotated[int, Field(ge=1)]
FilePath = Annotated[str, Field(min_length=1, pattern=spelled(r"^[^\x00]+$", "a path without NUL characters"))]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A part of the run config: unknown keys refused, values immutable, NaN and infinity refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
