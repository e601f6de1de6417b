"""RunConfig: everything that decides a run, checked before anything starts.

A run is one `RunConfig` and one run directory. Unknown keys are refused, defaults are the settings of the
Pilot-Commit paper (arXiv 2605.26606) where it gives one, and every error names the field, the value and what is
accepted. This module imports no torch: the API, the worker and the command line all use it.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Self, Union, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError, field_validator, model_validator

from pipeline.rewards.exact import ExactReward
from pipeline.rewards.overlong import OverlongReward
from pipeline.rewards.registry import RewardConfig
from pipeline.rewards.weighted import SumReward
from pipeline.section import FilePath, Fraction, Positive, Section
from pipeline.section import spelled as spelled
from pipeline.section import spelling as spelling

ROOT = Path(__file__).resolve().parent.parent
"""The application's folder: relative paths in a config are taken from here, whoever reads it."""


def told(unit: str | None = None, paper: JsonValue = None) -> dict[str, JsonValue]:
    """For a field's schema: its unit, and its value in the Pilot-Commit paper or, of another method, in that one's."""
    return {name: value for name, value in (("unit", unit), ("paper", paper)) if value is not None}


class ModelConfig(Section):
    path: FilePath = Field(
        description="Folder of the starting policy in Hugging Face format (config.json, model.safetensors, tokenizer).",
        examples=["pipeline/bundled/policy"],
    )


MappingName = Literal[
    "plain", "verl", "gsm8k", "math", "math500", "aime24", "aime25", "amc23", "olympiadbench", "minerva", "deepmath",
    "polaris", "dapo", "sciknoweval",
]  # fmt: skip
"""Column mappings that ship: pipeline/prompts/mappings.py says what each reads."""

_SOURCE = "a JSONL, JSON, CSV or Parquet file, set:NAME@VERSION for an uploaded prompt set, or "
_SOURCE += "hub:OWNER/NAME@REVISION:SPLIT for a fetched Hugging Face data set"


class DataConfig(Section):
    train: FilePath = Field(
        description=f"Training prompts: {_SOURCE}.", examples=["pipeline/bundled/prompts.train.jsonl"]
    )
    eval: FilePath = Field(
        description="Held-out prompts, from the same kinds of places; none of them may be a training prompt.",
        examples=["pipeline/bundled/prompts.eval.jsonl"],
    )
    mapping: MappingName = Field(
        "plain",
        description="Which columns hold prompt and answer: plain takes those named below, the others are the "
        "published columns of the set, or verl's layout. Uploaded sets were mapped when they were uploaded.",
    )
    eval_mapping: MappingName | None = Field(None, description="The same for the held-out prompts; unset: as mapping.")
    prompt_key: str = Field("prompt", min_length=1, description="Column of the prompt: a text, or a list of messages.")
    answer_key: str = Field("answer", min_length=1, description="Column of the reference answer.")
    tags_key: str = Field("tags", min_length=1, description="Column of a list of tags, where there is one.")
    reward_key: str = Field(
        "reward", min_length=1, description="Column that names the prompt's entry of rewards, where there is one."
    )
    system: str | None = Field(
        None, min_length=1, description="System prompt of every prompt that does not bring its own."
    )
    template: str | None = Field(
        None,
        description="What the last user message becomes; {prompt} stands for what it was.",
        examples=["{prompt}\n\nPut the final answer in \\boxed{}."],
    )

    @field_validator("template")
    @classmethod
    def _has_a_place(cls, template: str | None) -> str | None:
        if template is not None and "{prompt}" not in template:
            raise ValueError(f"{template!r} has no {{prompt}}, the place where the prompt goes")
        return template

    @field_validator("system", "template")
    @classmethod
    def _no_nul(cls, text: str | None) -> str | None:
        if text is not None and "\x00" in text:
            raise ValueError("the NUL character is not accepted")
        return text


