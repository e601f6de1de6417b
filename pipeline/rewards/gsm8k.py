from __future__ import annotations

import re
from decimal import Decimal
from typing import Literal

from pydantic import Field

from pipeline.rewards.types import Response, Reward, Verdict, failed, shown

_NUMBER = r"-?\$?(?:\d[\d,]*(?:\.\d+)?|\.\d+)"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_LAST = re.compile(rf"(?<![\w.])({_NUMBER})")
_CUT = re.compile(r"[\d,]+\.?\d*")  # the tail of a number that is longer than that
_TAIL = 1000  # characters searched; nobody writes a longer final answer


class Gsm8kReward(Reward):
    """1 when the response's final number is the reference's. GSM8K (arXiv 2110.14168) marks it with `####`.

    The number after the last `####` counts, else the last number of the response. Thousands separators and a dollar
    sign are dropped, 18 equals 18.00.
    """

    name: Literal["gsm8k"] = "gsm8k"
    strict: bool = Field(False, description="Only a number after `####` counts, as in the paper's own evaluation.")

    def look(self, response: Response) -> Verdict:
        expected = final_number(response.answer, strict=False)
        if expected is None:
            return failed("the reference answer has no number", expected=shown(response.answer))
        given = final_number(response.text, self.strict)
        if given is None:
            if len(response.text) > _TAIL and _CUT.fullmatch(response.text[-_TAIL:]):
                return Verdict(0.0, "the response's number is too long", expected=f"{expected}")
            missing = "no number after ####" if self.strict else "no number"
            return Verdict(0.0, f"the response has {missing}", expected=f"{expected}")
        why = "the numbers are equal" if given == expected else "the numbers differ"
        return Verdict(float(given == expected), why, shown(f"{given}"), shown(f"{expected}"))


def final_number(text: str, strict: bool) -> Decimal | None:
    tail = text[-_TAIL:]
    found = _MARKED.findall(tail)
    if not found and not strict:
        found = _LAST.findall(tail)
    return Decimal(re.sub("[$,]", "", found[-1])) if found else None
