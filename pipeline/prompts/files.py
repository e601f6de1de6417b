"""Rows of JSONL, JSON, CSV and Parquet files, bounded in every direction.

Row numbers count from 1: lines of JSONL (empty ones are passed over), items of a JSON list, records of a CSV after its
header, rows of Parquet. A row that cannot be read comes as a RowFault in its place, so that all of them can be named;
a file that cannot be read at all raises FileFault.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
import stat
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any

from pipeline.prompts.types import FileFault, RowFault

MAX_BYTES = 1 << 30  # of a file
MAX_JSON = 1 << 28  # of a JSON file, which is read as a whole
MAX_ROW = 1 << 22  # bytes of a row
MAX_ROWS = 5_000_000
MAX_DECODED = 1 << 31  # bytes that the wanted columns of a Parquet file may have when decompressed
MAX_GROUP = 1 << 29  # the same of one row group
MAX_BATCH = 1 << 30  # the most that rows of a Parquet file may take at a time

Row = dict[str, Any]
Numbered = tuple[int, Row | RowFault]

_MAGIC = {b"PK\x03\x04": "a zip archive", b"\x1f\x8b": "compressed by gzip", b"BZh": "compressed by bzip2",
          b"\xfd7zXZ": "compressed by xz", b"(\xb5/\xfd": "compressed by zstd"}  # fmt: skip
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of it
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def rows(path: Path, columns: Collection[str] | None = None) -> Iterator[Numbered]:
    """(number, row) of every row, read as it is asked for. columns: only these are read, where the format allows.

    Raises FileFault: no such file, not of a known format, too large, or broken as a whole.
    """
    check(path)
    try:
        for number, row in READERS[path.suffix.lower()](path, columns):
            if number > MAX_ROWS:
                raise FileFault(f"has more than {MAX_ROWS:,} rows; split it")
            yield number, row
    except OSError as error:
        raise FileFault(f"cannot be read: {error.strerror or error}") from None
    except MemoryError:
        raise FileFault("needs more memory than there is; split it") from None


def check(path: Path) -> None:
    """Raises FileFault unless it is a file of a known format and an accepted size."""
    try:
        status = path.stat()
        # A pipe or a device would keep the reader waiting, or never end.
        if not stat.S_ISREG(status.st_mode):
            raise FileFault("is not a regular file; give a file of prompts")
        if path.suffix.lower() not in READERS:
            raise FileFault(f"is of no known format; files end in {', '.join(READERS)}; unpack an archive first")
        if status.st_size > MAX_BYTES:
            raise FileFault(f"has {status.st_size:,} bytes; at most {MAX_BYTES:,} are accepted")
        with path.open("rb") as file:
            first = file.read(8)
    except FileNotFoundError:
        raise FileFault("no such file; give a file of prompts") from None
    except OSError as error:
        raise FileFault(f"cannot be read: {error.strerror or error}") from None
    for magic, what in _MAGIC.items():
        if first.startswith(magic):
            raise FileFault(f"is {what}, whatever its name says; unpack it first")
    if first.startswith(_UTF16):
        raise FileFault("is UTF-16; save it as UTF-8")


def column_names(path: Path) -> list[str] | None:
    """The columns that a file declares for all its rows; None where every row has its own. Raises FileFault."""
    try:
        match path.suffix.lower():
            case ".csv":
                with path.open("rb") as file:
                    return _header(csv.reader(_lines(file), strict=True))
            case ".parquet":
                with _parquet(path) as file:
                    return list(file.schema_arrow.names)
    except OSError as error:
        raise FileFault(f"cannot be read: {error.strerror or error}") from None
    return None


def _read_jsonl(path: Path, _columns: Collection[str] | None) -> Iterator[Numbered]:
    with path.open("rb") as file:
        number = 0
        while line := file.readline(MAX_ROW + 1):
            number += 1
            if len(line) > MAX_ROW:
                while line and not line.endswith(b"\n"):
                    line = file.readline(MAX_ROW)
                yield number, RowFault("malformed", f"has over {MAX_ROW:,} bytes")
                continue
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield number, _object(line)


def _object(line: bytes) -> Row | RowFault:
    try:
        row = json.loads(line.decode(), parse_constant=_no_constant, object_pairs_hook=_each_key_once)
    except UnicodeDecodeError as error:
        return RowFault("encoding", f"is not UTF-8 (byte 0x{line[error.start]:02x} at {error.start})")
    except json.JSONDecodeError as error:
        return RowFault("malformed", f"is not JSON ({error.msg})")
    except RowFault as fault:
        return fault
    except ValueError as error:  # NaN, or an integer of thousands of digits
        return RowFault("malformed", f"is not JSON ({error})")
    except RecursionError:
        return RowFault("malformed", "is nested too deeply")
    return row if isinstance(row, dict) else RowFault("malformed", f"is a {type(row).__name__}, not an object")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no value of JSON")


def _each_key_once(pairs: list[tuple[str, Any]]) -> Row:
    """Which of two values is meant, nobody knows; Python would take the last. Raises RowFault."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        values = " and ".join(ascii(value)[:60] for key, value in pairs if key == twice)
        raise RowFault("malformed", f"names {twice!r} more than once: {values[:200]}")
    return row