class GrpoMethod(Section):
    """Group Relative Policy Optimization (arXiv 2402.03300): every prompt gets the same number of rollouts."""

    name: Literal["grpo"] = "grpo"
    n: int = Field(128, ge=2, description="Rollouts per prompt.", json_schema_extra=told("rollouts", paper=128))

    @property
    def group_size(self) -> int:
        return self.n


class DapoMethod(Section):
    """DAPO's dynamic sampling (arXiv 2503.14476): sample until enough groups have both right and wrong rollouts."""

    name: Literal["dapo"] = "dapo"
    n: int = Field(16, ge=2, description="Rollouts per prompt.", json_schema_extra=told("rollouts", paper=16))
    gen_prompts: int | None = Field(
        None,
        ge=1,
        description="Prompts sampled per pass; unset means 3 x batch_prompts.",
        json_schema_extra=told("prompts", paper="3 x batch_prompts"),
    )
    keep_surplus: bool = Field(
        True,
        description="Groups beyond the batch wait for the next step. false discards them, as the paper does.",
        json_schema_extra=told(paper=False),
    )
    max_age: int = Field(
        4,
        ge=0,
        description="Oldest group that may still train, in steps since it was sampled.",
        json_schema_extra=told("steps"),
    )
    max_rounds: int = Field(
        10,
        ge=1,
        description="Inference passes a step may use to find groups; then it trains on those it has.",
        json_schema_extra=told("passes"),
    )

    @property
    def group_size(self) -> int:
        return self.n


class PilotCommitMethod(Section):
    """Pilot-Commit (arXiv 2605.26606): a few pilot rollouts decide which prompts are worth the rest."""

    name: Literal["pilot_commit"] = "pilot_commit"
    n_pilot: int = Field(
        32, ge=1, description="Pilot rollouts per prompt.", json_schema_extra=told("rollouts", paper=32)
    )
    n_commit: int = Field(
        96, ge=1, description="Further rollouts of a committed prompt.", json_schema_extra=told("rollouts", paper=96)
    )
    pilot_prompts: int | None = Field(
        None,
        ge=1,
        description="Prompts piloted per pass; unset means 3 x batch_prompts.",
        json_schema_extra=told("prompts", paper="3 x batch_prompts"),
    )
    p_lower: Fraction = Field(
        0.125,
        description="A prompt with a lower pilot success rate is deferred: too hard.",
        json_schema_extra=told(paper=0.125),
    )
    p_upper: Fraction = Field(
        0.75,
        description="A prompt with a higher pilot success rate is skipped: too easy.",
        json_schema_extra=told(paper=0.75),
    )
    p_solve: Fraction = Field(
        1.0,
        description="A prompt at or above this pilot success rate is evicted: solved.",
        json_schema_extra=told(paper=1.0),
    )
    max_age: int = Field(
        4,
        ge=0,
        description="Oldest pilot that may still train, in steps since it was sampled.",
        json_schema_extra=told("steps"),
    )
    commit_order: Literal["random", "max_variance", "newest", "oldest"] = Field(
        "max_variance", description="Which ready prompts are committed first."
    )
    binding: bool = Field(
        True, description="Sample the next step's pilots in the same inference pass as this step's commits."
    )
    max_rounds: int = Field(
        8,
        ge=1,
        description="Inference passes a step may use to find prompts; then it trains on those it has.",
        json_schema_extra=told("passes"),
    )
    retest_rate: Fraction = Field(
        0.0,
        description="Share of the pilots that look at evicted prompts again. With 0 they are evicted for good.",
        json_schema_extra=told("of pilots", paper=0.0),
    )

    @property
    def group_size(self) -> int:
        return self.n_pilot + self.n_commit

    @model_validator(mode="after")
    def _thresholds_ordered(self) -> Self:
        if self.p_lower > self.p_upper:
            raise ValueError(
                f"p_lower={self.p_lower} is above p_upper={self.p_upper}: no prompt could ever be committed; "
                "give p_lower <= p_upper"
            )
        if self.p_solve <= self.p_upper:
            raise ValueError(
                f"p_solve={self.p_solve} is not above p_upper={self.p_upper}: prompts worth training on would be "
                "evicted; give p_solve > p_upper"
            )
        return self


