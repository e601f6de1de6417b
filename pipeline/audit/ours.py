"""A run of this platform: its folder, or its `rollouts/` with a Parquet file a step (`pipeline.rollouts`). The prompts'
texts are taken from the run's events, when those are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

from pipeline.audit.rows import EXCERPT, Columns, Fault, Row, number, success_of, tokens_of


def files(folder: Path) -> list[Path]:
    for place in (folder, folder / "rollouts"):
        if found := sorted(p for p in place.glob("step_*.parquet") if re.fullmatch(r"step_\d+", p.stem)):
            return found
    return []


class Reader:
    def __init__(self) -> None:
        self._texts: dict[Path, dict[str, str]] = {}

    def read(self, path: Path, columns: Columns) -> Iterator[Row | Fault]:
        rewards = columns.reward or ("reward",)
        success = columns.success or "success"
        texts = self._of_run(path.parent.parent)
        wanted = list(dict.fromkeys(["step", "prompt_id", *rewards, success, "n_tokens"]))
        with pq.ParquetFile(path) as file:
            if missing := [name for name in wanted if name not in file.schema_arrow.names]:
                raise ValueError(f"has no column {', '.join(map(repr, missing))}: it is none of this platform's files")
            row_number = 0
            for batch in file.iter_batches(batch_size=4096, columns=wanted):
                for row in batch.to_pylist():
                    row_number += 1
                    try:
                        prompt = str(row["prompt_id"])
                        yield Row(
                            int(row["step"]),
                            prompt,
                            texts.get(prompt, prompt),
                            sum(number(row[name], name) for name in rewards),
                            success_of(row[success], success),
                            tokens_of(row["n_tokens"], "n_tokens"),
                        )
                    except (TypeError, ValueError) as error:
                        yield Fault(path, row_number, str(error))

    def _of_run(self, run: Path) -> dict[str, str]:
        """Prompt id -> the beginning of its text. The first events of the first attempt hold them."""
        if run not in self._texts:
            found = self._texts[run] = {}
            for path in sorted(run.glob("attempts/*/events.jsonl"))[:1]:
                with path.open("rb") as events:
                    for line in events:
                        if b'"type":"step_finished"' in line[:4096]:
                            break
                        try:
                            event = json.loads(line)
                            found |= {p["id"]: p["text"][:EXCERPT] for p in event.get("prompts", ())}
                        except (ValueError, TypeError, KeyError, AttributeError):
                            continue  # only the report's looks depend on it
        return self._texts[run]
