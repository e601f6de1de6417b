from __future__ import annotations

from typing import Literal, Self

import regex
from pydantic import Field, model_validator

from pipeline.rewards.types import Response, Reward, Verdict, failed, shown

_SHAPES = {
    "think": r"(?s)\s*<think>(?:(?!</?think>).)+</think>(?:(?!</?think>).)*\S(?:(?!</?think>).)*",
    "think_answer": r"(?s)\s*<think>(?:(?!</?think>).)+</think>\s*<answer>(?:(?!</?answer>).)+</answer>\s*",
    "boxed": r"(?s).*\\boxed\s*\{.+\}.*",
}
_LIMIT_S = 1.0  # a pattern can be made to backtrack for ever


class FormatReward(Reward):
    """1 when the whole response has the wanted form, else 0. A pattern that runs for over a second is failed."""

    name: Literal["format"] = "format"
    shape: Literal["think", "think_answer", "boxed"] | None = Field(
        None,
        description="think: <think>...</think>, then text. think_answer: <think>...</think><answer>...</answer>. "
        "boxed: an answer in \\boxed{}. Unset: pattern says it.",
    )
    pattern: str | None = Field(
        None, min_length=1, max_length=2000, description="Regular expression that the whole response must match."
    )

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.shape is None) == (self.pattern is None):
            raise ValueError(f"give either shape ({', '.join(_SHAPES)}) or pattern")
        if self.pattern is not None:
            try:
                regex.compile(self.pattern)
            except regex.error as error:
                raise ValueError(f"pattern {self.pattern!r} is not a regular expression: {error}") from None
        return self

    def look(self, response: Response) -> Verdict:
        pattern = _SHAPES[self.shape] if self.shape is not None else str(self.pattern)
        form = f"the form {self.shape!r}" if self.shape is not None else f"the pattern {shown(pattern)}"
        try:
            right = regex.fullmatch(pattern, response.text, timeout=_LIMIT_S) is not None
        except TimeoutError:
            return failed(f"matching {form} took over {_LIMIT_S:g} s", shown(response.text), form)
        why = f"the response {'has' if right else 'does not have'} {form}"
        return Verdict(float(right), why, shown(response.text), form)