MethodConfig = Annotated[GrpoMethod | DapoMethod | PilotCommitMethod, Field(discriminator="name")]


class AllRollouts(Section):
    """The update trains on every rollout of its groups."""

    name: Literal["all"] = "all"


class Pods(Section):
    """PODS (arXiv 2504.13818): of many rollouts of a group, the update trains on few. For any method."""

    name: Literal["pods"] = "pods"
    rule: Literal["max_variance", "max_reward", "percentile", "random"] = Field(
        "max_variance", description="Which rollouts of a group are kept. PODS: max_variance."
    )
    keep: int = Field(
        16,
        ge=2,
        description="Rollouts kept per group. The paper keeps 16 of 64.",
        json_schema_extra=told("rollouts", paper=16),
    )
    advantages: Literal["kept", "group"] = Field(
        "kept", description="Whether advantages are computed over the kept rollouts or over the whole group."
    )


SelectionConfig = Annotated[AllRollouts | Pods, Field(discriminator="name")]


class SamplingConfig(Section):
    temperature: float = Field(
        1.0, gt=0, description="Softmax temperature of training rollouts.", json_schema_extra=told(paper=1.0)
    )
    max_new_tokens: Positive = Field(
        1024, description="Longest response, in tokens.", json_schema_extra=told("tokens", paper="4096 to 8192")
    )


class UpdateConfig(Section):
    """The policy update: PPO clip with asymmetric bounds (DAPO, arXiv 2503.14476) on group advantages."""

    batch_prompts: Positive = Field(
        128, description="Prompts trained on per step.", json_schema_extra=told("prompts", paper=128)
    )
    mini_batches: Positive = Field(
        4,
        description="Optimiser updates per step, the same for every method.",
        json_schema_extra=told("updates", paper=4),
    )
    lr: float = Field(1e-6, gt=0, description="Learning rate of AdamW.", json_schema_extra=told(paper=1e-06))
    warmup_updates: int = Field(
        0, ge=0, description="Optimiser updates of linear warm-up.", json_schema_extra=told("updates", paper=40)
    )
    weight_decay: float = Field(0.0, ge=0, json_schema_extra=told(paper=0.1))
    grad_clip: float = Field(1.0, gt=0, description="Largest gradient norm.")
    clip_low: float = Field(0.2, gt=0, lt=1, description="PPO clip below 1.", json_schema_extra=told(paper=0.2))
    clip_high: float = Field(0.28, gt=0, description="PPO clip above 1.", json_schema_extra=told(paper=0.28))
    normalise_std: bool = Field(True, description="Divide group advantages by the group's standard deviation.")
    off_policy_cap: float | None = Field(
        2.0,
        gt=0,
        description="Truncated importance sampling of stored pilots: largest weight per token. null trains stored "
        "pilots as if the current policy had sampled them (the published reference).",
    )

    @model_validator(mode="after")
    def _mini_batches_fit(self) -> Self:
        if self.mini_batches > self.batch_prompts:
            raise ValueError(
                f"mini_batches={self.mini_batches} is above batch_prompts={self.batch_prompts}: a mini-batch needs "
                "at least one prompt"
            )
        return self


HELD_OUT = "held-out"
"""Name of the benchmark that data.eval is."""

PROTOCOLS = {
    "math-7": {
        "aime24": 32, "aime25": 32, "amc23": 32, "math500": 1, "minerva": 1, "olympiadbench": 1, "deepmath500": 1,
    },
}  # fmt: skip
"""Lists of benchmarks with the samples per prompt of each, by name. math-7 is that of the Pilot-Commit paper."""


