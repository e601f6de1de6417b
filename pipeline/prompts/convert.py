"""One prompt set into another format: `pilot data convert`."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.config import ConfigProblems, DataConfig
from pipeline.prompts.load import load_prompts
from pipeline.prompts.places import from_here
from pipeline.prompts.types import Prompt, PromptSet


def convert(data: DataConfig, out: Path) -> PromptSet:
    """Reads data.train, a path from the current folder, and writes .jsonl (our columns) or .parquet (verl's). The file
    appears whole or not at all. Raises ConfigProblems."""
    prompts = load_prompts(from_here(data.train), data, "IN")
    match out.suffix.lower():
        case ".jsonl":
            write_jsonl(prompts.prompts, out)
        case ".parquet":
            from pipeline.prompts.verl_files import write_verl  # pyarrow is large, and most who read prompts write none

            write_verl(prompts.prompts, out, prompts.name)
        case _:
            raise ConfigProblems.one("OUT", str(out), "ends in .jsonl (our columns) or .parquet (verl's layout)")
    return prompts


def write_jsonl(prompts: tuple[Prompt, ...], path: Path) -> None:
    """In the columns of the mapping `plain`, sorted by id, so that equal sets are equal files."""
    draft = path.with_name(f".{path.name}.writing")
    with draft.open("w", encoding="utf-8") as file:
        for prompt in sorted(prompts, key=lambda p: p.id):
            file.write(line_of(prompt) + "\n")
    draft.replace(path)


def line_of(prompt: Prompt) -> str:
    row = {
        "prompt": prompt.chat if prompt.messages else prompt.text,
        "answer": prompt.answer,
        "tags": list(prompt.tags),
        "reward": prompt.reward,
    }
    return json.dumps({name: value for name, value in row.items() if value or name == "answer"}, ensure_ascii=False)
