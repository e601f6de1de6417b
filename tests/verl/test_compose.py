"""The run config as verl's config: every field accounted for, every key verl's own, overrides checked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from pipeline.config import ConfigProblems, RunConfig, Section, parse_config
from pipeline.engines.verl import compose as module
from pipeline.engines.verl.compose import OURS, RECIPE, compose, flatten, refused_overrides, settings

hydra = pytest.importorskip("hydra", reason="the verl set is not installed: make test-verl sets it up")
RUN_DIR = Path("/runs/7")


def config(engine: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
    given = {"model": {"path": "m"}, "data": {"train": "t.jsonl", "eval": "e.jsonl"}}
    return parse_config(given | {"engine": {"name": "verl"} | (engine or {})} | changes)


def composed(engine: dict[str, Any] | None = None, **changes: Any) -> Any:
    return compose(config(engine, **changes), RUN_DIR)


def select(verl: Any, key: str) -> Any:
    from omegaconf import OmegaConf

    found = OmegaConf.select(verl, key)
    return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found


def problems(overrides: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ConfigProblems) as caught:
        composed({"overrides": overrides})
    return {p.field.removeprefix("engine.overrides."): p.message for p in caught.value.problems}


def leaves(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The dotted paths of all fields, of every member of a union."""
    for name, field in section.model_fields.items():
        options = get_args(field.annotation) or (field.annotation,)
        members = [o for o in options if isinstance(o, type) and issubclass(o, Section)]
        if not members:
            yield f"{prefix}{name}"
        for member in members:
            if "Torch" not in member.__name__:
                yield from leaves(member, f"{prefix}{name}.")


# Another value than the default for each field that is mapped, and what goes with it.
OTHERWISE: dict[str, dict[str, Any]] = {
    "name": {"name": "other"},
    "seed": {"seed": 7},
    "model.path": {"model": {"path": "other"}},
    "data.train": {"data": {"train": "other.jsonl", "eval": "e.jsonl"}},
    "data.eval": {"data": {"train": "t.jsonl", "eval": "other.jsonl"}},
    "method": {"method": {"name": "grpo", "n": 6}},
    "selection.keep": {"selection": {"name": "pods", "keep": 5}},
    "sampling.temperature": {"sampling": {"temperature": 0.7}},
    "sampling.max_new_tokens": {"sampling": {"max_new_tokens": 99}},
    "update.batch_prompts": {"update": {"batch_prompts": 64}},
    "update.mini_batches": {"update": {"mini_batches": 8}},
    "update.lr": {"update": {"lr": 3e-6}},
    "update.warmup_updates": {"update": {"warmup_updates": 40}},
    "update.weight_decay": {"update": {"weight_decay": 0.1}},
    "update.grad_clip": {"update": {"grad_clip": 0.5}},
    "update.clip_low": {"update": {"clip_low": 0.1}},
    "update.clip_high": {"update": {"clip_high": 0.3}},
    "update.normalise_std": {"update": {"normalise_std": False}},
    "update.off_policy_cap": {"update": {"off_policy_cap": None}},
    "evaluation.samples": {"evaluation": {"samples": 8}},
    "evaluation.temperature": {"evaluation": {"temperature": 0.6}},
    "evaluation.top_p": {"evaluation": {"top_p": 0.7}},
    "budget.steps": {"budget": {"steps": 11}},
    "engine.device": {"engine": {"device": "cpu", "gpus_per_node": 1}},
    "engine.nodes": {"engine": {"nodes": 2, "ray_address": "http://head:8265"}},
    "engine.gpus_per_node": {"engine": {"gpus_per_node": 4}},
    "engine.tensor_parallel": {"engine": {"tensor_parallel": 2}},
    "engine.gpu_memory_utilization": {"engine": {"gpu_memory_utilization": 0.4}},
    "engine.max_prompt_tokens": {"engine": {"max_prompt_tokens": 77}},
    "engine.token_budget": {"engine": {"token_budget": 30_000}},
    "engine.loggers": {"engine": {"loggers": ["file", "wandb"]}},
}


def test_every_field_is_mapped_or_used_by_us() -> None:
    for path in leaves(RunConfig):
        ours = any(f"{path}.".startswith(f"{prefix}.") for prefix in OURS)
        assert path in OTHERWISE or ours, f"{path}: map it in settings(), or say in OURS who uses it"
    known = set(leaves(RunConfig)) | {"method"}
    assert set(OTHERWISE) <= known and all(any(p.startswith(o) for p in known) for o in OURS)


@pytest.mark.parametrize("field", OTHERWISE)
def test_a_mapped_field_reaches_verl(field: str) -> None:
    before = {key: value for key, value, _ in settings(config())}
    after = {key: value for key, value, by in settings(config(**OTHERWISE[field])) if field in by.split(" and ")}
    assert after and any(before[key] != value for key, value in after.items())
    verl = composed(**OTHERWISE[field])
    assert {key: select(verl, key) for key in after} == after


@pytest.mark.parametrize("backend", ["dp", "megatron"])
def test_every_key_that_we_set_is_verls(backend: str) -> None:
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        verl = hydra.compose("ppo_trainer", [f"model_engine={backend}"])
    ours = {key: value for key, value, _ in settings(config())} | {k: v for k, (v, _) in RECIPE.items()}
    ours |= module.DEFAULTS | module.LOCAL_RAY | module.CPU_RAY
    ours |= module.CPU | module.FSDP2 if backend == "dp" else {}
    assert [p for key, value in ours.items() if (p := module._fault(verl, key, value))] == []