class Benchmark(Section):
    """A prompt set that the policy is measured on, and how."""

    name: str = Field(
        min_length=1,
        max_length=60,
        pattern=spelled(r"^[a-z0-9][a-z0-9._-]*$", "small letters, digits and ._-, a letter or digit first"),
        description="In results, and of its files of rollouts.",
        examples=["aime24"],
    )
    data: FilePath = Field(description="Prompt set, as data.eval.", examples=["data/math-7/aime24.jsonl"])
    samples: Positive = Field(1, description="Sampled responses per prompt: k of avg@k, pass@k and maj@k.")
    greedy: bool = Field(False, description="Answer each prompt once more, with the most likely tokens.")
    temperature: float | None = Field(None, gt=0, description="Unset means evaluation.temperature.")
    top_p: float | None = Field(None, gt=0, le=1, description="Unset means evaluation.top_p.")
    mapping: MappingName = Field("plain", description="Which columns hold prompt and answer, as data.mapping.")
    reward: RewardConfig | None = Field(None, description="What judges the responses; unset means the run's reward.")


class EvaluationConfig(Section):
    """Of the held-out set (data.eval), whose sampled accuracy is the run's, and of benchmarks besides."""

    every: Positive = Field(
        5,
        description="Steps between evaluations; the start and the end are always evaluated.",
        json_schema_extra=told("steps", paper=5),
    )
    samples: Positive = Field(
        4, description="Sampled responses per held-out prompt (avg@k).", json_schema_extra=told("responses")
    )
    temperature: float = Field(1.0, gt=0)
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the most likely tokens whose mass reaches this.")
    protocol: Literal["math-7"] | None = Field(
        None,
        description="Benchmarks of the Pilot-Commit paper: AIME 2024, AIME 2025, AMC 2023 (avg@32); MATH-500, Minerva, "
        "OlympiadBench, DeepMath-500 (one sample). `pilot data prepare math-7 --out data/math-7` makes their files.",
    )
    protocol_folder: FilePath = Field("data/math-7", description="Folder of the protocol's files, NAME.jsonl each.")
    benchmarks: tuple[Benchmark, ...] = Field((), max_length=50, description="Measured beside the held-out set.")

    @model_validator(mode="after")
    def _each_name_once(self) -> Self:
        names = [HELD_OUT, *PROTOCOLS.get(self.protocol or "", ()), *(b.name for b in self.benchmarks)]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"benchmark {', '.join(map(repr, twice))} more than once; {HELD_OUT!r} is data.eval, and a protocol's "
                "benchmarks have names, too"
            )
        return self


class BudgetConfig(Section):
    """Hard bounds: the step that would pass one is not started. Unset means unbounded."""

    steps: Positive = Field(100, description="Training steps.", json_schema_extra=told("steps", paper="500 to 1000"))
    rollouts: Positive | None = Field(
        None, description="Training rollouts sampled.", json_schema_extra=told("rollouts")
    )
    tokens: Positive | None = Field(
        None, description="Response tokens sampled for training.", json_schema_extra=told("tokens")
    )
    wall_clock_s: float | None = Field(
        None,
        gt=0,
        description="Seconds that its trainers run, all attempts together, loading and evaluation included.",
        json_schema_extra=told("seconds"),
    )
    gpu_hours: float | None = Field(
        None,
        gt=0,
        description="The same in hours, times the GPUs held; the CPU engine counts as one.",
        json_schema_extra=told("GPU-hours"),
    )


class CheckpointConfig(Section):
    every: Positive = Field(
        10, description="Steps between checkpoints; the end is always saved.", json_schema_extra=told("steps", paper=20)
    )
    keep: Positive = Field(2, description="Newest checkpoints kept.", json_schema_extra=told("checkpoints"))
    keep_best: int = Field(
        1,
        ge=0,
        description="Checkpoints kept besides, those of the best sampled accuracy among the evaluated ones.",
        json_schema_extra=told("checkpoints"),
    )


