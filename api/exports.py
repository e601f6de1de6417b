"""Prompts as a file of another run's training prompts."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO, Literal, cast

from db.views import PromptStanding

_ROWS_AT_ONCE = 5000


def written(rows: Iterator[PromptStanding], format: Literal["jsonl", "parquet"]) -> BinaryIO:
    """A file without a name, at its beginning; it is gone when it is closed.

    It is whole before the first byte is sent, so that a slow client holds no database connection, and a fault is
    answered as one.
    """
    file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115 - whoever sends it closes it
    try:
        if format == "jsonl":
            for row in rows:
                file.write(json.dumps(_row(row), ensure_ascii=False).encode() + b"\n")
        else:
            _write_parquet(rows, file)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _write_parquet(rows: Iterator[PromptStanding], file: BinaryIO) -> None:
    import pyarrow as pa  # large, and nothing else that the API does with prompts needs it
    from pyarrow import parquet

    schema = pa.schema(
        [
            ("prompt", pa.string()), ("answer", pa.string()), ("tags", pa.list_(pa.string())), ("id", pa.string()),
            ("bucket", pa.string()), ("success_rate", pa.float64()), ("visits", pa.int64()), ("rollouts", pa.int64()),
            ("tokens", pa.int64()), ("step", pa.int64()),
        ]
    )  # fmt: skip
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist([_row(row) for row in some], schema))


def _row(row: PromptStanding) -> dict[str, Any]:
    """With the field names that a prompt set has by default."""
    return {"prompt": row.text, "answer": row.answer} | {
        name: value for name, value in row._asdict().items() if name not in ("text", "answer")
    }
