"""Published data sets -> prompt sets: the files of `pilot data prepare`.

A data set's files come from the Hugging Face hub, or from wherever the user put them, and are read by their published
columns (pipeline.prompts.mappings). What a set repeats, contradicts or shares
with its held-out prompts is left out of training and counted, never passed on in silence.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.config import PROTOCOLS, DataConfig, MappingName
from pipeline.prompts import FileFault, Prompt, RowFault, load_prompts, read_prompts
from pipeline.prompts.files import READERS
from pipeline.prompts.mappings import LAYOUTS, Layout

INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
"""Follows each question, as in the Pilot-Commit paper's runs: the math reward looks for the box."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a set of rows is published: a data set on the hub, which of its files (patterns), and their columns."""

    hub: str
    files: str
    mapping: MappingName


SOURCES = {
    "deepmath": Source("zwhe99/DeepMath-103K", "data/*.parquet", "deepmath"),
    "polaris": Source("POLARIS-Project/Polaris-Dataset-53K", "*.jsonl", "polaris"),
    "dapo": Source("BytedTsinghua-SIA/DAPO-Math-17k", "data/*.parquet", "dapo"),
    "gsm8k-train": Source("openai/gsm8k", "main/train-*.parquet", "gsm8k"),
    "gsm8k-test": Source("openai/gsm8k", "main/test-*.parquet", "gsm8k"),
    "math-train": Source("EleutherAI/hendrycks_math", "*/train-*.parquet", "math"),
    "math500": Source("HuggingFaceH4/MATH-500", "test.jsonl", "math500"),
    "aime24": Source("HuggingFaceH4/aime_2024", "data/*.parquet", "aime24"),
    "aime25": Source("math-ai/aime25", "test.jsonl", "aime25"),
    "amc23": Source("math-ai/amc23", "*.parquet", "amc23"),
    "minerva": Source("math-ai/minervamath", "test.jsonl", "minerva"),
    "olympiadbench": Source("Hothan/OlympiadBench", "*OE_TO_maths_en_COMP*.parquet", "olympiadbench"),
    # The Pilot-Commit paper holds 500 questions of DeepMath-103K out and does not say which: see `_picked`.
    "deepmath500": Source("zwhe99/DeepMath-103K", "data/*.parquet", "deepmath"),
}
PICKED = {"deepmath500": 500}
BENCHMARKS = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench")
MATH_7 = tuple(PROTOCOLS["math-7"])
# Name -> the sources of its training prompts and of its held-out prompts.
SETS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "deepmath": (("deepmath",), MATH_7),
    "polaris": (("polaris",), MATH_7),
    "dapo": (("dapo",), BENCHMARKS),
    "gsm8k": (("gsm8k-train",), ("gsm8k-test",)),
    "math": (("math-train",), ("math500",)),
    "benchmarks": ((), BENCHMARKS),
    **{protocol: ((), tuple(benchmarks)) for protocol, benchmarks in PROTOCOLS.items()},
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
        kept = "1 prompt" if len(self.prompts) == 1 else f"{len(self.prompts):,} prompts"
        return f"{self.path}: {kept} of {self.rows:,} rows" + (f" ({words})" if words else "")


def prepare(
    name: str,
    out: Path,
    given: Mapping[str, Sequence[Path]],
    held_out: Sequence[str] = (),
    instruction: str = INSTRUCTION,
) -> list[Prepared]:
    """Write out/train.jsonl and out/eval.jsonl of the set `name` (eval.jsonl alone for a benchmark; for a protocol of
    evaluation.protocol a file for each of its benchmarks, out/aime24.jsonl and so on).

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
        here = {SOURCES[source]: list(paths) for source, paths in given.items()}  # deepmath500 is of deepmath's files
        files = {source: list(given.get(source, here.get(SOURCES[source], ()))) for source in needed}
        files |= fetch([source for source in needed if not files[source]], Path(scratch))
        parts = {s: (s,) for s in evaluation} if name in PROTOCOLS else {"eval": evaluation}
        eval_sets = [
            collect(Prepared(out / f"{part}.jsonl"), {s: files[s] for s in sources}) for part, sources in parts.items()
        ]
        train_set = collect(Prepared(out / "train.jsonl"), {s: files[s] for s in training})
    for shared in train_set.prompts.keys() & {key for found in eval_sets for key in found.prompts}:
        del train_set.prompts[shared]
        train_set.held_out += 1
    written = [*([train_set] if training else []), *(eval_sets if evaluation else [])]
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
        if (same := next((s for s in found if SOURCES[s] == place), None)) is not None:
            found[source] = found[same]
            continue
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
            for row, prompt in _read(path, LAYOUTS[SOURCES[source].mapping]):
                prepared.rows += 1
                if isinstance(prompt, RowFault):
                    if prompt.kind not in ("no_prompt", "no_answer"):
                        raise ValueError(f"{path} cannot be read: row {row}: {prompt}")
                    prepared.unusable += 1
                    continue
                usable += 1
                question, answer = prompt.text, prompt.answer
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
                raise ValueError(f"{path}: no row has a question and an answer in the columns of {source}")
        if source in PICKED:
            _picked(prepared, source, PICKED[source])
    return prepared


def _picked(prepared: Prepared, source: str, n: int) -> None:
    """Keep n of the source's questions, those with the smallest SHA-256: the same whatever the order and the file."""
    ours = {key for key, (_, _, of) in prepared.prompts.items() if of == source}
    if len(ours) < n:
        raise ValueError(f"{source} is {n:,} questions of {SOURCES[source].hub}; the files have {len(ours):,}")
    for key in sorted(ours, key=lambda key: hashlib.sha256(key.encode()).digest())[n:]:
        del prepared.prompts[key]


def _read(path: Path, by: Layout) -> Iterator[tuple[str, Prompt | RowFault]]:
    """Raises ValueError that names the file."""
    try:
        yield from read_prompts([path], by)
    except FileFault as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
