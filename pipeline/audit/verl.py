"""verl's `trainer.rollout_data_dir`: STEP.jsonl, an object a line with input, output, gts, score, step and the extras
of the reward function (0.9.1: `_write_generations`). `acc`, which verl's reward managers add, is the success."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.audit.rows import Columns, Fault, Row, number, step_of, success_of

MOST_LINE = 64 << 20
"""Bytes of a row: one that is longer is no row of a log."""


def files(folder: Path) -> list[Path]:
    found = [p for p in folder.glob("*.jsonl") if re.fullmatch(r"\d+", p.stem)]
    return sorted(found, key=lambda p: int(p.stem))


def read(path: Path, columns: Columns) -> Iterator[Row | Fault]:
    rewards = columns.reward or ("score",)
    with path.open("rb") as file:
        number_of_row = 0
        while line := file.readline(MOST_LINE):
            number_of_row += 1
            if len(line) == MOST_LINE:
                raise ValueError(f"row {number_of_row} has more than {MOST_LINE >> 20} MiB")
            if not line.strip():
                continue
            try:
                yield _row(line, rewards, columns.success)
            except (ValueError, RecursionError) as error:
                yield Fault(path, number_of_row, str(error))


def _row(line: bytes, rewards: Sequence[str], success: str | None) -> Row:
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"is not JSON ({str(error).split(':')[0]})") from None
    if not isinstance(row, dict):
        raise ValueError(f"is a {type(row).__name__}, not an object")
    if missing := [name for name in ("input", "step", *rewards, *([success] if success else [])) if name not in row]:
        raise ValueError(f"has no {', '.join(map(repr, missing))}; it has {', '.join(sorted(row)[:20]) or 'nothing'}")
    if not isinstance(row["input"], str):
        raise ValueError("'input' is not a text")
    signal = success or ("acc" if "acc" in row else None)
    return Row(
        step_of(row["step"]),
        f"{row['input']}\x1f{row.get('gts')}",
        row["input"],
        sum(number(row[name], name) for name in rewards),
        None if signal is None else success_of(row[signal], signal),
        None,
    )
