"""One prompt set into another format: `pilot data convert`."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from pipeline.config import ConfigProblems, DataConfig, MappingName
from pipeline.prompts.load import load_prompts
from pipeline.prompts.mappings import LAYOUTS
from pipeline.prompts.types import Prompt, PromptSet


def convert(source: str, out: Path, mapping: str, system: str | None, template: str | None) -> PromptSet:
    """Reads what a config's data.train may say and writes .jsonl (our columns) or .parquet (verl's). The file appears
    whole or not at all. Raises ConfigProblems."""
    given = {"mapping": checked_mapping(mapping), "system": system, "template": template}
    try:
        data = DataConfig.model_validate({"train": source, "eval": source, **given})
    except ValidationError as error:
        raise ConfigProblems.one("--template", template, str(error.errors()[0]["msg"])) from None
    prompts = load_prompts(source if ":" in source else str(Path(source).resolve()), data, "IN")
    match out.suffix.lower():
        case ".jsonl":
            write_jsonl(prompts.prompts, out)
        case ".parquet":
            from pipeline.prompts.verl_files import write_verl  # pyarrow is large, and most who read prompts write none

            write_verl(prompts.prompts, out, prompts.name)
        case _:
            raise ConfigProblems.one("OUT", str(out), "ends in .jsonl (our columns) or .parquet (verl's layout)")
    return prompts


def checked_mapping(name: str) -> MappingName:
    """Raises ConfigProblems."""
    for known in LAYOUTS:
        if known == name:
            return known
    raise ConfigProblems.one("--mapping", name, f"unknown; known: {', '.join(LAYOUTS)}")


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
