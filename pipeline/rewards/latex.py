"""Finding a response's final answer in LaTeX. Everything here takes time linear in what it reads, and reads little."""

from __future__ import annotations

import re

MAX_ANSWER = 1000
"""Characters of a final answer that are read; no reference answer is nearly as long."""

_BETWEEN = re.compile(r"(?:[\s$,;]|\\quad|\\qquad|\\[()\[\] ,;]|\\text\s*\{|\}|and|or)*")
_JOINS = re.compile(r"[,;]|and|or")
_MOST = 6  # boxes that may form one answer


def last_boxed(text: str) -> str | None:
    """What stands in the last closed \\boxed{} of the text; None when there is none that closes in MAX_ANSWER."""
    found = _last(text, len(text))
    return found[2] if found else None


def final_boxes(text: str) -> list[str]:
    """The last closed \\boxed{} and those that only commas, `and` or `or` keep apart from it, in their order."""
    found = _last(text, len(text))
    inside: list[str] = []
    while found is not None and len(inside) < _MOST:
        start, _, content = found
        inside.append(content)
        before = _last(text, start)
        if before is None or start - before[1] > 60:
            break
        between = text[before[1] : start]
        if not _BETWEEN.fullmatch(between) or not _JOINS.search(between):
            break
        found = before
    return inside[::-1]


def _last(text: str, end: int) -> tuple[int, int, str] | None:
    """(start, end, content) of the last closed \\boxed{...}, \\boxed x or \\fbox{...} that ends at `end` or before."""
    for _ in range(8):  # unclosed ones are passed over, but not without end
        start = max(text.rfind("\\boxed", 0, end), text.rfind("\\fbox", 0, end))
        if start < 0:
            return None
        opening = text.index("box", start) + len("box" if text[start + 1] == "f" else "boxed")
        while opening < end and text[opening] == " ":
            opening += 1
        if opening < end and text[opening] == "{":
            if (closing := _closing(text, opening, end)) is not None:
                return start, closing + 1, text[opening + 1 : closing]
        elif word := re.match(r"[^\s{}$\\]{1,40}", text[opening : min(end, opening + 40)]):
            return start, opening + word.end(), word[0]
        end = start
    return None


def _closing(text: str, opening: int, end: int) -> int | None:
    """Where the brace that opens at `opening` closes; escaped braces do not count."""
    depth, at = 0, opening
    end = min(end, opening + MAX_ANSWER + 2)
    while at < end:
        match text[at]:
            case "\\":
                at += 1
            case "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return at
        at += 1
    return None
