"""docs/verl.md tells keys that verl has: each of its configs is composed, and its table is that of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import ROOT, parse_config, presets
from pipeline.engines.verl.compose import compose, settings
from tests.verl.test_presets import vllm_has_a_version  # noqa: F401

pytest.importorskip("hydra", reason="the verl set is not installed: make test-verl sets it up")
TEXT = (ROOT / "docs" / "verl.md").read_text(encoding="utf-8")
BLOCKS: list[dict[str, Any]] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.S)]
BASE = {"model": {"path": "m"}, "data": {"train": "t.jsonl", "eval": "e.jsonl"}}


def test_there_are_configs() -> None:
    assert len(BLOCKS) == 7


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: next(iter(block["engine"].get("overrides", {"nodes": 0}))))
def test_verl_accepts_each_config(block: dict[str, Any]) -> None:
    compose(parse_config(BASE | block), Path("/runs/1"))


def test_the_table_has_every_key() -> None:
    rows = TEXT[TEXT.index("| field |") :].split("\n\n")[0].splitlines()[2:]
    told: set[str] = set()
    for row in rows:
        section = ""
        for key in re.findall(r"`([^`]+)`", row.split("|")[2]):
            section = section if key.startswith(".") else key.rpartition(".")[0]
            told.add(section + key if key.startswith(".") else key)
    keys = {key for key, _, _ in settings(parse_config(BASE | {"engine": {"name": "verl"}}))}
    assert keys - told == set() and told - keys <= {"reward.custom_reward_function.reward_kwargs.reward"}


def test_the_presets_are_those_that_are_shipped() -> None:
    rows = TEXT[TEXT.index("| preset |") :].split("\n\n")[0].splitlines()[2:]
    names, methods = set(), ""
    for row in rows:
        _, prefix, _, _, rollouts, *_ = row.split("|")
        methods = methods if "the same" in rollouts else rollouts
        names |= {prefix.strip(" `…") + method for method in re.findall(r"`([^`]+)`", methods)}
    assert names == {p["name"] for p in presets() if p["group"]}
