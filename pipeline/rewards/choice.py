from __future__ import annotations

import re
from typing import Literal

from pydantic import Field

from pipeline.rewards.latex import last_boxed
from pipeline.rewards.types import Response, Reward, Verdict, failed, shown
from pipeline.section import spelled

_TAIL = 2000


class ChoiceReward(Reward):
    """Multiple choice: 1 when the letter that the response settles on is the reference's.

    Taken is, in this order: the last \\boxed{}, the letter after the last "answer is" or "answer:", the last letter in
    parentheses, a response or a last line that is nothing but a letter.
    """

    name: Literal["choice"] = "choice"
    letters: str = Field(
        "ABCDE",
        min_length=2,
        max_length=26,
        pattern=spelled(r"^[A-Z]+$", "capital letters"),
        description="The letters that answers have.",
    )

    def look(self, response: Response) -> Verdict:
        expected = self._alone(response.answer) or self._settled(response.answer)
        if expected is None:
            return failed(f"the reference answer has no letter of {self.letters}", expected=shown(response.answer))
        given = self._settled(response.text)
        if given is None:
            return Verdict(0.0, f"the response settles on no letter of {self.letters}", expected=expected)
        why = "the letters are equal" if given == expected else "the letters differ"
        return Verdict(float(given == expected), why, given, expected)

    def _alone(self, text: str) -> str | None:
        """The letter when the text is nothing else but its wrapping, or starts with it like `(B) 12`."""
        clean = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{|[{}$*\s]", " ", text[:200]).strip()
        found = re.fullmatch(rf"\(?([{self.letters}])\)?(?:[.:)]?|[.:)]\s.*|(?<=\))\s.*)", clean, re.IGNORECASE)
        return found[1].upper() if found else None

    def _settled(self, text: str) -> str | None:
        tail = text[-_TAIL:]
        if (inside := last_boxed(tail)) is not None:
            return self._alone(inside)
        said = re.findall(
            rf"(?i:answer)(?i:\s+is|\s*:)[\s*:]*(?i:option|choice)?[\s*]*\(?([{self.letters}])\)?(?![\w'])", tail
        )
        if said or (said := re.findall(rf"\(([{self.letters}])\)", tail)):
            return str(said[-1])
        return self._alone(tail.strip().rpartition("\n")[2])
