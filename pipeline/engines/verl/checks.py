"""What can be known to be wrong before Ray starts, told in seconds and by the field of the run config."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from pipeline.config import ConfigProblems, RunConfig, VerlEngine, resolve
from pipeline.engines.verl.compose import flatten
from pipeline.prompts import Prompt, check_model_folder

SHOWN = 3  # prompts named in one message


def check(config: RunConfig, settings: VerlEngine, prompts: Iterable[Prompt]) -> int:
    """Raises ValueError (ConfigProblems where one field is at fault). Returns the number of the model's parameters.

    The environment of start.py must be set: vLLM and transformers are asked, and read it when they are imported.
    """
    if problems := check_model_folder(config):
        raise ConfigProblems(problems)
    folder = resolve(config.model.path)
    n_parameters = count_parameters(folder)
    _check_devices(settings)
    _check_prompts(config, settings, folder, prompts)
    _check_vllm(config, settings, folder)
    return n_parameters


def check_packages(settings: VerlEngine) -> None:
    """Raises ConfigProblems when something is not installed. Imports nothing."""
    if missing := [name for name in ("verl", "ray", "vllm", "transfer_queue") if find_spec(name) is None]:
        raise ConfigProblems.one(
            "engine.name",
            "verl",
            f"{', '.join(missing)} not installed on this worker; on a machine without a GPU: make verl, on GPU nodes "
            "use the image worker-gpu",
        )
    for logger in settings.loggers:
        if logger in ("wandb", "mlflow", "tensorboard") and find_spec(logger) is None:
            raise ConfigProblems.one("engine.loggers", logger, f"{logger} is not installed on this worker")


def count_parameters(folder: Path) -> int:
    """Of the model's safetensors files, from their headers. Raises ConfigProblems for a file that is cut off."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            try:
                header = json.loads(file.read(length)) if length < path.stat().st_size else None
                tensors = [t for name, t in header.items() if name != "__metadata__"] if header else []
                whole = bool(tensors) and path.stat().st_size == 8 + length + max(t["data_offsets"][1] for t in tensors)
            except (ValueError, KeyError, TypeError):
                whole = False
        if not whole:
            raise ConfigProblems.one(
                "model.path", str(folder), f"{path.name} is not a whole safetensors file; copy it again"
            )
        total += sum(math.prod(t["shape"]) for t in tensors)
    return total


def _check_devices(settings: VerlEngine) -> None:
    """GPUs of this machine. Those of a cluster are known when Ray is there."""
    if settings.device == "cpu" or settings.ray_address is not None:
        return
    import torch

    there = torch.cuda.device_count()
    if settings.gpus_per_node > there:
        raise ConfigProblems.one(
            "engine.gpus_per_node",
            settings.gpus_per_node,
            f"this machine has {there} GPUs; give at most as many, or engine.device cpu to test without one",
        )


def _check_prompts(config: RunConfig, settings: VerlEngine, folder: Path, prompts: Iterable[Prompt]) -> None:
    """Every prompt must fit: verl would cut a longer one off at its beginning."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except Exception as error:
        raise ConfigProblems.one(
            "model.path", config.model.path, f"its tokenizer cannot be loaded: {first_line(error)}"
        ) from error
    own = dict(flatten(settings.overrides)).get("actor_rollout_ref.model.custom_chat_template")
    if tokenizer.chat_template is None and own is None:
        raise ConfigProblems.one(
            "model.path",
            config.model.path,
            "its tokenizer has no chat template; add chat_template.jinja to the folder, or give "
            "engine.overrides.actor_rollout_ref.model.custom_chat_template",
        )

    def n_tokens(chat: list[dict[str, str]]) -> int:
        whole = tokenizer.apply_chat_template(chat, chat_template=own, tokenize=False, add_generation_prompt=True)
        return len(tokenizer(str(whole), add_special_tokens=False)["input_ids"])

    limit, around = settings.max_prompt_tokens, n_tokens([{"role": "user", "content": ""}])
    # A token is a byte at least, so that most prompts are known to fit without tokenising them.
    maybe = [p for p in prompts if p.messages or len(p.text.encode()) + around > limit]
    long = sorted(((n, p.id) for p in maybe if (n := n_tokens(p.chat)) > limit), reverse=True)
    if long:
        some = ", ".join(f"{prompt} has {n}" for n, prompt in long[:SHOWN])
        raise ConfigProblems.one(
            "engine.max_prompt_tokens",
            limit,
            f"{len(long)} prompts are longer, the chat template included: {some}; give {long[0][0]} or more, or leave "
            "these prompts out",
        )


def _check_vllm(config: RunConfig, settings: VerlEngine, folder: Path) -> None:
    """vLLM knows the architecture, the context is long enough and, on a CPU, there is a kernel for its heads."""
    from transformers import AutoConfig
    from vllm.config import ModelConfig

    longest = settings.max_prompt_tokens + config.sampling.max_new_tokens
    try:
        context = getattr(AutoConfig.from_pretrained(folder).get_text_config(), "max_position_embeddings", None)
    except Exception as error:
        raise ConfigProblems.one(
            "model.path", config.model.path, f"its config.json is not usable: {first_line(error)}"
        ) from error
    if context is not None and longest > context:
        raise ConfigProblems.one(
            "model.path",
            config.model.path,
            f"its context is {context} tokens, less than engine.max_prompt_tokens={settings.max_prompt_tokens} + "
            f"sampling.max_new_tokens={config.sampling.max_new_tokens}; lower these",
        )
    try:
        model = ModelConfig(model=str(folder), max_model_len=longest)
    except Exception as error:
        raise ConfigProblems.one(
            "model.path", config.model.path, f"vLLM cannot load it: {first_line(error)}"
        ) from error
    if settings.device == "cpu":
        from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

        size, sizes = model.get_head_size(), CPUAttentionBackend.get_supported_head_sizes()
        if size not in sizes:
            raise ConfigProblems.one(
                "model.path",
                config.model.path,
                f"vLLM cannot run heads of {size} dimensions on a CPU, only of {', '.join(map(str, sizes))}; for the "
                "bundled policy: python -m pipeline.bundled.widen_policy FOLDER, and give that folder",
            )


def first_line(error: BaseException) -> str:
    """The words of an error, without the frame that pydantic and others put around them."""
    lines = [line.strip().removeprefix("Value error, ") for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and "validation error" in lines[0]:
        lines = lines[1:]
    return lines[0].partition(" [type=")[0] if lines else type(error).__name__
