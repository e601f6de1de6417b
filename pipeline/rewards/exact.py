from __future__ import annotations

from typing import Literal

from pipeline.rewards.types import Response, Reward, Verdict, shown


class ExactReward(Reward):
    """1 when the response equals the reference answer after trimming white space, else 0."""

    name: Literal["exact"] = "exact"

    def look(self, response: Response) -> Verdict:
        given, expected = response.text.strip(), response.answer.strip()
        right = given == expected
        why = "the texts are equal" if right else "the texts differ"
        return Verdict(float(right), why, shown(given), shown(expected))
