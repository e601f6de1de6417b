"""Prompts as verl's RLHFDataset reads them: Parquet with the columns prompt, data_source, ability, reward_model and
extra_info. The mapping `verl` reads it back: same ids, tags and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.prompts.types import Prompt

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),  # verl's own reward functions are chosen by it
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),
                    ("id", pa.string()),
                    ("tags", pa.list_(pa.string())),
                    ("reward", pa.string()),
                ]
            ),
        ),
    ]
)


def write_verl(prompts: Sequence[Prompt], path: Path, data_source: str) -> None:
    """The file appears whole or not at all."""
    rows = [
        {
            "data_source": data_source,
            "prompt": prompt.chat,
            "ability": prompt.tags[0] if prompt.tags else "",
            "reward_model": {"style": "rule", "ground_truth": prompt.answer},
            "extra_info": {"index": i, "id": prompt.id, "tags": list(prompt.tags), "reward": prompt.reward},
        }
        for i, prompt in enumerate(prompts)
    ]
    draft = path.with_name(f".{path.name}.writing")
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), draft, compression="zstd", row_group_size=10_000)
    draft.replace(path)
