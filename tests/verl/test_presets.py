"""Each preset of the papers is accepted by verl's own config."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import RunConfig, parse_config, presets
from pipeline.engines.verl.compose import compose
from pipeline.engines.verl.start import vllm_by_its_name

pytest.importorskip("hydra", reason="the verl set is not installed: make test-verl sets it up")
PAPERS = {p["name"]: p["config"] for p in presets() if p["group"]}


@pytest.fixture(scope="module", autouse=True)
def vllm_has_a_version(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """As for a run: without it verl refuses, and vLLM takes kernels that not every CPU can run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        vllm_by_its_name(tmp_path_factory.mktemp("scratch"))
        yield


def test_the_papers_experiments_are_there() -> None:
    assert len(PAPERS) == 27
    assert {n for n in PAPERS if n.startswith("qwen3-")} == {
        f"qwen3-{size}-polaris-{method}"
        for size in ("4b", "8b", "14b")
        for method in ("pilot-commit-16-48", "pilot-commit-8-8", "grpo-64", "grpo-16", "dapo-64", "dapo-16")
    }


@pytest.mark.parametrize("name", PAPERS)
def test_verl_accepts_it(name: str) -> None:
    config: RunConfig = parse_config(PAPERS[name])
    verl: Any = compose(config, Path("/runs/1"))
    actor, rollout = verl.actor_rollout_ref.actor, verl.actor_rollout_ref.rollout
    assert actor.strategy == "fsdp2" and actor.ppo_mini_batch_size == (1 if "3b" in name else 32)
    assert actor.ppo_max_token_len_per_gpu >= verl.data.max_prompt_length + verl.data.max_response_length
    assert rollout.n == getattr(config.selection, "keep", config.method.group_size)
    assert verl.actor_rollout_ref.model.lora_rank == (64 if "3b" in name else 0)
    assert verl.trainer.n_gpus_per_node % rollout.tensor_model_parallel_size == 0
