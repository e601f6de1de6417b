"""The engine that a config names, and what is said when it is not there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.config import ConfigProblems, parse_config
from pipeline.engines.build import build_engine
from pipeline.prompts import load_run_prompts


def test_verl_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a worker of the torch engine alone: said by the field, with what to do, whatever is missing first."""
    config = parse_config({
        "model": {"path": "pipeline/bundled/policy"},
        "data": {"train": "pipeline/bundled/prompts.train.jsonl", "eval": "pipeline/bundled/prompts.eval.jsonl"},
        "budget": {"steps": 1},
        "engine": {"name": "verl", "device": "cpu", "gpus_per_node": 1},
    })  # fmt: skip
    monkeypatch.setattr("pipeline.engines.verl.checks.find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "omegaconf", None)  # verl brings it
    with pytest.raises(ConfigProblems) as caught:
        build_engine(config, *load_run_prompts(config), tmp_path)
    (problem,) = caught.value.problems
    assert problem.field == "engine.name" and problem.message.startswith(
        "verl, ray, vllm, transfer_queue not installed"
    )
    assert "make verl" in problem.message
