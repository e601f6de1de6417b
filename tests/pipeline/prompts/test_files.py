"""Rows of every format, and files that are made to do harm."""

from __future__ import annotations

import gzip
import json
import os
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import ConfigProblems, DataConfig
from pipeline.prompts import PromptSet, load_prompts
from pipeline.prompts import files as prompt_files

DATA = DataConfig(train="t", eval="e")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": 'a, "b"\nand c?'}]
ROWS: list[dict[str, Any]] = [
    {"prompt": 'What is "1, 2"\n+ 3?', "answer": "[1, 2]", "tags": ["add", "hard"], "reward": "math"},
    {"prompt": CHAT, "answer": "c", "tags": [], "reward": None},
    {"prompt": "è\u2028é 日本?", "answer": "ü", "tags": ["utf-8"], "reward": None},
    {"prompt": "2+2=", "answer": "4", "tags": [], "reward": None},
]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    match path.suffix:
        case ".jsonl":
            path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
        case ".json":
            path.write_text(json.dumps(rows), encoding="utf-8")
        case ".csv":
            import csv

            with path.open("w", encoding="utf-8-sig", newline="") as file:  # with a BOM, as Excel writes it
                writer = csv.DictWriter(file, ["reward", "tags", "answer", "prompt"])
                writer.writeheader()
                for row in rows:
                    prompt = row["prompt"] if isinstance(row["prompt"], str) else json.dumps(row["prompt"])
                    writer.writerow({**row, "prompt": prompt, "tags": "; ".join(row["tags"])})
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=2)
    return path


def load(path: Path) -> PromptSet:
    return load_prompts(path, DATA, "data.train")


def refusal(path: Path) -> str:
    with pytest.raises(ConfigProblems) as caught:
        load(path)
    return caught.value.problems[0].message


def test_ids_are_the_same_in_every_format_and_order(tmp_path: Path) -> None:
    plain = load(write(tmp_path / "a.jsonl", ROWS))
    for format in (".json", ".csv"):
        rows = random.Random(1).sample(ROWS, len(ROWS))
        assert load(write(tmp_path / f"b{format}", rows)) == PromptSet("b", plain.prompts)
    # A column of Parquet has one type: texts and chats are in files of their own.
    for part in (ROWS[1:2], [ROWS[0], *ROWS[2:]]):
        assert set(load(write(tmp_path / "c.parquet", part)).prompts) < set(plain.prompts)


def test_ids_of_plain_prompts_are_those_of_the_first_release(tmp_path: Path) -> None:
    (prompt,) = load(write(tmp_path / "a.jsonl", ROWS[3:])).prompts
    assert prompt.id == "6ca331d54d65dc41"
    as_chat = [{**ROWS[3], "prompt": [{"role": "user", "content": "2+2="}]}]
    assert load(write(tmp_path / "b.jsonl", as_chat)).prompts == (prompt,)


def test_what_a_chat_becomes(tmp_path: Path) -> None:
    (prompt,) = load(write(tmp_path / "a.jsonl", ROWS[1:2])).prompts
    assert prompt.chat == CHAT and prompt.text == CHAT[1]["content"]
    turns = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "3"}, {"role": "user", "content": "?"}]
    (prompt,) = load(write(tmp_path / "b.jsonl", [{"prompt": turns, "answer": "2"}])).prompts
    assert prompt.text == "user: 2?\n\nassistant: 3\n\nuser: ?" and prompt.chat == turns


