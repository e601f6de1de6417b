from __future__ import annotations

import math
import re
from typing import Literal

from pydantic import Field

from pipeline.rewards.types import Response, Reward, Verdict, failed, shown

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


class NumericReward(Reward):
    """1 when the last number of the response lies within the tolerance of the reference answer, else 0.

    A response without a number is wrong (0). A reference answer without one can't be compared: failed.
    """

    name: Literal["numeric"] = "numeric"
    tolerance: float = Field(1e-6, ge=0, description="Largest accepted distance, relative to max(1, |answer|).")

    def look(self, response: Response) -> Verdict:
        expected, given = last_number(response.answer), last_number(response.text)
        if expected is None:
            return failed("the reference answer has no number", expected=shown(response.answer))
        if not math.isfinite(expected):
            return failed("the reference answer's number is too long", expected=shown(response.answer))
        if given is None:
            return Verdict(0.0, "the response has no number", expected=f"{expected:.15g}")
        if not math.isfinite(given):
            return Verdict(0.0, "the response's number is too long", expected=f"{expected:.15g}")
        distance, allowed = abs(given - expected), self.tolerance * max(1.0, abs(expected))
        why = f"the distance is {distance:.6g}, accepted are {allowed:.6g}"
        return Verdict(float(distance <= allowed), why, f"{given:.15g}", f"{expected:.15g}")


def last_number(text: str) -> float | None:
    """The last number in the text, thousands separators dropped; infinite when it overflows, None: there is none."""
    # Only the tail is searched: a response of a megabyte of digits must not cost more than a normal one.
    found = _NUMBER.findall(text[-400:])
    return float(found[-1].replace(",", "")) if found else None