class Devices(NamedTuple):
    """What a run holds of the host that it is started on: `n` GPUs, or (kind cpu) one CPU slot."""

    kind: Literal["cpu", "cuda"]
    n: int


class TorchEngine(Section):
    """One process on the CPU or one GPU."""

    name: Literal["torch"] = "torch"
    device: Literal["cpu", "cuda"] = "cpu"
    threads: Positive | None = Field(
        None, description="CPU threads; unset means all cores.", json_schema_extra=told("threads")
    )
    token_budget: int = Field(
        16384,
        ge=256,
        description="Tokens per forward pass of the update, padding included.",
        json_schema_extra=told("tokens"),
    )

    @property
    def devices(self) -> Devices:
        return Devices(self.device, 1)

    @property
    def n_gpus(self) -> int:
        """For budget.gpu_hours; the CPU counts as one."""
        return 1


class VerlEngine(Section):
    """verl on GPU nodes: Ray, vLLM for the rollouts, FSDP2 or Megatron for the update."""

    name: Literal["verl"] = "verl"
    device: Literal["cuda", "cpu"] = Field(
        "cuda", description="cpu runs the whole engine on one machine without a GPU: to test it, far too slow to train."
    )
    nodes: Positive = Field(1, description="Machines. More than one needs ray_address.")
    gpus_per_node: Positive = Field(
        8, description="GPUs used on each node; 1 when device is cpu.", json_schema_extra=told("GPUs")
    )
    tensor_parallel: Positive = Field(
        1, description="GPUs that hold one copy of the model while sampling.", json_schema_extra=told("GPUs")
    )
    gpu_memory_utilization: float = Field(
        0.6,
        gt=0,
        lt=1,
        description="Share of each GPU's memory that vLLM may take while sampling.",
        json_schema_extra=told("of memory", paper=0.6),
    )
    max_prompt_tokens: Positive = Field(
        1024,
        description="Longest prompt, chat template included. A longer one ends the run before it starts.",
        json_schema_extra=told("tokens", paper=2048),
    )
    token_budget: Positive | None = Field(
        None,
        description="Tokens per GPU in one forward pass of the update; unset means twice the longest sequence.",
        json_schema_extra=told("tokens"),
    )
    loggers: tuple[Literal["console", "wandb", "mlflow", "tensorboard", "file"], ...] = Field(
        ("console",), description="verl's own loggers, beside the run's page."
    )
    ray_address: (
        Annotated[str, Field(min_length=1, pattern=spelled(r"^https?://[^\s/]+/?$", "http://HOST:PORT"))] | None
    ) = Field(
        None,
        description="Job server of a Ray cluster. Unset starts Ray on the worker's machine.",
        examples=["http://head-node:8265"],
    )
    overrides: dict[str, JsonValue] = Field(
        {},
        description="Any other key of verl's config, dotted, and its value. Checked by verl when the run starts.",
        examples=["actor_rollout_ref.model.lora_rank: 32"],
    )

    @property
    def devices(self) -> Devices:
        """The GPUs of a Ray cluster are Ray's to give; here it holds a CPU slot for the process that asks for them."""
        return Devices("cpu", 1) if self.ray_address else Devices(self.device, self.gpus_per_node)

    @property
    def n_gpus(self) -> int:
        """For budget.gpu_hours; the CPU counts as one."""
        return self.nodes * self.gpus_per_node

    @field_validator("loggers")
    @classmethod
    def _each_once(cls, loggers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(loggers)) < len(loggers):
            raise ValueError(f"{', '.join(loggers)}: name each logger once")
        return loggers

    @model_validator(mode="after")
    def _gpus_fit(self) -> Self:
        gpus = self.nodes * self.gpus_per_node
        if gpus % self.tensor_parallel:
            raise ValueError(
                f"tensor_parallel={self.tensor_parallel} does not divide the {gpus} GPUs of nodes={self.nodes} x "
                f"gpus_per_node={self.gpus_per_node}"
            )
        if self.nodes > 1 and self.ray_address is None:
            raise ValueError(f"nodes={self.nodes} needs ray_address, the job server of a Ray cluster that spans them")
        if self.device == "cpu" and gpus > 1:
            raise ValueError(
                f"device=cpu runs one training process, not nodes={self.nodes} x gpus_per_node={self.gpus_per_node}; "
                "give 1 and 1"
            )
        return self


