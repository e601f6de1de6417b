"""A CSV file with a header: step, prompt, reward, and where there are such columns success and tokens. An empty reward
is a failed one."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from pipeline.audit.rows import Columns, Fault, Row, number, step_of, success_of, tokens_of

csv.field_size_limit(16 << 20)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.csv"))


def read(path: Path, columns: Columns) -> Iterator[Row | Fault]:
    rewards = columns.reward or ("reward",)
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True)
        names = rows.fieldnames or []
        wanted = ["step", "prompt", *rewards, *([columns.success] if columns.success else [])]
        if missing := [name for name in wanted if name not in names]:
            raise ValueError(f"has no column {', '.join(map(repr, missing))}; it has {', '.join(names) or 'none'}")
        success = columns.success or ("success" if "success" in names else None)
        for number_of_row, row in enumerate(rows, start=1):
            try:
                if None in row or any(row[name] is None for name in wanted):
                    raise ValueError(f"has not the {len(names)} fields of the header")
                given = {name: value or None for name, value in row.items()}
                yield Row(
                    step_of(given["step"] if given["step"] is not None else "nothing"),
                    row["prompt"],
                    row["prompt"],
                    sum(number(given[name], name) for name in rewards),
                    None if success is None else success_of(given[success], success),
                    tokens_of(given["tokens"], "tokens") if "tokens" in names else None,
                )
            except ValueError as error:
                yield Fault(path, number_of_row, str(error))