def test_system_prompt_and_template(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ROWS)
    data = DataConfig(train="t", eval="e", system="Think.", template="{prompt} Use \\boxed{}.")
    dressed = {p.answer: p for p in load_prompts(path, data, "data.train").prompts}
    assert dressed["4"].chat == [
        {"role": "system", "content": "Think."}, {"role": "user", "content": "2+2= Use \\boxed{}."},
    ]  # fmt: skip
    assert dressed["4"].text == "2+2= Use \\boxed{}."
    assert dressed["c"].chat[0] == CHAT[0], "its own system prompt"
    assert dressed["4"].id != {p.answer: p for p in load(path).prompts}["4"].id
    with pytest.raises(ValueError, match="no {prompt}"):
        DataConfig(train="t", eval="e", template="Solve it.")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "no text in 'prompt'|empty chat"),
        ([{"role": "user", "content": " "}], "empty chat"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "ends with assistant"),
        ([{"role": "user", "content": "a"}, {"role": "system", "content": "b"}, {"role": "user", "content": "c"}],
         "not its first turn"),
        ([{"role": "tool", "content": "a"}], "not a chat"),
        ([{"role": "user", "content": [{"type": "image"}]}], "not a chat"),
        (["a"], "not a chat"),
        ({"role": "user"}, "must be a text or a chat"),
        (True, "must be a text or a chat"),
    ],
)  # fmt: skip
def test_chats_that_are_none(tmp_path: Path, prompt: object, message: str) -> None:
    import re

    assert re.search(message, refusal(write(tmp_path / "a.jsonl", [{"prompt": prompt, "answer": "1"}])))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"a", "files end in .jsonl, .json, .csv, .parquet"),
        ("a.jsonl.gz", gzip.compress(b"{}"), "files end in"),
        ("a.jsonl", gzip.compress(b"{}" * 99), "compressed by gzip, whatever its name says"),
        ("a.csv", b"PK\x03\x04....", "is a zip archive"),
        ("a.jsonl", '{"prompt": "a"}'.encode("utf-16"), "is UTF-16"),
        ("a.jsonl", b"", "has no prompts"),
        ("a.json", b"", "is not JSON"),
        ("a.json", b"[]", "has no prompts"),
        ("a.json", b'{"prompt": "a"}', "holds a dict, not a list"),
        ("a.json", b"[" * 100_000, "nested too deeply"),
        ("a.json", b'[{"prompt": "\xe9"}]', "is not UTF-8 (byte 13)"),
        ("a.json", b'[{"prompt": "a", "answer": "1"}, 7]', "row 2: is a int, not an object"),
        ("a.csv", b"", "has no prompts"),
        ("a.csv", b"prompt,answer\n", "has no prompts"),
        ("a.csv", b"question,answer\na,b\n", "has no column 'prompt'; columns there: question, answer"),
        ("a.csv", b"prompt,prompt\na,b\n", "names the column 'prompt' twice"),
        ("a.csv", b"prompt,answer\na,1\nb\nc,3,4\n", "2 bad rows: row 2: has 1 cells where the header has 2 columns; "),
        ("a.csv", b"prompt,answer\n\xe9,1\n", "row 1: is not UTF-8"),
        ("a.csv", b'prompt,answer\n"never closed,1\n', "nothing can be read beyond it"),
        ("a.csv", b"prompt,answer\na\x00b,1\n", "NUL character in 'prompt'"),
        ("a.parquet", b"", "is not a Parquet file that can be read"),
        ("a.parquet", b"PAR1" + b"\xff" * 99 + b"PAR1", "is not a Parquet file that can be read"),
        ("a.jsonl", b'{"prompt": "a", "answer": NaN}', "row 1: is not JSON (NaN is no value of JSON)"),
        ("a.jsonl", b'{"prompt": "a", "answer": "1", "answer": "2"}', "row 1: names 'answer' more than once: '1' and"),
        ("a.jsonl", b'{"prompt": [{"role": "user", "role": "x"}], "answer": "1"}', "names 'role' more than once"),
        ("a.json", b'[{"prompt": "a", "answer": 1, "answer": 2}]', "an object that names 'answer' more than once: 1"),
        ("a.jsonl", b'{"prompt": "a", "answer": ["1"]}', "row 1: 'answer' must be a text or a number, not ['1']"),
        ("a.jsonl", b'{"prompt": "a", "answer": true}', "row 1: 'answer' must be a text or a number, not True"),
        ("a.jsonl", b'{"prompt": {"a": 1}, "answer": "1"}', "row 1: 'prompt' must be a text or a chat, not {'a': 1}"),
        ("a.jsonl", b'{"prompt": ' + b"[" * 100_000, "row 1: is nested too deeply"),
        ("a.jsonl", b'{"prompt": "a", "answer": ' + b"9" * 5000 + b"}", "row 1: is not JSON (Exceeds the limit"),
        ("a.jsonl", b'{"prompt": "a\\ud800", "answer": "1"}', "half of a surrogate pair in 'prompt'"),
        ("a.jsonl", b'{"prompt": "a\\u0000", "answer": "1"}', "NUL character in 'prompt'"),
        ("a.jsonl", b'{"prompt": "a", "answer": "1", "reward": 3}', "'reward' must be the name of a reward"),
    ],
)  # fmt: skip
def test_hostile_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert message in refusal(path)


def test_a_zip_with_the_name_of_a_parquet_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.parquet", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"0" * 10_000_000)
    assert "zip archive" in refusal(tmp_path / "a.parquet")


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_row_without_an_end_is_never_in_memory(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    with path.open("wb") as file:
        file.write(b'{"prompt": "' if suffix == ".jsonl" else b'prompt,answer\n"')
        file.truncate(1 << 27)  # a hole: it takes no room on the disk, and reads as NULs
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"prompt": "a", "answer": "1"}\n')
    tracemalloc.start()
    try:
        message = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "has over 4,194,304 bytes" in message and peak < 64 << 20
    assert suffix != ".jsonl" or message.startswith("1 bad row: row 1: "), "the next row is read"


def test_files_over_the_limit_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.truncate((1 << 30) + 1)
    assert "has 1,073,741,825 bytes; at most 1,073,741,824 are accepted" in refusal(tmp_path / "a.jsonl")


def test_parquet_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    # One value, repeated by a dictionary: less than 10 kB of file, 40 MB of text.
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 80, pa.int32()), pa.array(["0" * 500_000]))
    table = pa.table({"prompt": column, "answer": ["1"] * 80})
    pq.write_table(table, path, compression="zstd", dictionary_pagesize_limit=1 << 30)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(prompt_files, "MAX_DECODED", 10_000_000)
    assert "has over 10,000,000 bytes when decompressed, at row 1" in refusal(path)
    # What a file says of itself is enough to refuse it.
    monkeypatch.setattr(prompt_files, "MAX_GROUP", 400_000)
    assert "bytes in row group 0 when decompressed" in refusal(path)
    monkeypatch.setattr(prompt_files, "MAX_GROUP", 1 << 29)
    monkeypatch.setattr(prompt_files, "MAX_ROWS", 79)
    assert "has 80 rows; at most 79" in refusal(path)
    monkeypatch.setattr(prompt_files, "MAX_ROWS", 1 << 20)
    # A column that nobody asked for is not decompressed.
    pq.write_table(pa.table({"prompt": ["a"], "answer": ["1"], "other": [b"\x00" * 50_000_000]}), path)
    monkeypatch.setattr(prompt_files, "MAX_DECODED", 1000)
    assert len(load(path)) == 1


def test_parquet_rows_that_cannot_be_prompts(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    broken = pa.array([b"caf\xe9", b"good", b"0" * 5_000_000]).cast(pa.binary()).view(pa.string())
    pq.write_table(pa.table({"prompt": broken, "answer": [1.0, float("nan"), 2.0]}), path)
    assert refusal(path) == (
        "3 bad rows: row 1: is not UTF-8; row 2: has no text in 'answer' (fields there: answer, prompt); "
        "row 3: has over 4,194,304 bytes"
    )