EngineConfig = Annotated[TorchEngine | VerlEngine, Field(discriminator="name")]


def _no_outer_space(name: str) -> str:
    if name != name.strip():
        raise ValueError(f"{name!r} begins or ends with a space")
    return name


RunName = Annotated[
    str,
    Field(min_length=1, max_length=120, pattern=spelled(r"^[\w .+\-]+$", "letters, digits, spaces and _.+-")),
    AfterValidator(_no_outer_space),
]


class RunConfig(Section):
    """The whole description of a run. Raises pydantic.ValidationError on anything that is not accepted."""

    name: RunName = Field("run", description="Shown in lists.")
    seed: int = Field(0, ge=0, lt=2**31)
    model: ModelConfig
    data: DataConfig
    reward: RewardConfig = ExactReward()
    rewards: dict[Annotated[str, Field(min_length=1, max_length=100)], RewardConfig] = Field(
        {},
        description="Rewards by name, for prompts whose row names one; all others are scored by reward.",
        examples=["code: {name: code}"],
    )
    method: MethodConfig = PilotCommitMethod()
    selection: SelectionConfig = AllRollouts()
    sampling: SamplingConfig = SamplingConfig()
    update: UpdateConfig = UpdateConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    budget: BudgetConfig = BudgetConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    engine: EngineConfig = TorchEngine()

    @property
    def benchmarks(self) -> tuple[Benchmark, ...]:
        """What an evaluation measures, the held-out set first; temperature and top-p are filled in."""
        evaluation = self.evaluation
        held_out = Benchmark(
            name=HELD_OUT,
            data=self.data.eval,
            mapping=self.data.eval_mapping or self.data.mapping,
            samples=evaluation.samples,
            greedy=True,
        )
        protocol = [
            Benchmark(name=name, data=f"{evaluation.protocol_folder}/{name}.jsonl", samples=samples)
            for name, samples in PROTOCOLS.get(evaluation.protocol or "", {}).items()
        ]
        return tuple(self.filled_in(b) for b in (held_out, *protocol, *evaluation.benchmarks))

    def filled_in(self, benchmark: Benchmark) -> Benchmark:
        """The benchmark with the run's temperature and top-p where it has none of its own."""
        ours = self.evaluation
        return benchmark.model_copy(
            update={
                "temperature": ours.temperature if benchmark.temperature is None else benchmark.temperature,
                "top_p": ours.top_p if benchmark.top_p is None else benchmark.top_p,
            }
        )

    @model_validator(mode="after")
    def _selection_leaves_some_out(self) -> Self:
        if isinstance(self.selection, Pods) and self.selection.keep >= self.method.group_size:
            raise ValueError(
                f"selection.keep={self.selection.keep} leaves nothing out of {self.method.name}'s groups of "
                f"{self.method.group_size}; give a smaller keep, or selection.name all"
            )
        return self

    @model_validator(mode="after")
    def _overlong_can_happen(self) -> Self:
        longest = self.sampling.max_new_tokens
        sums = [reward for reward in (self.reward, *self.rewards.values()) if isinstance(reward, SumReward)]
        for part in (part for reward in sums for part in reward.parts):
            if isinstance(part.reward, OverlongReward) and part.reward.max_tokens - part.reward.cache >= longest:
                raise ValueError(
                    f"reward overlong starts beyond {part.reward.max_tokens - part.reward.cache} tokens, which no "
                    f"response reaches: sampling.max_new_tokens={longest}; give a smaller max_tokens"
                )
        return self

    @model_validator(mode="after")
    def _verl_can_run_it(self) -> Self:
        """What verl lays down for an update and the torch engine does not."""
        engine, update = self.engine, self.update
        if not isinstance(engine, VerlEngine):
            return self
        if update.batch_prompts % update.mini_batches:
            raise ValueError(
                f"update.mini_batches={update.mini_batches} does not divide "
                f"update.batch_prompts={update.batch_prompts}: verl trains mini-batches of equal size"
            )
        if update.warmup_updates % update.mini_batches:
            raise ValueError(
                f"update.warmup_updates={update.warmup_updates} is not a multiple of "
                f"update.mini_batches={update.mini_batches}: verl changes the learning rate once a step"
            )
        longest = engine.max_prompt_tokens + self.sampling.max_new_tokens
        if engine.token_budget is not None and engine.token_budget < longest:
            raise ValueError(
                f"engine.token_budget={engine.token_budget} is below the longest sequence, "
                f"engine.max_prompt_tokens={engine.max_prompt_tokens} + "
                f"sampling.max_new_tokens={self.sampling.max_new_tokens} = {longest}"
            )
        return self

    def digest(self) -> str:
        """16 hex digits that change when anything that decides the run changes."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]


class FieldProblem(BaseModel):
    """One thing wrong with a config: where, what was given, and what would be accepted."""

    field: str = Field(description="Dotted path of the field, e.g. method.p_lower.", examples=["method.p_lower"])
    value: Any = Field(description="What was given.", examples=[1.5])
    message: str = Field(examples=["Input should be less than or equal to 1"])


class ConfigProblems(ValueError):
    """A config that is not accepted. `problems` lists every fault found, not just the first."""

    def __init__(self, problems: list[FieldProblem]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{p.field}: {p.message} (given {p.value!r})" for p in problems))

    @classmethod
    def one(cls, field: str, value: Any, message: str) -> Self:
        return cls([FieldProblem(field=field, value=value, message=message)])


def parse_config(data: Any) -> RunConfig:
    """The RunConfig in `data` (a mapping). Raises ConfigProblems that names every faulty field."""
    if not isinstance(data, dict):
        given = type(data).__name__
        raise ConfigProblems.one("config", given, "a config is a mapping of fields")
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigProblems([_problem(e) for e in error.errors()]) from None


class _RewardOnly(Section):
    reward: RewardConfig


def parse_reward(data: Any) -> RewardConfig:
    """The reward section of a config by itself. Raises ConfigProblems that names every faulty field."""
    try:
        return _RewardOnly.model_validate({"reward": data}).reward
    except ValidationError as error:
        raise ConfigProblems([_problem(e, _RewardOnly) for e in error.errors()]) from None


def _problem(error: Any, config: type[Section] = RunConfig) -> FieldProblem:
    """Pydantic's error in the words of a config: the path as the user wrote it, and what would be accepted."""
    path: list[str] = []
    known: list[str] = []  # fields of the section that the path's last part is in
    what = "section"
    here: Any = config
    for part in error["loc"]:
        sections = _sections(here)
        if len(sections) > 1:  # the chosen member of a union: pydantic puts its name into the path, the user did not
            here = next((s for s in sections if s.model_fields["name"].default == part), None)
            continue
        path.append(str(part))
        known = list(sections[0].model_fields) if sections else []
        if part in known:
            what, here = str(part), sections[0].model_fields[str(part)].annotation
        else:  # a key or a place; what is one of many has their name without the s
            what, here = what.removesuffix("s"), _item(here)
    names = [str(s.model_fields["name"].default) for s in _sections(here) if "name" in s.model_fields]
    value, message = _shown(error["input"]), str(error["msg"]).removeprefix("Value error, ")
    match error["type"]:
        case "missing":
            value, message = None, "this field is required"
        case "extra_forbidden":
            close = difflib.get_close_matches(path[-1], known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known here: {', '.join(known)}"
            message = f"unknown field {path[-1]!r}{hint}"
        case "union_tag_invalid":
            path.append("name")
            value = _shown(error["input"].get("name"))
            message = f"unknown {what} {value!r}; known: {', '.join(names)}"
            if what == "reward" and value == OverlongReward.model_fields["name"].default:
                message = f"{value!r} judges no response by itself; use it as a part of the reward 'sum'"
        case "union_tag_not_found":
            path.append("name")
            value, message = None, f"this field is required; one of {', '.join(names)}"
        case "string_pattern_mismatch":
            message = spelling(error["ctx"]["pattern"])
        case "model_type" | "model_attributes_type" | "dict_type":
            message = "must be a mapping of fields"
    return FieldProblem(field=".".join(path) or "config", value=value, message=message)


def _sections(annotation: Any) -> list[type[Section]]:
    """The sections that a value may be: the annotation itself, the members of a union however it is nested, or none."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) is Annotated:
        return _sections(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [section for option in get_args(annotation) for section in _sections(option)]
    return []


def _item(annotation: Any) -> Any:
    """What an item of a tuple or a value of a mapping may be."""
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0]
    return get_args(annotation)[1] if get_origin(annotation) is dict else None


def _shown(value: Any) -> Any:
    """A value as an error repeats it: as it is when that is short JSON, else its beginning as text."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        text = str(value)
        return text[:200]
    return value if len(text) <= 200 else text[:200] + "..."


def load_config(path: Path) -> RunConfig:
    """The RunConfig in a YAML or JSON file. Raises ConfigProblems, also when the file is missing or not YAML."""
    try:
        return parse_config(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        message = f"is not YAML or JSON: {error}"
    raise ConfigProblems.one("config", str(path), message)


def is_path(source: str) -> bool:
    """Whether a source of prompts is a file: neither an uploaded set nor a data set of the hub."""
    return not source.startswith(("set:", "hub:"))


def resolve(path: str) -> Path:
    """The file or folder that a config's path means: absolute, or relative to the application's folder."""
    return (ROOT / path).resolve()


def pilot_home() -> Path:
    """PILOT_HOME, or `.pilot` in the application's folder: where uploaded and fetched prompts are kept."""
    return Path(os.environ.get("PILOT_HOME") or ROOT / ".pilot").expanduser().resolve()


@cache
def presets() -> list[dict[str, Any]]:
    """The shipped presets, each {name, group, title, description, config}; every config is a valid RunConfig.

    A file in pipeline/presets/ is one preset, or a family: `runs` names which of its `settings` go with which of its
    `methods`. Each pair is a preset; its config is the family's, changed by the setting's, changed by the method's.
    """
    found: list[dict[str, Any]] = []
    for path in sorted((ROOT / "pipeline" / "presets").glob("*.yaml"), key=lambda p: p.stem):
        file = yaml.safe_load(path.read_text(encoding="utf-8"))
        if "runs" not in file:
            found.append({"name": path.stem, "group": "", **file})
        for setting, methods in file.get("runs", {}).items():
            for method in methods:
                name, one, other = f"{setting}-{method}", file["settings"][setting], file["methods"][method]
                config = merge(merge(merge({"name": name}, file["config"]), one["config"]), other["config"])
                title = f"{one['title']}, {other['title']}"
                found.append(
                    {"name": name, "group": file["group"], "title": title, "description": one["description"]}
                    | {"config": config}
                )
    return found


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `changes` in place of its own, section by section."""
    both = {key: merge(base[key], changes[key]) for key in base.keys() & changes.keys() if isinstance(base[key], dict)}
    return base | changes | both
