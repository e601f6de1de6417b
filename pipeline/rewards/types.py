"""The words of rewards. Every file of this folder is written in terms of these.

- A **response** is what the policy wrote, together with what is needed to judge it.
- A **verdict** is what one reward says about one response. Its value trains, its accuracy judges the prompt.
- A **score** is the verdicts of all parts of a run's reward, put together.
- A verdict that could not be reached is **failed**: NaN, never 0. Its rollout leaves the group.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from pipeline.section import Section

SHOWN = 300
"""Characters of a response, an answer or an error that an explanation repeats."""


@dataclass(frozen=True, slots=True)
class Response:
    """text: what the policy wrote, special tokens removed. answer: the prompt's reference answer. prompt: the prompt's
    text. n_tokens: response tokens, the end-of-sequence token included; None where nobody counted. reward: which of the
    config's named rewards scores it; None means the run's own."""

    text: str
    answer: str
    prompt: str = ""
    n_tokens: int | None = None
    reward: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """value: what trains; NaN when failed. why: one sentence. extracted: what was taken from the response.
    expected: what that was compared with. accuracy: in [0, 1], what judges the prompt; None means the value does.
    doubt: what may be wrong with the reference answer, where it is no failure. seconds: that finding it took at its
    desk, without the start of a process."""

    value: float
    why: str
    extracted: str | None = None
    expected: str | None = None
    accuracy: float | None = None
    doubt: str | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def failed(self) -> bool:
        return math.isnan(self.value)

    @property
    def judged(self) -> float:
        """The accuracy signal; NaN when failed."""
        return self.value if self.accuracy is None or self.failed else self.accuracy


def failed(why: str, extracted: str | None = None, expected: str | None = None) -> Verdict:
    return Verdict(math.nan, why, extracted, expected)


@dataclass(frozen=True, slots=True)
class Score:
    """reward: the weighted sum that trains. accuracy: in [0, 1], what the prompt is judged by. Both NaN when a part
    that they need failed. parts: the verdict of each part, by its name, before weighing. extracted: what the part that
    judges took from the response."""

    reward: float
    accuracy: float
    parts: Mapping[str, Verdict] = field(default_factory=dict)
    extracted: str | None = None

    @property
    def failed(self) -> bool:
        return math.isnan(self.reward) or math.isnan(self.accuracy)

    @property
    def told(self) -> str:
        """The parts as JSON: {name: {value, why, extracted, expected, accuracy}}; null is failed, or not there."""
        parts = {
            name: {
                "value": None if v.failed else v.value,
                "why": v.why,
                "extracted": v.extracted,
                "expected": v.expected,
                "accuracy": v.accuracy,
            }
            for name, v in self.parts.items()
        }
        return json.dumps(parts, ensure_ascii=False)


Question = tuple[str, ...]
"""What is left to find out about a response, where that takes more than a look. Equal questions, equal verdicts."""


class Desk(Protocol):
    """Where questions are answered: reward processes, sandboxes or another machine. Its methods are thread-safe."""

    workers: int
    """Questions that are answered at the same time."""

    def answer(self, question: Question) -> Verdict:
        """Blocks, never longer than the reward's time limit and a second. What goes wrong is a failed verdict."""
        ...

    def close(self) -> None: ...


class Reward(Section):
    """Settings of one reward, and how it scores. `version` rises when the same response would score differently."""

    judges: ClassVar[bool] = True
    """Whether its values are in [0, 1] and say how right a response is."""
    remembers: ClassVar[bool] = True
    """Whether an answered question need not be asked again."""

    name: str
    version: Literal[1] = 1

    def look(self, response: Response) -> Verdict | Question:
        """The verdict, or what is left to ask at the desk. Takes time linear in the response at worst, never raises."""
        raise NotImplementedError

    def faults(self) -> dict[str, str]:
        """What is wrong with the files that it names, by field, as far as a look from here shows. No code is run."""
        return {}

    def known(self, question: Question) -> tuple[str, str]:
        """What the question would compare, extracted and expected: all that can be told where no verdict is reached."""
        return shown(question[0]), shown(question[1])

    def open_desk(self, workers: int) -> Desk | None:
        """None when `look` always decides. Raises ValueError when the desk can't be had as configured."""
        return None


def shown(text: str, limit: int = SHOWN) -> str:
    """The text as an explanation may repeat it on a terminal or a page: no control characters, not too long."""
    if len(text) <= limit and text.isprintable():
        return text
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text[:limit])
    return clean if len(text) <= limit else f"{clean}... ({len(text):,} characters)"
