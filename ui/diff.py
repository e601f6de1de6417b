"""What two texts have in common, word by word, as HTML."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from html import escape


def words(a: str, b: str) -> str:
    """Both in one: what only `a` has in <ins>, what only `b` has in <del>, the rest as it is."""
    left, right = (re.findall(r"\s+|\w+|[^\w\s]", text) for text in (a, b))
    parts = []
    for kind, i, j, k, n in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append(escape("".join(left[i:j])))
            continue
        if j > i:
            parts.append(f"<ins>{escape(''.join(left[i:j]))}</ins>")
        if n > k:
            parts.append(f"<del>{escape(''.join(right[k:n]))}</del>")
    return "".join(parts)
