"""Published data sets -> prompt sets: the files of `pilot data prepare`.

A data set's files come from the Hugging Face hub, or from wherever the user put them. A row is read by the columns that
the published sets use, whatever the set: see `question_of` and `answer_of`. What a set repeats, contradicts or shares
with its held-out prompts is left out of training and counted, never passed on in silence.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config import DataConfig
from pipeline.prompts import load_prompts
from pipeline.rewards import last_boxed

INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
"""Follows each question, as in the Pilot-Commit paper's runs: the math reward looks for the box."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a set of rows is published: a data set on the hub, and which of its files (patterns)."""

    hub: str
    files: str


SOURCES = {
    "deepmath": Source("zwhe99/DeepMath-103K", "data/*.parquet"),
    "polaris": Source("POLARIS-Project/Polaris-Dataset-53K", "*.jsonl"),
    "dapo": Source("BytedTsinghua-SIA/DAPO-Math-17k", "data/*.parquet"),
    "gsm8k-train": Source("openai/gsm8k", "main/train-*.parquet"),
    "gsm8k-test": Source("openai/gsm8k", "main/test-*.parquet"),
    "math-train": Source("EleutherAI/hendrycks_math", "*/train-*.parquet"),
    "math500": Source("HuggingFaceH4/MATH-500", "test.jsonl"),
    "aime24": Source("HuggingFaceH4/aime_2024", "data/*.parquet"),
    "aime25": Source("math-ai/aime25", "test.jsonl"),
    "amc23": Source("math-ai/amc23", "*.parquet"),
    "minerva": Source("math-ai/minervamath", "test.jsonl"),
    "olympiadbench": Source("Hothan/OlympiadBench", "*OE_TO_maths_en_COMP*.parquet"),
}
BENCHMARKS = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
# Name -> the sources of its training prompts and of its held-out prompts.
SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deepmath": (("deepmath",), BENCHMARKS),
    "polaris": (("polaris",), BENCHMARKS),
    "dapo": (("dapo",), BENCHMARKS),
    "gsm8k": (("gsm8k-train",), ("gsm8k-test",)),
    "math": (("math-train",), ("math500",)),
    "benchmarks": ((), BENCHMARKS),
    **{name: ((), (name,)) for name in BENCHMARKS},
}


@dataclass
class Prepared:
    """A written prompt set, and what became of the rows that are not in it."""

    path: Path
    rows: int = 0
    unusable: int = 0  # no question, or no reference answer
    repeated: int = 0
    contradicting: int = 0  # rows of questions that come with different answers; all of them are left out
    held_out: int = 0  # questions that are also among the held-out ones
    prompts: dict[str, tuple[str, str, str]] = field(default_factory=dict)  # key -> question, answer, source

    def __str__(self) -> str:
        left_out = {
            "without question or answer": self.unusable,
            "repeated": self.repeated,
            "with contradicting answers": self.contradicting,
            "also held out": self.held_out,
        }
        words = ", ".join(f"{n:,} {why}" for why, n in left_out.items() if n)
        return f"{self.path}: {len(self.prompts):,} prompts of {self.rows:,} rows" + (f" ({words})" if words else "")


def prepare(
    name: str,
    out: Path,
    given: Mapping[str, Sequence[Path]],
    held_out: Sequence[str] = (),
    instruction: str = INSTRUCTION,
) -> list[Prepared]:
    """Write out/train.jsonl and out/eval.jsonl of the set `name` (eval.jsonl alone for a benchmark).

    given: files in place of those on the hub, by source. held_out: other sources of the held-out prompts than the
    set's own. Both files are written, or none. Raises ValueError for unknown names, files that cannot be read or are
    of no known layout, and sources that could not be fetched; the message says what to give.
    """
    if name not in SETS:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(SETS)}")
    training, evaluation = SETS[name][0], tuple(held_out) or SETS[name][1]
    needed = (*training, *evaluation)
    for source in (*held_out, *given):
        if source not in SOURCES:
            raise ValueError(f"unknown source {source!r}; known: {', '.join(SOURCES)}")
    if foreign := [s for s in given if s not in needed]:
        raise ValueError(f"{', '.join(foreign)} is no source of {name}; it needs {', '.join(needed)}")
    with tempfile.TemporaryDirectory() as scratch:
        files = {source: list(given.get(source, ())) for source in needed}
        files |= fetch([source for source in needed if not files[source]], Path(scratch))
        eval_set = collect(Prepared(out / "eval.jsonl"), {s: files[s] for s in evaluation})
        train_set = collect(Prepared(out / "train.jsonl"), {s: files[s] for s in training})
    for shared in train_set.prompts.keys() & eval_set.prompts.keys():
        del train_set.prompts[shared]
        train_set.held_out += 1
    written = [s for s, sources in ((train_set, training), (eval_set, evaluation)) if sources]
    for prepared in written:
        if not prepared.prompts:
            raise ValueError(f"nothing is left to write. {prepared}")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        for prepared in written:
            _write(prepared, Path(scratch) / prepared.path.name, instruction)
        for prepared in written:
            (Path(scratch) / prepared.path.name).replace(prepared.path)
    return written


def _write(prepared: Prepared, path: Path, instruction: str) -> None:
    """The prompt set at `path`, read back by the reader of runs."""
    with path.open("w", encoding="utf-8") as file:
        for question, answer, source in prepared.prompts.values():
            prompt = f"{question}\n\n{instruction}" if instruction else question
            file.write(json.dumps({"prompt": prompt, "answer": answer, "tags": [source]}, ensure_ascii=False) + "\n")
    load_prompts(path, DataConfig(train="-", eval="-"), "data")