def _read_json(path: Path, _columns: Collection[str] | None) -> Iterator[Numbered]:
    if path.stat().st_size > MAX_JSON:
        raise FileFault(f"has over {MAX_JSON:,} bytes, the most that a JSON file may have; write it as JSONL")
    try:
        whole = json.loads(
            path.read_bytes().decode("utf-8-sig"), parse_constant=_no_constant, object_pairs_hook=_each_key_once
        )
    except UnicodeDecodeError as error:
        raise FileFault(f"is not UTF-8 (byte {error.start})") from None
    except RowFault as fault:
        raise FileFault(f"holds an object that {fault}") from None
    except ValueError as error:
        raise FileFault(f"is not JSON: {error}") from None
    except RecursionError:
        raise FileFault("is nested too deeply") from None
    if not isinstance(whole, list):
        raise FileFault(f"holds a {type(whole).__name__}, not a list of objects")
    for number, row in enumerate(whole, start=1):
        wrong = RowFault("malformed", f"is a {type(row).__name__}, not an object")
        yield number, row if isinstance(row, dict) else wrong


def _read_csv(path: Path, _columns: Collection[str] | None) -> Iterator[Numbered]:
    csv.field_size_limit(MAX_ROW)
    with path.open("rb") as file:
        records = csv.reader(_lines(file), strict=True)
        header = _header(records)
        number = 0
        while True:
            try:
                cells = next(records)
            except StopIteration:
                return
            except csv.Error as error:
                raise FileFault(
                    f"breaks off at line {records.line_num}: {error}; nothing can be read beyond it"
                ) from None
            if not cells:  # an empty line
                continue
            number += 1
            if len(cells) != len(header):
                message = f"has {len(cells)} cells where the header has {len(header)} columns"
                yield number, RowFault("malformed", message)
            elif any(map(_NO_UTF8.search, cells)):
                yield number, RowFault("encoding", "is not UTF-8")
            else:
                yield number, dict(zip(header, cells, strict=True))


def _lines(file: IO[bytes]) -> Iterator[str]:
    """Of at most MAX_ROW bytes; what is not UTF-8 as lone surrogates."""
    number = 0
    while line := file.readline(MAX_ROW + 1):
        number += 1
        if len(line) > MAX_ROW:
            raise FileFault(f"has over {MAX_ROW:,} bytes in line {number}; nothing can be read beyond it")
        line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        yield line.decode(errors="surrogateescape")


def _header(records: Any) -> list[str]:
    try:
        header = [name.strip() for name in next(records, [])]
    except csv.Error as error:
        raise FileFault(f"has a header that cannot be read: {error}") from None
    if not any(header):
        raise FileFault("has no prompts; a CSV file begins with a header that names its columns")
    if twice := [name for name in header if header.count(name) > 1]:
        raise FileFault(f"names the column {twice[0]!r} twice in its header")
    return header


def _parquet(path: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, ValueError) as error:
        raise FileFault(f"is not a Parquet file that can be read: {_first_line(error)}") from None


def _read_parquet(path: Path, columns: Collection[str] | None) -> Iterator[Numbered]:
    import pyarrow as pa

    with _parquet(path) as file:
        wanted = [name for name in file.schema_arrow.names if columns is None or name in columns]
        largest = _check_sizes(file.metadata, set(wanted))
        number = decoded = 0
        try:
            # A dictionary repeats a large value at no cost to the file. No value is larger than its column chunk.
            for batch in file.iter_batches(batch_size=max(1, min(64, MAX_BATCH // largest)), columns=wanted):
                batch = _dense(batch)
                decoded += batch.nbytes
                if decoded > MAX_DECODED:
                    raise FileFault(
                        f"has over {MAX_DECODED:,} bytes when decompressed, at row {number + 1}; that is the most"
                    )
                for i in range(batch.num_rows):
                    number += 1
                    yield number, _parquet_row(batch.slice(i, 1))
        except (pa.ArrowException, OSError) as error:
            raise FileFault(f"cannot be read from row {number + 1} on: {_first_line(error)}") from None


def _check_sizes(metadata: Any, wanted: set[str]) -> int:
    """Raises FileFault by what the file says of itself. Returns the bytes of its largest column chunk, at least 1."""
    if metadata.num_rows > MAX_ROWS:
        raise FileFault(f"has {metadata.num_rows:,} rows; at most {MAX_ROWS:,} are accepted")
    total, largest = 0, 1
    for g in range(metadata.num_row_groups):
        group = metadata.row_group(g)
        chunks = [group.column(c) for c in range(group.num_columns)]
        sizes = [c.total_uncompressed_size for c in chunks if c.path_in_schema.split(".")[0] in wanted]
        size = sum(sizes)
        total, largest = total + size, max(largest, *sizes) if sizes else largest
        if size > MAX_GROUP:
            raise FileFault(
                f"has {size:,} bytes in row group {g} when decompressed; at most {MAX_GROUP:,} are accepted: write "
                "smaller row groups"
            )
    if total > MAX_DECODED:
        raise FileFault(f"has {total:,} bytes when decompressed; at most {MAX_DECODED:,} are accepted")
    return largest


def _dense(batch: Any) -> Any:
    """With the values of dictionary columns in their places, so that their size counts."""
    import pyarrow as pa

    columns = [c.dictionary_decode() if pa.types.is_dictionary(c.type) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _parquet_row(batch: Any) -> Row | RowFault:
    if batch.nbytes > MAX_ROW:
        return RowFault("malformed", f"has over {MAX_ROW:,} bytes")
    try:
        row: Row = batch.to_pylist()[0]
    except UnicodeDecodeError:
        return RowFault("encoding", "is not UTF-8")
    # What JSON has no word for is no value either.
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".csv": _read_csv, ".parquet": _read_parquet}
