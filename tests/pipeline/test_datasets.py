"""Published data sets -> prompt sets, by the columns that they are published with. `published/` has excerpts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import PROTOCOLS, DataConfig
from pipeline.datasets import BENCHMARKS, INSTRUCTION, SETS, SOURCES, prepare
from pipeline.prompts import load_prompts
from tests.hub import Hub

PUBLISHED = Path(__file__).parent / "published"
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\nRemember to put your answer on its "
    'own line after "Answer:".'
)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def given(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a file of the kind that the name asks for."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def prepared(name: str, folder: Path, **files: Path) -> list[dict[str, Any]]:
    """The only prompt set that the benchmark `name` has."""
    (one,) = prepare(name, folder, {name: [files["file"]]})
    assert one.path == folder / "eval.jsonl"
    return rows_of(one.path)


@pytest.mark.parametrize(
    ("name", "file", "answers"),
    [
        ("math500", "math500", ["1600", "45"]),
        ("aime24", "aime24", ["025"]),
        ("amc23", "amc23", ["27", "36"]),
        ("olympiadbench", "olympiadbench", ["5", "14"]),
        ("minerva", "minerva_math", ["(t + \\frac{1}{2} \\sin{2t}) u(t)", "\\frac{e^{t}} {3}+c e^{-2 t}"]),
    ],
)
def test_benchmarks_by_their_published_columns(name: str, file: str, answers: list[str], tmp_path: Path) -> None:
    written = prepared(name, tmp_path, file=PUBLISHED / f"{file}.jsonl")
    source = rows_of(PUBLISHED / f"{file}.jsonl")
    assert [row["answer"] for row in written] == answers
    for row, published in zip(written, source, strict=True):
        question = published.get("problem") or published["question"]
        assert row["prompt"] == f"{question.strip()}\n\n{INSTRUCTION}" and row["tags"] == [name]


def test_gsm8k_is_read_after_its_mark(tmp_path: Path) -> None:
    files = {"gsm8k-train": [PUBLISHED / "gsm8k.jsonl"], "gsm8k-test": [PUBLISHED / "gsm8k-test.jsonl"]}
    train, held_out = prepare("gsm8k", tmp_path / "new" / "folder", files)
    assert [row["answer"] for row in rows_of(train.path)] == ["72", "10"]
    assert [row["answer"] for row in rows_of(held_out.path)] == ["18", "3"]
    assert str(train) == f"{train.path}: 2 prompts of 2 rows"


def benchmark(tmp_path: Path, questions: list[str]) -> Path:
    return given(tmp_path / "eval.json.jsonl", [{"problem": q, "answer": "0"} for q in questions])


@pytest.mark.parametrize(
    ("name", "file", "row", "question", "answer"),
    [
        (
            "deepmath",
            "train-00000-of-00010.parquet",
            {"question": "Evaluate 1/0.", "final_answer": "\\infty", "difficulty": 4.5, "topic": "Algebra",
             "r1_solution_1": "..."},
            "Evaluate 1/0.",
            "\\infty",
        ),
        (
            "polaris",
            "polaris-data-53K.jsonl",
            {"problem": "What is 2+2?", "answer": "4", "difficulty": "3/8"},
            "What is 2+2?",
            "4",
        ),
        (
            "dapo",
            "dapo-math-17k.parquet",
            {"data_source": "math_dapo", "ability": "MATH",
             "prompt": [{"content": DAPO.format("Find $x$.\n\nIt is odd."), "role": "user"}],
             "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
             "extra_info": {"index": "9a9b"}},
            "Find $x$.\n\nIt is odd.",
            "34",
        ),
        (
            "math",
            "train-00000-of-00001.parquet",
            {"problem": "Add.", "level": "Level 1", "type": "Algebra", "solution": "So $\\boxed{\\frac{1}{2}}$."},
            "Add.",
            "\\frac{1}{2}",
        ),
    ],
)  # fmt: skip
def test_training_sets_by_their_published_columns(
    name: str, file: str, row: dict[str, Any], question: str, answer: str, tmp_path: Path
) -> None:
    (source,) = SETS[name][0]
    files = {source: [given(tmp_path / file, [row, row])], "amc23": [benchmark(tmp_path, ["Other?"])]}
    train, _ = prepare(name, tmp_path / "out", files, held_out=["amc23"])
    (written,) = rows_of(train.path)
    assert written == {"prompt": f"{question}\n\n{INSTRUCTION}", "answer": answer, "tags": [source]}
    assert "1 prompt of 2 rows (1 repeated)" in str(train)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    rows = [
        {"problem": "Kept?", "answer": "1"},
        {"problem": " kept? ", "answer": "1"},  # the same
        {"problem": "Two answers?", "answer": "1"},
        {"problem": "two  answers?", "answer": "2"},
        {"problem": "Two answers?", "answer": "1"},
        {"problem": "HELD OUT?", "answer": "1"},
        {"problem": "No answer?", "answer": " "},
        {"problem": "", "answer": "1"},
        {"answer": "1"},
    ]
    files = {
        "polaris": [given(tmp_path / "a.jsonl", rows), given(tmp_path / "b.jsonl", rows[:1])],
        "amc23": [benchmark(tmp_path, ["Held out?", "Another?"])],
    }
    train, held_out = prepare("polaris", tmp_path, files, held_out=["amc23"], instruction="")
    assert rows_of(train.path) == [{"prompt": "Kept?", "answer": "1", "tags": ["polaris"]}]
    assert len(held_out.prompts) == 2
    assert str(train).endswith(
        "train.jsonl: 1 prompt of 10 rows (3 without question or answer, 2 repeated, 3 with contradicting answers, "
        "1 also held out)"
    )
    assert not [p for p in tmp_path.iterdir() if p.is_dir()], "no scratch folder is left"


def test_what_is_written_is_a_prompt_set(tmp_path: Path) -> None:
    prepared("math500", tmp_path, file=PUBLISHED / "math500.jsonl")
    data = DataConfig(train="t", eval="e")
    assert {p.answer for p in load_prompts(tmp_path / "eval.jsonl", data, "data.eval").prompts} == {"1600", "45"}


@pytest.mark.parametrize(
    ("name", "files", "held_out", "message"),
    [
        ("mnist", {}, [], "unknown data set 'mnist'; known: deepmath, polaris"),
        ("gsm8k", {"gsm8k": "good.jsonl"}, [], "unknown source 'gsm8k'; known: deepmath"),
        ("gsm8k", {"aime24": "good.jsonl"}, [], "aime24 is no source of gsm8k; it needs gsm8k-train, gsm8k-test"),
        ("polaris", {}, ["mnist"], "unknown source 'mnist'"),
        ("aime24", {"aime24": "absent.jsonl"}, [], "absent.jsonl cannot be read: "),
        ("aime24", {"aime24": "good.txt"}, [], "good.txt cannot be read: is of no known format; files end in .jsonl"),
        ("aime24", {"aime24": "columns.jsonl"}, [], "columns.jsonl: no row has a question"),
        ("aime24", {"aime24": "text.jsonl"}, [], "text.jsonl cannot be read: row 2: "),
        ("aime24", {"aime24": "list.jsonl"}, [], "row 1: is a list, not an object"),
        ("aime24", {"aime24": "text.parquet"}, [], "text.parquet cannot be read: "),
        ("aime24", {"aime24": "latin.jsonl"}, [], "latin.jsonl cannot be read: "),
    ],
)
def test_refused(name: str, files: dict[str, str], held_out: list[str], message: str, tmp_path: Path) -> None:
    good = '{"problem": "a?", "answer": "1"}\n'
    for file, text in {
        "good.jsonl": good,
        "good.txt": good,
        "columns.jsonl": '{"text": "a"}',
        "text.jsonl": good + "a: 1",
    }.items():
        (tmp_path / file).write_text(text)
    (tmp_path / "list.jsonl").write_text("[1]")
    (tmp_path / "text.parquet").write_text("no parquet")
    (tmp_path / "latin.jsonl").write_bytes('{"problem": "é"}'.encode("latin-1"))
    with pytest.raises(ValueError) as caught:
        prepare(name, tmp_path / "out", {source: [tmp_path / file] for source, file in files.items()}, held_out)
    assert message in str(caught.value)
    assert not (tmp_path / "out").exists(), "nothing is written"


def test_nothing_left(tmp_path: Path) -> None:
    same = [PUBLISHED / "gsm8k.jsonl"]
    with pytest.raises(ValueError, match="nothing is left to write.*0 prompts of 2 rows .2 also held out"):
        prepare("gsm8k", tmp_path / "out", {"gsm8k-train": same, "gsm8k-test": same})


def test_without_a_network_each_missing_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ValueError) as caught:
        prepare("gsm8k", tmp_path / "out", {"gsm8k-train": [PUBLISHED / "gsm8k.jsonl"]})
    words = str(caught.value)
    assert "gsm8k-test: main/test-*.parquet of openai/gsm8k (" in words and "--from gsm8k-test=FILE" in words
    assert "gsm8k-train" not in words and not (tmp_path / "out").exists()


def test_fetched_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    for split, first in (("train", 0), ("test", 10)):
        rows = [{"question": f"{n} + {n}?", "answer": f"It is\n#### {2 * n}"} for n in range(first, first + 3)]
        file = given(tmp_path / "part.parquet", rows)
        hub[f"openai/gsm8k:main/{split}-00000-of-00001.parquet"] = file.read_bytes()
        hub[f"openai/gsm8k:socratic/{split}-00000-of-00001.parquet"] = b"not asked for"
    train, held_out = prepare("gsm8k", tmp_path / "out", {})
    assert [row["answer"] for row in rows_of(train.path)] == ["0", "2", "4"]
    assert [row["answer"] for row in rows_of(held_out.path)] == ["20", "22", "24"]
    del hub["openai/gsm8k:main/train-00000-of-00001.parquet"]
    with pytest.raises(ValueError, match="gsm8k-train: main/train-.*no file matches"):
        prepare("gsm8k", tmp_path / "again", {})


def test_every_source_of_a_set_is_known() -> None:
    assert {s for train, held_out in SETS.values() for s in (*train, *held_out)} == set(SOURCES)
    assert all(SETS[name] == ((), (name,)) for name in BENCHMARKS)


def test_the_protocol_is_a_file_for_each_benchmark(tmp_path: Path) -> None:
    many = [{"question": f"What is {i} squared?", "final_answer": str(i * i)} for i in range(600)]
    files = {s: [PUBLISHED / f"{'minerva_math' if s == 'minerva' else s}.jsonl"] for s in BENCHMARKS if s != "aime25"}
    files["aime25"] = [given(tmp_path / "aime25.jsonl", [{"problem": "What is 1 + 1?", "answer": "2"}])]
    files["deepmath500"] = [given(tmp_path / "deepmath.parquet", many)]
    written = prepare("math-7", tmp_path / "out", files)
    assert [p.path.name for p in written] == [f"{name}.jsonl" for name in PROTOCOLS["math-7"]]
    picked = {row["prompt"] for row in rows_of(tmp_path / "out" / "deepmath500.jsonl")}
    assert len(picked) == 500
    given(tmp_path / "deepmath.parquet", many[::-1])
    prepare("math-7", tmp_path / "again", files)
    assert {row["prompt"] for row in rows_of(tmp_path / "again" / "deepmath500.jsonl")} == picked
    # DeepMath's own training prompts are the others, from the same files.
    del files["deepmath500"]
    files["deepmath"] = [tmp_path / "deepmath.parquet"]
    train, held_out = prepare("deepmath", tmp_path / "deepmath", files)
    assert {row["prompt"] for row in rows_of(held_out.path)} > picked and train.held_out == 500
    assert not picked & {row["prompt"] for row in rows_of(train.path)} and len(train.prompts) == 100
    files["deepmath500"] = files.pop("deepmath")
    given(tmp_path / "deepmath.parquet", many[:300])
    with pytest.raises(ValueError, match="deepmath500 is 500 questions of zwhe99/DeepMath-103K; the files have 300"):
        prepare("math-7", tmp_path / "few", files)
