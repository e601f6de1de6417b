"""Rows as a person reads them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]]) -> str:
    """The rows, the first of them the heads, in columns as wide as what is in them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def counted(n: int, one: str) -> str:
    """1 prompt, 1,234 prompts."""
    return f"{n:,} {one}" if n == 1 else f"{n:,} {one}s"
