"""RunConfig -> verl's config, by one pure function.

Every field of the run config is in one of two places: `settings` maps it to keys of verl's config, or `OURS` says who
else uses it. What the recipe itself needs of verl is in `RECIPE`. `engine.overrides` may set any other key that verl
knows. A key that `settings` or `RECIPE` decides is refused with the reason: the run would not be the one that its
config describes. verl is imported only when a config is composed, so that the API can check overrides without it.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config import ConfigProblems, DataConfig, FieldProblem, Pods, RunConfig, VerlEngine, resolve

if TYPE_CHECKING:
    from omegaconf import DictConfig

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

# Fields that verl has no key for, by prefix, and who uses them.
OURS = {
    **{f"data.{name}": "pipeline.prompts" for name in DataConfig.model_fields if name not in ("train", "eval")},
    "reward": "pipeline.rewards, by the reward manager in reward.py",
    "rewards": "the same",
    "method": "the allocator",
    "selection": "pipeline.step",
    "evaluation.every": "the trainer's loop",
    "evaluation.protocol": "the trainer's loop",
    "evaluation.protocol_folder": "pipeline.prompts",
    "evaluation.benchmarks": "the trainer's loop; each brings its own samples, temperature and top-p",
    "budget": "the trainer's loop",
    "checkpoint": "the trainer's loop",
    "engine.name": "pipeline.train",
    "engine.ray_address": "pipeline.engines.verl.submit",
    "engine.overrides": "this module",
}

# What the recipe needs of verl, and why nothing else will do.
RECIPE: dict[str, tuple[Any, str]] = {
    "trainer.use_v1": (True, "the recipe is a trainer of verl's v1 interface"),
    "trainer.v1.trainer_mode": ("pilot_commit", "this is how verl finds the recipe's trainer"),
    "trainer.save_freq": (-1, "the trainer's own loop saves; give checkpoint.every"),
    "trainer.test_freq": (-1, "the trainer's own loop evaluates; give evaluation.every"),
    "trainer.val_before_train": (False, "the trainer's own loop evaluates before the first step"),
    "trainer.resume_mode": ("disable", "the trainer's own loop resumes from the run's checkpoints"),
    "trainer.critic_warmup": (0, "there is no critic"),
    "algorithm.adv_estimator": ("grpo", "the recipe trains on group advantages"),
    "algorithm.use_kl_in_reward": (False, "a prompt is judged on its reward, which must be the reward alone"),
    "algorithm.filter_groups.enable": (False, "this is what method dapo does; give method.name dapo"),
    "algorithm.rollout_correction.bypass_mode": (False, "a stored pilot's log-probs are not the current policy's"),
    "critic.enable": (False, "the recipe trains on group advantages"),
    "reward.reward_model.enable": (False, "rewards are those of the config's reward section"),
    f"{ACTOR}.ppo_epochs": (1, "every method makes update.mini_batches updates a step"),
    f"{ACTOR}.use_dynamic_bsz": (True, "groups differ in size, and fixed micro-batches must divide evenly"),
    f"{ROLLOUT}.calculate_log_probs": (True, "a stored pilot keeps the log-probs that it was sampled with"),
    f"{ROLLOUT}.agent.agent_loop_manager_class": (
        "pipeline.engines.verl.sampling.AgentLoopManager",
        "the recipe asks these workers why sampling failed",
    ),
}

# Where our default is not verl's. Overrides may change these.
DEFAULTS: dict[str, Any] = {
    "trainer.project_name": "pilot-commit",
    f"{ACTOR}.entropy_coeff": 0.0,
    f"{ACTOR}.use_kl_loss": False,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.agent.num_workers": 8,
    f"{ACTOR}.clip_ratio_c": 1e9,  # verl's second bound, for negative advantages: the torch engine and DAPO have none
    f"{ACTOR}.checkpoint.save_contents": ["model", "optimizer", "extra", "hf_model"],
    # Our rewards. Another reward manager of verl's own ("register", "naive") takes a custom_reward_function.
    "reward.reward_manager.source": "importlib",
    "reward.reward_manager.name": "RewardManager",
    "reward.reward_manager.module.path": "pkg://pipeline.engines.verl.reward",
    "transfer_queue.backend.SimpleStorage.total_storage_size": None,  # as many rollouts as a step and the buffer need
}
FSDP2 = {f"{ACTOR}.strategy": "fsdp2"}

# One process a role on one machine without a GPU. verl's own defaults suppose kernels and memory that are not there.
CPU: dict[str, Any] = {
    "actor_rollout_ref.model.use_remove_padding": False,
    "actor_rollout_ref.model.enable_gradient_checkpointing": False,
    "actor_rollout_ref.model.override_config.attn_implementation": "sdpa",
    f"{ACTOR}.use_torch_compile": False,
    f"{ACTOR}.fsdp_config.use_torch_compile": False,
    f"{ACTOR}.fsdp_config.model_dtype": "fp32",
    f"{ACTOR}.fsdp_config.mixed_precision.param_dtype": "fp32",
    f"{ACTOR}.fsdp_config.mixed_precision.reduce_dtype": "fp32",
    f"{ACTOR}.fsdp_config.mixed_precision.buffer_dtype": "fp32",
    f"{ROLLOUT}.dtype": "float32",
    f"{ROLLOUT}.enforce_eager": True,
    f"{ROLLOUT}.free_cache_engine": False,
    f"{ROLLOUT}.enable_sleep_mode": False,
    f"{ROLLOUT}.load_format": "auto",
    f"{ROLLOUT}.max_num_seqs": 64,
    f"{ROLLOUT}.max_num_batched_tokens": 2048,
    f"{ROLLOUT}.checkpoint_engine.update_weights_bucket_megabytes": 16,
    f"{ROLLOUT}.agent.num_workers": 1,
    "reward.num_workers": 1,
    # With fewer logical CPUs than its storage units and everybody else need, TransferQueue waits for ever.
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
}
LOCAL_RAY: dict[str, Any] = {
    # Its own Ray: without an address Ray joins whatever cluster was started last on this machine.
    "ray_kwargs.ray_init.address": "local",
    "ray_kwargs.ray_init.include_dashboard": False,
}
CPU_RAY: dict[str, Any] = {
    "ray_kwargs.ray_init.num_cpus": 16,
    "ray_kwargs.ray_init.num_gpus": 1,  # verl asks Ray for GPUs; on a CPU the name stands for a process
    "ray_kwargs.ray_init.object_store_memory": 300_000_000,
}


def settings(config: RunConfig) -> list[tuple[str, Any, str]]:
    """What the run config decides: (key of verl's config, value, field of the run config)."""
    engine, update, sampling = _engine(config), config.update, config.sampling
    longest = engine.max_prompt_tokens + sampling.max_new_tokens
    # verl counts mini-batches in rows: this many of a prompt's rollouts train. Requests carry their own n.
    trained = config.selection.keep if isinstance(config.selection, Pods) else config.method.group_size
    cap = update.off_policy_cap
    return [
        ("actor_rollout_ref.model.path", str(resolve(config.model.path)), "model.path"),
        ("data.train_files", [str(resolve(config.data.train))], "data.train"),
        ("data.val_files", [str(resolve(config.data.eval))], "data.eval"),
        ("data.max_prompt_length", engine.max_prompt_tokens, "engine.max_prompt_tokens"),
        ("data.max_response_length", sampling.max_new_tokens, "sampling.max_new_tokens"),
        ("data.train_batch_size", update.batch_prompts, "update.batch_prompts"),
        ("data.seed", config.seed, "seed"),
        (f"{ROLLOUT}.seed", config.seed, "seed"),
        (f"{ACTOR}.data_loader_seed", config.seed, "seed"),
        (f"{ROLLOUT}.n", trained, "selection.keep" if isinstance(config.selection, Pods) else "method"),
        (f"{ROLLOUT}.temperature", sampling.temperature, "sampling.temperature"),
        (f"{ROLLOUT}.max_model_len", longest, "engine.max_prompt_tokens and sampling.max_new_tokens"),
        (f"{ROLLOUT}.val_kwargs.n", config.evaluation.samples, "evaluation.samples"),
        (f"{ROLLOUT}.val_kwargs.temperature", config.evaluation.temperature, "evaluation.temperature"),
        (f"{ROLLOUT}.val_kwargs.top_p", config.evaluation.top_p, "evaluation.top_p"),
        (f"{ROLLOUT}.val_kwargs.do_sample", True, "evaluation.temperature"),
        (f"{ROLLOUT}.tensor_model_parallel_size", engine.tensor_parallel, "engine.tensor_parallel"),
        (f"{ROLLOUT}.gpu_memory_utilization", engine.gpu_memory_utilization, "engine.gpu_memory_utilization"),
        (f"{ACTOR}.ppo_mini_batch_size", update.batch_prompts // update.mini_batches, "update.mini_batches"),
        (f"{ACTOR}.ppo_max_token_len_per_gpu", engine.token_budget or 2 * longest, "engine.token_budget"),
        (f"{ACTOR}.clip_ratio", update.clip_low, "update.clip_low"),
        (f"{ACTOR}.clip_ratio_low", update.clip_low, "update.clip_low"),
        (f"{ACTOR}.clip_ratio_high", update.clip_high, "update.clip_high"),
        (f"{ACTOR}.optim.lr", update.lr, "update.lr"),
        (f"{ACTOR}.optim.weight_decay", update.weight_decay, "update.weight_decay"),
        (f"{ACTOR}.optim.clip_grad", update.grad_clip, "update.grad_clip"),
        # verl's schedule moves once a training step, not once an optimiser update.
        (f"{ACTOR}.optim.lr_warmup_steps", update.warmup_updates // update.mini_batches, "update.warmup_updates"),
        ("algorithm.norm_adv_by_std_in_grpo", update.normalise_std, "update.normalise_std"),
        ("algorithm.rollout_correction.rollout_is", None if cap is None else "token", "update.off_policy_cap"),
        ("algorithm.rollout_correction.rollout_is_threshold", cap or 2.0, "update.off_policy_cap"),
        ("trainer.total_training_steps", config.budget.steps, "budget.steps"),
        ("trainer.experiment_name", config.name, "name"),
        ("trainer.logger", list(engine.loggers), "engine.loggers"),
        ("trainer.nnodes", engine.nodes, "engine.nodes"),
        ("trainer.n_gpus_per_node", engine.gpus_per_node, "engine.gpus_per_node"),
        ("trainer.device", engine.device, "engine.device"),
    ]


def refused_overrides(config: RunConfig) -> list[FieldProblem]:
    """The overrides that would contradict the run config or break the recipe. Needs no verl."""
    fields = {key: field for key, _, field in settings(config)}
    problems = []
    for key, value in flatten(_engine(config).overrides):
        if key in fields:
            message = f"is what {fields[key]} decides; change that instead"
        elif key in RECIPE:
            message = f"cannot be changed: {RECIPE[key][1]}"
        elif key == "ray_kwargs.ray_init.address":
            message = "cannot be changed: give engine.ray_address"
        else:
            continue
        problems.append(FieldProblem(field=f"engine.overrides.{key}", value=value, message=message))
    return problems


def compose(config: RunConfig, run_dir: Path) -> DictConfig:
    """verl's whole config for this run, checked by verl. Writes nothing.

    Raises ConfigProblems that names each override that verl does not know or that is not the user's to change, and
    what verl's own check found.
    """
    from omegaconf import OmegaConf, open_dict

    engine = _engine(config)
    if problems := refused_overrides(config):
        raise ConfigProblems(problems)
    overrides = dict(flatten(engine.overrides))
    backend = overrides.pop("model_engine", "dp")
    if backend not in ("dp", "megatron"):
        message = "unknown; dp (FSDP2) or megatron"
        raise ConfigProblems.one("engine.overrides.model_engine", backend, message)
    verl = copy.deepcopy(_defaults(backend))
    if problems := [p for key, value in overrides.items() if (p := _fault(verl, key, value))]:
        raise ConfigProblems(problems)
    chosen = dict(DEFAULTS) | (FSDP2 if backend == "dp" else {})
    chosen |= CPU if engine.device == "cpu" else {}
    if engine.ray_address is None:
        chosen |= LOCAL_RAY | (CPU_RAY if engine.device == "cpu" else {})
    chosen |= {key: value for key, (value, _) in RECIPE.items()}
    chosen |= {key: value for key, value, _ in settings(config)}
    chosen["trainer.default_local_dir"] = str(run_dir / "verl")
    for key, value in (chosen | overrides).items():
        OmegaConf.update(verl, key, value, merge=False, force_add=True)
    with open_dict(verl):
        verl.trainer.v1.pilot_commit = {
            "run_dir": str(run_dir),
            "reward": config.reward.model_dump_json(),
            "rewards": json.dumps({name: reward.model_dump(mode="json") for name, reward in config.rewards.items()}),
        }
    _check(verl)
    return verl


@cache
def _defaults(backend: str) -> DictConfig:
    """verl's own. Hydra takes most of a second to find them."""
    from hydra import compose, initialize_config_module

    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", [f"model_engine={backend}"])


def flatten(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values, from keys that are dotted, nested, or both."""
    for key, value in overrides.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _engine(config: RunConfig) -> VerlEngine:
    assert isinstance(config.engine, VerlEngine), config.engine
    return config.engine


def _fault(verl: DictConfig, key: str, value: Any) -> FieldProblem | None:
    """What is wrong with an override: a key that verl's config has no place for, or a value of another kind."""
    from omegaconf import DictConfig, OmegaConf

    def fault(message: str) -> FieldProblem:
        return FieldProblem(field=f"engine.overrides.{key}", value=value, message=message)

    node: Any = verl
    for depth, part in enumerate(parts := key.split(".")):
        if not isinstance(node, DictConfig):
            return fault(f"{'.'.join(parts[:depth])} is a value in verl's config, not a section")
        if part in node:
            node = OmegaConf.select(node, part)
            if node is None or (isinstance(node, DictConfig) and not node):
                return None  # left open by verl: nothing to compare with
            continue
        if part in _dataclass_fields(node) or node is OmegaConf.select(verl, "ray_kwargs.ray_init"):
            return None  # verl's YAML leaves it out, the class that is built from it does not
        known = [k for k in _keys(verl) if not k.startswith("critic.")]  # there is none
        same = [k for k in known if k.rpartition(".")[2] == parts[-1]]
        close = difflib.get_close_matches(key, same or known, n=3, cutoff=0.0 if same else 0.6)
        return fault("unknown to verl" + (f"; did you mean {' or '.join(close)}?" if close else ""))
    if isinstance(node, DictConfig):
        return fault("is a section of verl's config; give a key in it")
    if value is not None and isinstance(node, bool) != isinstance(value, bool) and isinstance(node, bool | int | float):
        return fault(f"must be {'true or false' if isinstance(node, bool) else 'a number'}; verl's default is {node!r}")
    if isinstance(node, int | float) and not isinstance(value, int | float | None):
        return fault(f"must be a number; verl's default is {node!r}")
    return None


def _dataclass_fields(node: DictConfig) -> set[str]:
    """The fields of the class that verl builds from this section; none where it names no class."""
    from hydra.utils import get_class

    target = node.get("_target_")
    return {f.name for f in dataclasses.fields(get_class(target))} if target else set()


def _keys(node: DictConfig, prefix: str = "") -> Iterator[str]:
    from omegaconf import DictConfig

    for name in map(str, node):
        value = node._get_node(name)
        if isinstance(value, DictConfig) and len(value):
            yield from _keys(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield f"{prefix}{name}"


def _check(verl: DictConfig) -> None:
    """verl's own check, and the classes that verl builds from the sections. Raises ConfigProblems."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    try:
        validate_config(verl, use_reference_policy=need_reference_policy(verl), use_critic=need_critic(verl))
        omega_conf_to_dataclass(verl.actor_rollout_ref.rollout)
        omega_conf_to_dataclass(verl.algorithm)
    except Exception as error:
        words = str(error.__cause__ or error).strip().split("\n")[0]
        message = f"verl does not accept the config: {words}"
        raise ConfigProblems.one("engine", "verl", message) from error
