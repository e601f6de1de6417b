"""Rewards: what a response is worth. NaN means that no reward could be computed; it is never a zero."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from pipeline.config import BoxedReward, ExactReward, NumericReward, RewardConfig

Reward = Callable[[str, str], float]
"""(response, reference answer) -> reward in [0, 1], or NaN when it failed."""

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


def build_reward(config: RewardConfig) -> Reward:
    match config:
        case ExactReward():
            return exact
        case NumericReward(tolerance=tolerance):
            return lambda response, answer: numeric(response, answer, tolerance)
        case BoxedReward():
            return boxed


def exact(response: str, answer: str) -> float:
    """1 when the texts are equal after trimming white space."""
    return float(response.strip() == answer.strip())


def numeric(response: str, answer: str, tolerance: float) -> float:
    """1 when the response's last number is within tolerance * max(1, |answer|) of the answer's last number.

    A response without a number is wrong (0). A reference answer without one can't be compared: NaN.
    """
    expected, given = last_number(answer), last_number(response)
    if expected is None:
        return math.nan
    if given is None:
        return 0.0
    return float(abs(given - expected) <= tolerance * max(1.0, abs(expected)))


def last_number(text: str) -> float | None:
    """The last number written in the text, thousands separators dropped; None when there is none or it overflows."""
    # Only the tail is searched: a response of a megabyte of digits must not cost more than a normal one.
    found = _NUMBER.findall(text[-400:])
    if not found:
        return None
    value = float(found[-1].replace(",", ""))
    return value if math.isfinite(value) else None


def boxed(response: str, answer: str) -> float:
    """1 when the response's last \\boxed{} equals the answer: the same LaTeX but for its spelling, or the same number.

    No algebra: x + 1 and 1 + x differ. A response without a box is wrong (0).
    """
    given = last_boxed(response)
    if given is None:
        return 0.0
    expected, given = plain(last_boxed(answer) or answer), plain(given)
    if expected == given:
        return 1.0
    value, other = number(expected), number(given)
    return float(value is not None and other is not None and abs(value - other) <= 1e-6 * max(1.0, abs(value)))


def last_boxed(text: str) -> str | None:
    """What stands in the last \\boxed{...} or \\fbox{...} of the text, braces balanced; None when there is none."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    begin = text.index("{", start) + 1
    depth = 1
    for position in range(begin, min(len(text), begin + 2000)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


_SPELLINGS = tuple(
    (re.compile(pattern), by)
    for pattern, by in (
        (r"\\(?:left|right|displaystyle|limits|[,;:! ])(?![A-Za-z])", ""),
        (r"\\(?:text|textbf|mathrm|mathbf|operatorname|mbox)\s*\{([^{}]*)\}", r"\1"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)", ""),
        (r"\\(?:%|\$)|[$%]", ""),
        (r"\{,\}", ""),  # thousands
        (r"\s+", ""),
        (r"\\frac([0-9a-zA-Z])([0-9a-zA-Z])", r"\\frac{\1}{\2}"),
        (r"\\sqrt([0-9a-zA-Z])", r"\\sqrt{\1}"),
        (r"^[a-zA-Z]=", ""),
        (r"\.$", ""),
    )
)


def plain(latex: str) -> str:
    """The LaTeX of an answer in one spelling: without spaces, sizes, text commands, dollars, degrees, thousands."""
    latex = latex[:2000]
    for pattern, by in _SPELLINGS:
        latex = pattern.sub(by, latex)
    return latex


_FRACTION = re.compile(r"(-?)\\frac\{(-?\d{1,30})\}\{(-?\d{1,30})\}|(-?\d{1,30})/(\d{1,30})")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3}){1,9}(?:\.\d{0,30})?")
_DECIMAL = re.compile(r"[-+]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})")


def number(latex: str) -> float | None:
    """The value of plain LaTeX that is a decimal number or a fraction of whole numbers; None for anything else."""
    if _THOUSANDS.fullmatch(latex):
        latex = latex.replace(",", "")
    if _DECIMAL.fullmatch(latex):
        return float(latex)
    if not (found := _FRACTION.fullmatch(latex)):
        return None
    sign, top, bottom, over, under = found.groups()
    numerator, denominator = (int(top), int(bottom)) if top else (int(over), int(under))
    return None if denominator == 0 else (-1 if sign else 1) * numerator / denominator
