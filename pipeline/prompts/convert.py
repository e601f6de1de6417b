"""One prompt set into another format: `pilot data convert`."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.config import ConfigProblems, DataConfig
from pipeline.prompts.load import load_in_order
from pipeline.prompts.places import from_here
from pipeline.prompts.types import Prompt


def convert(data: DataConfig, out: Path) -> list[Prompt]:
    """Reads data.train, a path from the current folder, and writes .jsonl (our columns) or .parquet (verl's), rows in
    their order. The file appears whole or not at all. Raises ConfigProblems."""
    name, prompts = load_in_order(from_here(data.train), data, "IN")
    match out.suffix.lower():
        case ".jsonl":
            write_jsonl(prompts, out)
        case ".parquet":
            from pipeline.prompts.verl_files import write_verl  # pyarrow is large, and most who read prompts write none

            write_verl(prompts, out, name)
        case _:
            raise ConfigProblems.one("OUT", str(out), "ends in .jsonl (our columns) or .parquet (verl's layout)")
    return prompts


def write_jsonl(prompts: list[Prompt], path: Path) -> None:
    """In the columns of the mapping `plain`."""
    draft = path.with_name(f".{path.name}.writing")
    with draft.open("w", encoding="utf-8") as file:
        for prompt in prompts:
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
