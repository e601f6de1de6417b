"""The math reward: plain numbers and equal texts are settled by a look, everything else by math-verify.

math-verify's own time limits rely on SIGALRM, which a computation inside one C call (a power tower, a huge factorial)
never hears. Here it runs without them in a reward process that is killed when the time is up.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from pydantic import Field

from pipeline.rewards.latex import MAX_ANSWER, final_boxes
from pipeline.rewards.processes import Job, Processes
from pipeline.rewards.types import Question, Response, Reward, Verdict, failed, shown
from pipeline.rewards.values import differ
from pipeline.sandbox.limits import Limits

_TAIL = 1500  # characters searched for an answer that is in no box
_MEMORY_MB = 2048

_PLAIN = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+|\d{1,30})?(\.\d{1,30})?")
_FRACTION = re.compile(r"([-+]?)(?:\\frac\{(\d{1,30})\}\{(\d{1,30})\}|\\frac(\d)(\d)|(\d{1,30})/(\d{1,30}))")
_SPACING = re.compile(r"(?<!\\)\\[!,;: ]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|~")
_SAID = re.compile(r"(?i:answer is)[\s:]*\$?([-+]?\d[\d,]{0,40}(?:\.\d{1,30})?)\$?\.?\s*$")
_MARKED = re.compile(r"(?<!\\)\$|\\\(|\\\[|\\boxed")  # the text says itself what of it is a formula
_UNITS = re.compile(r"^\\\$|\^\\circ$|\^\{\\circ\}$|\\%$")
_PROSE = re.compile(r"(?=.*[A-Za-z]{4})[A-Za-z][A-Za-z ,.'-]*")
_BARE = re.compile(r"\\(?:[cdt]?frac|[dt]?binom|sqrt)(?:\[[^\]]*\])?\s*(?:\{\s*\}|\Z)")
_GOES_ON = re.compile(
    r"(?:[=^_<>/*]|(?<![A-Za-z^+-])[+-]|\\(?:times|cdot|div|pm|mp|le|leq|ge|geq|ne|neq|approx|equiv|in|to|cup|cap))\s*\Z"
)
_TYPICAL = (
    "42", "\\frac{3}{4}", "2\\sqrt{13}", "x^2+3x-6", "\\left(3, \\frac{\\pi}{2}\\right)", "(2, \\infty)", "x=5", "1,-2",
    "90^\\circ", "6-5i", "\\text{Evelyn}", "\\begin{pmatrix} -1/3 \\\\ 2/3 \\end{pmatrix}", "1 \\pm \\sqrt{19}",
    "y < 2x", "52_8", "\\cos^2 x", "\\{1, 2\\}", "\\frac{e^{2x}}{n!}", "\\log_2 n", "\\$18.90",
)  # fmt: skip


class MathReward(Reward):
    """1 when the response's final answer equals the reference mathematically (math-verify), else 0.

    The final answer is the last \\boxed{}, else what math-verify finds in the end of the response. Blow-ups and hangs
    are failed. An answer of over 1,000 characters is wrong.
    """

    name: Literal["math"] = "math"
    version: Literal[2] = 2  # type: ignore[assignment]  # to 1 a reference that cannot be read made a response wrong
    timeout_s: float = Field(5.0, gt=0, le=300, description="Seconds that comparing one answer may take.")

    boxed_only: bool = Field(False, description="A response without a \\boxed{} is wrong.")

    def look(self, response: Response) -> Verdict | Question:
        reference = reference_of(response.answer)
        if reference is None:
            return failed("the reference answer is empty or too long", expected=shown(response.answer))
        boxes = final_boxes(response.text)
        if len(boxes) == 1:
            given = boxes[0]
        elif boxes:
            joined = ", ".join("\\boxed{" + b + "}" for b in boxes)
            return f"${joined}$", reference
        elif (start := response.text.rfind("\\boxed{")) >= 0 and len(response.text) - start > MAX_ANSWER:
            length = f"{len(response.text) - start:,}"
            return Verdict(0.0, f"the answer goes on for {length} characters", expected=shown(reference))
        elif self.boxed_only:
            return Verdict(0.0, "the response has no \\boxed{}", expected=shown(reference))
        elif said := _SAID.search(response.text[-100:]):
            given = said[1]
        else:
            tail = response.text[-_TAIL:]
            if len(tail) < len(response.text):  # begin at a whole line: half a formula confuses the rest
                tail = tail.partition("\n")[2] or tail
            if not tail.strip():
                return Verdict(0.0, "the response is empty", expected=shown(reference))
            return tail, reference
        # One that is broken may still be mathematics: math-verify says so.
        verdict = compare_plainly(given, reference) if broken(reference) is None else None
        return verdict if verdict is not None else (f"\\boxed{{{given}}}", reference)

    def known(self, question: Question) -> tuple[str, str]:
        given, reference = question
        if given.startswith("\\boxed{") and given.endswith("}"):
            given = given.removeprefix("\\boxed{").removesuffix("}")
        return shown(given), shown(reference)

    def open_desk(self, workers: int) -> Processes:
        return Processes(Job(self, self.timeout_s, Limits(memory_mb=_MEMORY_MB)), workers)


@lru_cache(maxsize=4096)
def reference_of(answer: str) -> str | None:
    """The reference answer without its wrapping: \\boxed{} or dollars around the whole."""
    boxes = final_boxes(answer[-2 * MAX_ANSWER :])
    text = ", ".join(boxes) if boxes else answer.strip()
    text = text[:-1] if text.endswith("$.") else text
    if len(text) > 1 and text[0] == text[-1] == "$" and text.strip("$") and "$" not in text.strip("$"):
        text = text.strip("$")
    return text if text and len(text) <= MAX_ANSWER else None


@lru_cache(maxsize=4096)
def broken(reference: str) -> str | None:
    """What shows that a reference answer was cut off, or that none was ever there; None where nothing does."""
    plain = re.sub(r"\\.", " ", reference, flags=re.DOTALL)  # without what is escaped, and first letters of commands
    if not re.search(r"[^\W_]|[^\x00-\x7f]|\\\{", reference):
        return "it has no letter or digit"
    if plain.count("{") != plain.count("}"):
        return "its braces do not match"
    if reference.count("\\begin{") != reference.count("\\end{"):
        return "an environment of it is not closed"
    if _BARE.search(reference):
        return "a fraction or root of it is empty"
    if _GOES_ON.search(reference):
        return "it ends in the middle of a formula"
    if len(re.findall(r"[(\[]", plain)) > len(re.findall(r"[)\]]", plain)):
        return "a bracket of it is not closed"
    return None


def compare_plainly(given: str, reference: str) -> Verdict | None:
    """Equal texts are right; plain numbers and fractions that differ are wrong; None where that does not settle it."""
    a, b = normalised(given), normalised(reference)
    if a == b and a:
        return Verdict(1.0, "the answers are written alike", shown(given), shown(reference))
    if (unit := _UNITS.search(a)) and (same := _UNITS.search(b)) and unit[0] == same[0]:
        a, b = _UNITS.sub("", a, count=1), _UNITS.sub("", b, count=1)
    x, y = value_of(a), value_of(b)
    if x is not None and x == y:
        return Verdict(1.0, "the numbers are equal", shown(given), shown(reference))
    whole = x is not None and y is not None and "." not in a + b  # then they are known exactly
    if whole or differ(a, b):
        return Verdict(0.0, "the values differ", shown(given), shown(reference))
    return None


@lru_cache(maxsize=65536)
def normalised(text: str) -> str:
    """The LaTeX without what only moves ink: spacing, sizes of brackets and fractions, a closing full stop."""
    text = _SPACING.sub("", text.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac"))
    text = re.sub(r"(?<=\d),\s+(?=\d{3}(?!\d))", ";", text)  # a list, where 1,234 is a number
    text = re.sub(r"(?<![A-Za-z0-9])\s+|\s+(?![A-Za-z0-9])", "", text)
    return text.removesuffix(".")


def canonical(text: str) -> str:
    """One way of writing an answer: a plain number or fraction by its value, anything else without what moves ink."""
    plain = normalised(text)
    value = value_of(plain)
    return plain if value is None else str(value)


@lru_cache(maxsize=65536)
def value_of(text: str) -> Fraction | None:
    """The value of a plain number or fraction; None for anything else."""
    if plain := _PLAIN.fullmatch(text):
        sign, whole, decimals = plain.groups()
        if whole is None and decimals is None:
            return None
        return Fraction(f"{sign}{(whole or '0').replace(',', '')}{decimals or ''}")
    if written := _FRACTION.fullmatch(text):
        sign, *parts = written.groups()
        above, below = (int(p) for p in parts if p is not None)
        return Fraction(-above if sign == "-" else above, below) if below else None
    return None


def serve(settings: dict[str, Any]) -> Callable[[str, str], Verdict]:
    """In a reward process: what answers a question. Its time limit is the caller's."""
    import math_verify

    logging.disable(logging.CRITICAL)  # it warns that its own time limits are off

    @lru_cache(maxsize=1024)
    def read(latex: str) -> list[Any]:
        return list(math_verify.parse(latex, parsing_timeout=None))

    for latex in _TYPICAL:  # the parser learns its grammar from what it reads: rather here than in every child
        math_verify.verify(read(f"\\boxed{{{latex}}}"), read("\\boxed{2x+3}"), timeout_seconds=None)

    def compare(given: str, reference: str) -> Verdict:
        expected = read(reference if _MARKED.search(reference) else f"${reference}$")
        as_text, fault = all(isinstance(e, str) for e in expected), broken(reference)
        if as_text and (fault or not expected):
            why = "the reference answer can't be read as mathematics" + (f": {fault}" if fault else "")
            return failed(why, expected=shown(reference))
        doubt = None
        if fault:
            doubt = f"the reference answer may be cut off: {fault}"
        elif as_text:
            doubt = "the reference answer is no mathematics to math-verify: only what is written alike equals it"
        elif _PROSE.fullmatch(reference):
            doubt = "the reference answer is read as a product of letters: write words as \\text{...}"
        found = read(given)
        if not found:
            why = "the response has no answer that can be read"
            return Verdict(0.0, _with(why, doubt), expected=shown(reference), doubt=doubt)
        extracted = shown(str(found[-1]))  # the text: writing out the expression could take for ever
        right = False
        for one, other in itertools.product(expected, found):  # the expression and the text of each
            try:
                right = right or math_verify.verify(one, other, timeout_seconds=None, raise_on_error=True)
            except (MemoryError, RecursionError, OverflowError) as error:
                return failed(f"comparing blew up: {type(error).__name__}", extracted, shown(reference))
            except Exception:  # math-verify's own rule: what sympy can't compare is not equal
                continue
        why = "equal by math-verify" if right else "not equal by math-verify"
        return Verdict(float(right), why if right else _with(why, doubt), extracted, shown(reference), doubt=doubt)

    return compare


def _with(why: str, doubt: str | None) -> str:
    return why if doubt is None else f"{why}; {doubt}"
