"""TRL's `log_completions`: OUTPUT_DIR/completions/completions_00042.parquet with step, prompt (a text or a chat),
completion, a column for each reward function, the reward functions' own extras, and advantage (`GRPOTrainer.log`).

TRL writes its newest generation batch at every log, so a batch that trains for several steps is in several files; it
counts once, at the first of them. Rewards are added with equal weights, and one that is null is left out of the sum, as
TRL does; a rollout without any is failed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.audit.rows import Columns, Fault, Row, number, prompt_of, step_of, success_of

_NOT_REWARDS = ("step", "prompt", "completion", "advantage")


def files(folder: Path) -> list[Path]:
    for place in (folder, folder / "completions"):
        found = [(m, p) for p in place.glob("*.parquet") if (m := re.fullmatch(r"completions_(\d+)", p.stem))]
        if found:
            return [p for _, p in sorted(found, key=lambda pair: int(pair[0][1]))]
    return []


def reward_columns(schema: pa.Schema) -> list[str]:
    """Columns of floating-point numbers (or of nothing but nulls) between completion and advantage."""
    return [
        field.name
        for field in schema
        if field.name not in _NOT_REWARDS and (pa.types.is_floating(field.type) or pa.types.is_null(field.type))
    ]


class Reader:
    """Remembers the batch before, to know it again."""

    def __init__(self) -> None:
        self._before = b""
        self.repeated = 0
        self.rewards: Sequence[str] = ()

    def read(self, path: Path, columns: Columns) -> Iterator[Row | Fault]:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            rewards = list(columns.reward) or reward_columns(schema)
            wanted = ["step", "prompt", *rewards, *([columns.success] if columns.success else [])]
            if missing := [name for name in wanted if name not in schema.names]:
                raise ValueError(f"has no column {', '.join(map(repr, missing))}; it has {', '.join(schema.names)}")
            if not rewards:
                raise ValueError("has no column of rewards between 'completion' and 'advantage'; name it with --reward")
            digest = hashlib.sha256()
            shown = [name for name in ("prompt", "completion", *rewards) if name in schema.names]
            for batch in file.iter_batches(batch_size=1024, columns=shown):
                digest.update(repr(batch.to_pylist()).encode(errors="replace"))
            if digest.digest() == self._before:
                self.repeated += 1
                return
            self._before, self.rewards = digest.digest(), rewards
            row_number = 0
            for batch in file.iter_batches(batch_size=1024, columns=wanted):
                for row in batch.to_pylist():
                    row_number += 1
                    try:
                        yield _row(row, rewards, columns.success)
                    except ValueError as error:
                        yield Fault(path, row_number, str(error))


def _row(row: dict[str, Any], rewards: Sequence[str], success: str | None) -> Row:
    prompt, text = prompt_of(row["prompt"])
    values = [value for name in rewards if not math.isnan(value := number(row[name], name))]
    return Row(
        step_of(row["step"]),
        prompt,
        text,
        sum(values) if values else math.nan,
        None if success is None else success_of(row[success], success),
        None,
    )