def test_the_recipe_on_a_gpu_node() -> None:
    verl = composed(method={"name": "pilot_commit", "n_pilot": 16, "n_commit": 48}, sampling={"max_new_tokens": 8192})
    assert select(verl, "actor_rollout_ref.actor.strategy") == select(verl, "actor_rollout_ref.ref.strategy") == "fsdp2"
    assert select(verl, "actor_rollout_ref.rollout.n") == 64
    assert select(verl, "actor_rollout_ref.rollout.response_length") == 8192
    assert select(verl, "actor_rollout_ref.actor.ppo_mini_batch_size") == 32
    assert select(verl, "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu") == 2 * (1024 + 8192)
    assert select(verl, "algorithm.rollout_correction") | {
        "rollout_is": "token",
        "rollout_is_threshold": 2.0,
    } == select(verl, "algorithm.rollout_correction")
    assert select(verl, "trainer.v1.pilot_commit.run_dir") == "/runs/7"
    assert select(verl, "ray_kwargs.ray_init.address") == "local"


def test_a_cluster_is_joined_as_it_is() -> None:
    verl = composed({"nodes": 2, "ray_address": "http://head:8265"})
    assert select(verl, "ray_kwargs.ray_init.address") is None and select(verl, "ray_kwargs.ray_init.num_cpus") is None


def test_stored_pilots_uncorrected_on_request() -> None:
    verl = composed(update={"off_policy_cap": None})
    assert select(verl, "algorithm.rollout_correction.rollout_is") is None


def test_overrides_reach_verl_dotted_and_nested() -> None:
    verl = composed(
        {
            "overrides": {
                "actor_rollout_ref.actor.fsdp_config.param_offload": True,
                "actor_rollout_ref": {"model": {"use_liger": True}, "rollout.max_num_seqs": 512},
                "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_dtype": "fp8",
                "actor_rollout_ref.rollout.repetition_penalty": 1.05,
                "trainer.project_name": "mine",
            }
        }
    )
    assert select(verl, "actor_rollout_ref.actor.fsdp_config.param_offload") is True
    assert select(verl, "actor_rollout_ref.model.use_liger") is True
    assert select(verl, "actor_rollout_ref.rollout.max_num_seqs") == 512
    assert select(verl, "actor_rollout_ref.rollout.engine_kwargs.vllm") == {"kv_cache_dtype": "fp8"}
    assert select(verl, "actor_rollout_ref.rollout.repetition_penalty") == 1.05
    assert select(verl, "trainer.project_name") == "mine"


def test_megatron_in_place_of_fsdp2() -> None:
    verl = composed({"overrides": {"model_engine": "megatron"}})
    assert select(verl, "actor_rollout_ref.actor.strategy") == "megatron"
    assert select(verl, "actor_rollout_ref.actor.optim.lr") == 1e-6


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("actor_rollout_ref.model.lora_rnk", 3, "unknown to verl; did you mean actor_rollout_ref.model.lora_rank"),
        ("lora_rank", 3, "did you mean actor_rollout_ref.model.lora_rank"),
        ("+trainer.project_name", "x", "did you mean trainer.project_name"),
        ("actor_rollout_ref.rollout.nope", 1, "unknown to verl"),
        ("", 1, "unknown to verl"),
        ("trainer.total_epochs.x", 1, "trainer.total_epochs is a value in verl's config"),
        ("data", 3, "is a section of verl's config"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", "yes", "must be true or false"),
        ("actor_rollout_ref.actor.fsdp_config.param_offload", 1, "must be true or false"),
        ("actor_rollout_ref.rollout.max_num_seqs", "many", "must be a number; verl's default is 256"),
        ("actor_rollout_ref.rollout.max_num_seqs", True, "must be a number"),
        ("model_engine", "jax", "unknown; dp (FSDP2) or megatron"),
        ("trainer.v1.trainer_mode", "sync", "this is how verl finds the recipe's trainer"),
        ("algorithm.filter_groups.enable", True, "give method.name dapo"),
        ("actor_rollout_ref.actor.optim.lr", 1e-5, "is what update.lr decides; change that instead"),
        ("actor_rollout_ref.rollout.n", 8, "is what method decides"),
        ("ray_kwargs.ray_init.address", "auto", "give engine.ray_address"),
    ],
)
def test_an_override_that_is_refused(key: str, value: Any, message: str) -> None:
    assert message in problems({key: value})[key]


def test_every_refused_override_is_named() -> None:
    found = problems({"actor_rollout_ref": {"actor": {"optim": {"lr": 1}, "ppo_epochs": 2}}})
    assert set(found) == {"actor_rollout_ref.actor.optim.lr", "actor_rollout_ref.actor.ppo_epochs"}
    assert refused_overrides(config({"overrides": {"trainer.project_name": "mine"}})) == []


def test_flattened() -> None:
    assert dict(flatten({"a": {"b.c": {"d": 1}}, "e": {}, "f": [{"g": 2}]})) == {"a.b.c.d": 1, "e": {}, "f": [{"g": 2}]}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"actor_rollout_ref.actor.loss_agg_mode": "mean"}, "Invalid loss_agg_mode: mean"),
        ({"actor_rollout_ref.rollout.pipeline_model_parallel_size": 2}, "pipeline_model_parallel_size > 1"),
        (
            {
                "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 2,
                "actor_rollout_ref.model.use_remove_padding": False,
            },
            "you must enable `use_remove_padding`",
        ),
    ],
)
def test_verls_own_check_has_the_last_word(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigProblems) as caught:
        composed({"overrides": overrides})
    (problem,) = caught.value.problems
    assert "verl does not accept the config" in problem.message and message in problem.message
