"""Logs as verl 0.9.1 and TRL 1.16 write them, line by line after their source, and streams with known answers."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd


class Rolled(NamedTuple):
    step: int
    prompt: str
    rewards: list[float]


def stream(steps: int, batch: int, n: int, rights: Iterable[int]) -> list[Rolled]:
    """`batch` new prompts a step with n binary rewards each; `rights` says, in turn, how many of them are right."""
    counts = list(rights)
    return [
        Rolled(step, f"{step}+{i}=", [1.0] * (k := counts[(step * batch + i) % len(counts)]) + [0.0] * (n - k))
        for step in range(1, steps + 1)
        for i in range(batch)
    ]


def verl(folder: Path, rolled: Iterable[Rolled], **extras: Any) -> Path:
    """`RayPPOTrainer._write_generations`: {step}.jsonl with base_data and the reward function's extras."""
    folder.mkdir(parents=True, exist_ok=True)
    for step, prompt, rewards in rolled:
        with (folder / f"{step}.jsonl").open("a") as f:
            for reward in rewards:
                entry = {"input": prompt, "output": "…", "gts": "4", "score": reward, "step": step, **extras}
                f.write(json.dumps(entry, ensure_ascii=False, default=str) + "\n")
    return folder


def trl(output_dir: Path, rolled: Iterable[Rolled], chat: bool = False) -> Path:
    """`GRPOTrainer.log`: a pandas frame with step, prompt, completion, **rewards, **extra, advantage."""
    (output_dir / "completions").mkdir(parents=True, exist_ok=True)
    by_step: dict[int, list[tuple[Any, float]]] = {}
    for step, prompt, rewards in rolled:
        asked = [{"role": "system", "content": "Count."}, {"role": "user", "content": prompt}] if chat else prompt
        by_step.setdefault(step, []).extend((asked, r) for r in rewards)
    for step, rows in by_step.items():
        table = {
            "step": [step] * len(rows),
            "prompt": [asked for asked, _ in rows],
            "completion": [[{"role": "assistant", "content": "…"}] if chat else "…" for _ in rows],
            "accuracy_reward": [r for _, r in rows],
            "format_reward": [None] * len(rows),
            "extracted": ["4"] * len(rows),
            "advantage": [0.0] * len(rows),
        }
        pd.DataFrame(table).to_parquet(output_dir / "completions" / f"completions_{step:05d}.parquet")
    return output_dir


def table(path: Path, rolled: Iterable[Rolled]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "prompt", "reward"])
        writer.writerows((step, prompt, reward) for step, prompt, rewards in rolled for reward in rewards)
    return path