def fetch(sources: Sequence[str], folder: Path) -> dict[str, list[Path]]:
    """The sources' files from the hub. Raises ValueError that names all that could not be fetched."""
    if not sources:
        return {}
    from huggingface_hub import snapshot_download

    found: dict[str, list[Path]] = {}
    failed: dict[str, str] = {}
    for source in sources:
        place = SOURCES[source]
        try:
            snapshot = snapshot_download(
                place.hub,
                repo_type="dataset",
                allow_patterns=[place.files],
                local_dir=folder / source,
                endpoint=os.environ.get("HF_ENDPOINT"),
            )
        except (OSError, ValueError) as error:  # what huggingface_hub raises is one of these
            failed[source] = str(error).split("\n")[0]
            continue
        found[source] = sorted(p for p in Path(snapshot).rglob("*") if p.suffix in READERS and ".cache" not in p.parts)
        if not found[source]:
            failed[source] = f"no file matches {place.files}"
    if failed:
        lines = [f"  {s}: {SOURCES[s].files} of {SOURCES[s].hub} ({why})" for s, why in failed.items()]
        options = " ".join(f"--from {s}=FILE" for s in failed)
        raise ValueError(
            "These could not be fetched from the Hugging Face hub:\n"
            + "\n".join(lines)
            + "\nDownload them where there "
            f"is a network (https://huggingface.co/datasets/NAME), copy them here, and add: {options}"
        )
    return found


def collect(prepared: Prepared, files: Mapping[str, Sequence[Path]]) -> Prepared:
    """Fill `prepared` with each question once. Raises ValueError for a file that cannot be read or understood."""
    contradicting: set[str] = set()
    for source, paths in files.items():
        for path in paths:
            usable = 0
            for row in read_rows(path):
                prepared.rows += 1
                question, answer = question_of(row), answer_of(row)
                if not question or not answer:
                    prepared.unusable += 1
                    continue
                usable += 1
                key = " ".join(question.casefold().split())
                if key in contradicting:
                    prepared.contradicting += 1
                elif key not in prepared.prompts:
                    prepared.prompts[key] = question, answer, source
                elif prepared.prompts[key][1] == answer:
                    prepared.repeated += 1
                else:
                    contradicting.add(key)
                    del prepared.prompts[key]
                    prepared.contradicting += 2
            if not usable:
                raise ValueError(
                    f"{path}: no row has a question (problem, question or prompt) and an answer (final_answer, "
                    "expected_answer, answer, reward_model.ground_truth, or a \\boxed{} in solution)"
                )
    return prepared


def question_of(row: Mapping[str, Any]) -> str:
    """The question in a published row; empty when there is none.

    `problem` or `question`; else `prompt`, a text or a chat whose last user message counts. DAPO-17k's prompts wrap the
    question in its own first and last paragraph, which ask for another form of answer than a box.
    """
    for column in ("problem", "question"):
        if isinstance(row.get(column), str):
            return _clean(row[column])
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        said = [m.get("content") for m in prompt if isinstance(m, dict) and m.get("role") == "user"]
        prompt = said[-1] if said else None
    if not isinstance(prompt, str):
        return ""
    paragraphs = prompt.split("\n\n")
    if len(paragraphs) > 2 and "Answer: $Answer" in paragraphs[0] and '"Answer:"' in paragraphs[-1]:
        paragraphs = paragraphs[1:-1]
    return _clean("\n\n".join(paragraphs))


def answer_of(row: Mapping[str, Any]) -> str:
    """The reference answer in a published row; empty when there is none.

    `final_answer` (DeepMath; a list in OlympiadBench), `expected_answer`, `answer` (after #### in GSM8K),
    `reward_model.ground_truth` (verl's layout, DAPO-17k), or the last box of `solution` (MATH, Minerva).
    """
    style = row.get("reward_model")
    values = [row.get("final_answer"), row.get("expected_answer"), row.get("answer")]
    values.append(style.get("ground_truth") if isinstance(style, dict) else None)
    for value in values:
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            text = _clean(str(value).rpartition("####")[2])
            if text.startswith("$") and text.endswith("$") and text.count("$") == 2:
                text = text[1:-1].strip()
            if text:
                return text
    solution = row.get("solution")
    return _clean(last_boxed(solution) or "") if isinstance(solution, str) else ""


def _clean(text: str) -> str:
    return text.replace("\x00", "").strip()


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """The rows of a .parquet, .jsonl or .json file (a list). Raises ValueError that names the file."""
    reader = READERS.get(path.suffix)
    if reader is None:
        raise ValueError(f"{path}: files end in {', '.join(READERS)}")
    try:
        yield from reader(path)
    except (OSError, ValueError) as error:  # pyarrow's errors are among these
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from None


def _read_parquet(path: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow.parquet as pq

    wanted = {"problem", "question", "prompt", "final_answer", "expected_answer", "answer", "reward_model", "solution"}
    with pq.ParquetFile(path) as file:
        columns = [c for c in file.schema_arrow.names if c in wanted]
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            yield from batch.to_pylist()


def _read_jsonl(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    yield from _objects([json.loads(line)])
                except ValueError as error:
                    raise ValueError(f"row {number}: {error}") from None


def _read_json(path: Path) -> Iterator[Mapping[str, Any]]:
    rows = json.loads(path.read_text(encoding="utf-8"))
    yield from _objects(rows if isinstance(rows, list) else [rows])


def _objects(rows: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{str(row)[:80]!r} is not an object")
        yield row


READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".json": _read_json}
