"""What goes over the wire: the request and response bodies of API v1."""

from __future__ import annotations

import datetime as dt
import uuid
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from pipeline.audit import Report
from pipeline.config import FieldProblem as FieldProblem
from pipeline.config import MappingName as MappingName
from pipeline.config import RunName, spelled
from pipeline.forecast import Forecast as Forecast
from pipeline.forecast import Range as Range
from pipeline.forecast import StageForecast as StageForecast
from pipeline.prompts import PreviewRow as PreviewRow
from pipeline.prompts import PromptReport as PromptReport
from pipeline.rewards import RewardPart as RewardPart
from pipeline.rewards import RewardResult as RewardResult

RunState = Literal["queued", "starting", "running", "stopping", "stopped", "succeeded", "failed"]
Bucket = Literal["unseen", "evicted", "skipped", "deferred", "ready", "committed"]
Scope = Literal["read", "run", "admin"]
PromptMarkName = Literal["pin", "exclude", "clear", "retest"]
PromptSort = Literal[
    "visits", "-visits", "rollouts", "-rollouts", "tokens", "-tokens", "success_rate", "-success_rate", "step", "-step"
]  # fmt: skip
RunSort = Literal[
    "created", "-created", "name", "-name", "accuracy", "-accuracy", "rollouts", "-rollouts", "state", "-state",
    "variance", "-variance", "owner", "-owner"
]  # fmt: skip
Tag = Annotated[
    str,
    Field(
        min_length=1,
        max_length=50,
        pattern=spelled(
            r"^[^\s,\x00-\x1f\x7f]([^,\x00-\x1f\x7f]*[^\s,\x00-\x1f\x7f])?$",
            "no comma, no control character, no space at its ends",
        ),
        description="No comma, no control character, no space at its ends.",
        examples=["baseline"],
    ),
]
Tags = Annotated[list[Tag], Field(max_length=20), AfterValidator(lambda tags: list(dict.fromkeys(tags)))]


class Problem(BaseModel):
    """RFC 9457 problem details; the media type is application/problem+json."""

    type: str = Field("about:blank", examples=["/problems/invalid-config"])
    title: str = Field(examples=["The run config is not accepted"])
    status: int = Field(examples=[422])
    detail: str = Field(description="What went wrong and what to do.", examples=["1 field is not accepted"])
    instance: str | None = Field(None, description="Path of the request.", examples=["/api/v1/runs"])
    errors: list[FieldProblem] = Field([], description="Every faulty field, where there are any.")
    checks: dict[str, str] | None = Field(None, description="Of /readyz only: what is there and what is not.")


class RunCreate(BaseModel):
    """A run to start, or a config to check."""

    model_config = ConfigDict(extra="forbid")
    config: dict[str, Any] = Field(
        description="A RunConfig; see GET /api/v1/config/schema. What is left out takes its default.",
        examples=[
            {
                "name": "first run",
                "model": {"path": "pipeline/bundled/policy"},
                "data": {
                    "train": "pipeline/bundled/prompts.train.jsonl",
                    "eval": "pipeline/bundled/prompts.eval.jsonl",
                },
                "method": {"name": "pilot_commit", "n_pilot": 8, "n_commit": 24},
                "budget": {"steps": 40},
            }
        ],
    )
    priority: int = Field(0, ge=-1000, le=1000, description="Of queued runs, higher ones start first.")

    @model_validator(mode="before")
    @classmethod
    def _wrapped(cls, body: Any) -> Any:
        if isinstance(body, dict) and "config" not in body and body.keys() & {"model", "data", "method"}:
            raise ValueError('the body must wrap the run config: {"config": {...}}')
        return body


class RunClone(BaseModel):
    """What a clone has different. Sections are merged into those of the run's config; a section with another `name`
    (a method, an engine, a selection) takes the place of the old one.
    """

    model_config = ConfigDict(extra="forbid")
    config: dict[str, Any] = Field({}, examples=[{"name": "longer", "budget": {"steps": 80}}])
    priority: int = Field(0, ge=-1000, le=1000, description="Of queued runs, higher ones start first.")


class RunChange(BaseModel):
    """What to change; what is left out stays as it is."""

    model_config = ConfigDict(extra="forbid")
    name: RunName | None = Field(None, description="What lists call it. Its config keeps the name it began with.")
    tags: Tags | None = Field(None, description="All of its tags, in place of those it has.", examples=[["baseline"]])
    archived: bool | None = Field(None, description="Whether lists leave it out. Only of a run that has ended.")
    priority: int | None = Field(None, ge=-1000, le=1000, description="Of queued runs, higher ones start first.")

    @model_validator(mode="after")
    def _something(self) -> Self:
        if not self.model_dump(exclude_none=True):
            raise ValueError("nothing to change: give name, tags, archived or priority")
        return self


class CurvePoint(BaseModel):
    """Sampled accuracy on the held-out set when so many training rollouts were spent."""

    rollouts: int
    accuracy: float


class Audit(BaseModel):
    """What an audit found; `page` is the report as an HTML file that needs no network, with no script in it."""

    report: Report
    page: str


class RunSummary(BaseModel):
    """A run as lists show it. `steps_budget` and `rollouts_budget` are its config's bounds."""

    id: uuid.UUID
    name: str
    state: str = Field(examples=["running"])
    reason: str | None = Field(description="Why it is in this state, for a person.")
    todo: str = Field(description="What a person can do now.")
    priority: int = Field(description="Of queued runs, higher ones start first.")
    device: str = Field(description="What it needs: `cpu` or `cuda`.", examples=["cuda"])
    n_devices: int
    method: str = Field(examples=["pilot_commit"])
    model: str
    created_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    attempt: int
    step: int
    steps_budget: int
    rollouts: int
    rollouts_budget: int | None
    tokens: int
    first_accuracy: float | None
    accuracy: float | None
    best_accuracy: float | None
    buckets: dict[str, int]
    created_by: str | None = Field(None, description="Name of the token that created it; null: not known.")
    tags: list[str] = []
    archived_at: dt.datetime | None = Field(None, description="Lists leave it out since then.")
    curve: list[CurvePoint] = Field([], description="At most 30 evaluations, evenly spread over its steps.")
    reward_variance: float | None = Field(None, description="Of trained groups, mean of the last 20 steps.")
    seconds: float = Field(0.0, description="How long its trainers ran.")
    seconds_left: float | None = Field(
        None, description="Until its first budget is used up, at the pace of the last 20 steps; null: not running."
    )


class RunDetail(RunSummary):
    config: dict[str, Any]
    config_digest: str
    cloned_from: uuid.UUID | None = Field(description="The run whose config it began with; it may be deleted.")
    dataset_id: str | None
    stop_requested_at: dt.datetime | None
    eval_rollouts: int
    eval_tokens: int
    eval_seconds: float = Field(
        description="Of its `seconds`, those of its own finished evaluations; evaluations on demand have theirs."
    )
    gpu_hours: float = Field(description="`seconds` on each of its engine's GPUs; the CPU counts as one.")
    attempts: list[AttemptOut]


class AttemptOut(BaseModel):
    attempt: int
    host: str
    from_step: int | None
    started_at: dt.datetime
    finished_at: dt.datetime | None
    outcome: str | None
    reason: str | None
    exit_code: int | None
    last_seq: int
    saved_step: int | None = Field(None, description="Step of its newest checkpoint.")
    seconds: float = Field(description="For which its trainer has run.")
    open_rollouts: int = Field(0, description="At most what the step under way may have sampled; 0 between two steps.")


class RunPage(BaseModel):
    """total: how many match, on all pages. Pass `next_cursor` as `cursor` for the following page; null at the end."""

    runs: list[RunSummary]
    total: int
    next_cursor: str | None


class RunFacets(BaseModel):
    """The methods, tags and owners that runs have, archived ones included, to filter by."""

    methods: list[str]
    tags: list[str]
    owners: list[str]


class StepOut(BaseModel):
    """rollouts and tokens are cumulative; metrics as in pipeline.events.StepFinished."""

    step: int
    attempt: int
    epoch: int
    rollouts: int
    tokens: int
    metrics: dict[str, float | None]
    finished_at: dt.datetime


class BenchmarkOut(BaseModel):
    """One benchmark of an evaluation: accuracy (avg@samples) with its standard error over prompts, and beside it."""

    name: str = Field(examples=["aime24"])
    dataset: str = Field(description="Content hash of its prompts.")
    n_prompts: int
    samples: int = Field(description="Sampled responses per prompt.")
    temperature: float
    top_p: float
    accuracy: float
    stderr: float
    pass_at: dict[str, float | None] = Field(description="k -> pass@k, unbiased.")
    majority: float = Field(description="maj@samples: accuracy of the answer that most responses to a prompt give.")
    greedy_accuracy: float | None = Field(description="Null: not asked for.")
    greedy_stderr: float | None
    n_failed: int = Field(description="Responses whose reward failed; they are left out.")
    rollouts: int = Field(description="Spent on it, as tokens and seconds.")
    tokens: int
    seconds: float


class EvaluationOut(BaseModel):
    """greedy_accuracy, sampled_accuracy, stderr, samples, n_prompts: of the held-out set, the first of `benchmarks`."""

    step: int
    greedy_accuracy: float
    sampled_accuracy: float
    stderr: float
    samples: int
    n_prompts: int
    rollouts_spent: int
    seconds: float
    benchmarks: list[BenchmarkOut] = Field([], description="Empty in evaluations of older versions.")
    mean_accuracy: float | None = Field(None, description="Mean over the benchmarks other than the held-out set.")
    mean_stderr: float | None = None
    finished_at: dt.datetime


class Metrics(BaseModel):
    steps: list[StepOut]
    evaluations: list[EvaluationOut]


class RunProgress(BaseModel):
    """Where a run stands, in its stream of events. Steps beyond `from_step` of older attempts were lost and come again
    when `attempt` grows.
    """

    id: uuid.UUID
    state: str
    reason: str | None
    attempt: int
    from_step: int | None = Field(
        description="Step of the checkpoint that the attempt goes on from; null: not known yet."
    )
    step: int
    rollouts: int
    tokens: int
    accuracy: float | None


class BucketsAt(BaseModel):
    step: int
    counts: dict[str, int]


class Buckets(BaseModel):
    """Prompt counts per bucket: now, and after every step. They sum to the pool's size."""

    step: int
    counts: dict[str, int]
    history: list[BucketsAt]


class Flow(BaseModel):
    source: str = Field(examples=["unseen"])
    target: str = Field(examples=["ready"])
    prompts: int


class Flows(BaseModel):
    """From the bucket after `from_step` into that after `to_step`; who stayed has the same as source and target."""

    from_step: int
    to_step: int
    flows: list[Flow]


class RateCell(BaseModel):
    """Groups in one part of the steps whose success rate lay in one bin; both count from 0."""

    part: int
    rate: int
    groups: int


class SpendCell(BaseModel):
    """Prompts with a success rate in one bin and 2^visits to 2^(visits+1)-1 visits; `bucket`: that of most of them."""

    rate: int
    visits: int
    prompts: int
    rollouts: int
    tokens: int
    bucket: str


class Difficulty(BaseModel):
    """over_time: of the groups that prompts are judged by, counted in each `every`-th step of `first` to `last`."""

    first: int
    last: int
    every: int
    over_time: list[RateCell]
    spend: list[SpendCell]


class FateCount(BaseModel):
    fate: str
    rollouts: int
    tokens: int


class Ledger(BaseModel):
    """Every training rollout by what became of it. The fates add up to `sampled`. Evaluation is in none of them."""

    sampled: FateCount
    fates: list[FateCount]
    evaluation: list[BenchmarkSpend] = Field(
        [], description="What evaluation has sampled; of a benchmark that was cut short, at most."
    )


class BenchmarkSpend(BaseModel):
    benchmark: str = Field(examples=["held-out"])
    rollouts: int
    tokens: int


class AccuracyCurve(BaseModel):
    """Every evaluation of a run, in order: value i of each list is of evaluation i.

    rollouts, tokens: sampled for training until then. hours: for which trainers had run. accuracy: sampled; stderr: its
    standard error over prompts.
    """

    step: list[int]
    rollouts: list[int]
    tokens: list[int]
    hours: list[float]
    accuracy: list[float]
    stderr: list[float]
    greedy_accuracy: list[float]


class StepCurve(BaseModel):
    """Evenly spaced steps of a run, the first and the last among them: value i of each list is of the same step.

    rollouts, tokens, hours: until the step's end. metrics: the step's own; null where it had no such value.
    """

    step: list[int]
    rollouts: list[int]
    tokens: list[int]
    hours: list[float]
    metrics: dict[str, list[float | None]]


class ComparedRun(BaseModel):
    run: RunSummary
    config: dict[str, Any]
    evaluations: AccuracyCurve
    series: StepCurve
    ledger: Ledger


class Costs(BaseModel):
    """What was spent until the target was reached, median of the runs; null: at least half of them never reach it."""

    rollouts: float | None
    tokens: float | None
    steps: float | None
    hours: float | None


class Ratio(BaseModel):
    """How many times less than the baseline a group spends until the target: above 1 is better.

    value: of the medians; null: the baseline never gets there. low, high: 95% bootstrap interval over seeds; null: no
    bound, as one of the two does not always get there or has fewer than three runs. paired: seeds were resampled in
    pairs.
    """

    value: float | None
    low: float | None
    high: float | None
    paired: bool


class RunGroup(BaseModel):
    """Runs whose configs are the same but for seed and name. Accuracies and variance are medians of the runs.

    reached: how many of them reach the target. against: the baseline; null: it is the baseline, or never gets there.
    """

    name: str
    runs: list[uuid.UUID]
    seeds: list[int]
    reached: int
    to_target: Costs
    against: Ratio | None
    accuracy: float | None
    best_accuracy: float | None
    reward_variance: float | None


class ConfigDifference(BaseModel):
    """values: one for each group; null: unset, or a field that this group's config does not have."""

    field: str = Field(description="Its dotted path in the config.", examples=["update.lr"])
    values: list[Any]


class Comparison(BaseModel):
    """The runs in the order in which they were named, and what they tell together.

    target: the sampled accuracy to reach; null: none was given and not every group was evaluated. by: what `against`
    counts. baseline: index of the group that the others are compared with.
    """

    runs: list[ComparedRun]
    target: float | None
    by: Literal["rollouts", "tokens", "steps", "hours"]
    baseline: int
    groups: list[RunGroup]
    differences: list[ConfigDifference] = Field(description="The fields in which the groups' configs differ.")


class PromptMarkOut(BaseModel):
    """What somebody wished for a prompt: first in every epoch and never evicted (`pin`), never sampled (`exclude`),
    neither (`clear`), or once in the next step (`retest`).
    """

    mark: PromptMarkName
    wished_at: dt.datetime
    wished_by: str = Field(description="Name of the token.")
    applied_step: int | None = Field(description="The step from which on it holds; null: from the next one on.")


class PromptsMarked(BaseModel):
    """marked: prompts for which it is wished now. unchanged: those for which it was already."""

    mark: PromptMarkName
    marked: int
    unchanged: int


class PromptRow(BaseModel):
    id: str
    text: str
    answer: str
    tags: list[str]
    bucket: str
    success_rate: float | None
    visits: int
    rollouts: int
    tokens: int
    step: int | None = Field(description="Step of the last visit or change; null when unseen.")
    marks: list[PromptMarkOut] = Field(
        [], description="Its pin or exclusion, a `clear` that is still to come, a re-test that is."
    )


class PromptPage(BaseModel):
    prompts: list[PromptRow]
    total: int
    next_cursor: str | None


class TagCount(BaseModel):
    tag: str
    prompts: int


class PromptTags(BaseModel):
    """The most frequent ones, and on how many prompts each is."""

    tags: list[TagCount]


class RolloutOut(BaseModel):
    """One response of a prompt. reward, success: null when the reward failed. logprob: of the whole response under the
    policy that sampled it, in nats. verdicts: of each part of the reward, how it came to its value, as JSON.
    """

    step: int
    stage: str
    response: str
    reward: float | None
    success: float | None
    n_tokens: int
    logprob: float | None
    verdicts: str | None


class PromptRollouts(BaseModel):
    """Newest step first, whole steps. missing: visited steps whose file is not there (any more). next_step: `before` of
    the following page.
    """

    rollouts: list[RolloutOut]
    missing: list[int]
    next_step: int | None


class Visit(BaseModel):
    step: int
    stage: str
    attempt: int
    n: int
    n_failed: int
    success_rate: float | None
    reward_variance: float | None
    tokens: int
    bucket: str


class Move(BaseModel):
    """A change of bucket without a visit: as `step` began, the prompt's pilots had grown too old or were taken back by
    a mark; or it was trained on from the buffer.
    """

    step: int
    attempt: int
    bucket: str


class PromptHistory(BaseModel):
    """Visits in the order in which they happened. A move of a step comes before the step's visits."""

    prompt: PromptRow
    visits: list[Visit]
    moves: list[Move] = []
    marks: list[PromptMarkOut] = Field([], description="The newest 200 that were wished for it, the newest first.")


class Preset(BaseModel):
    name: str
    group: str = Field(description="The paper that the preset repeats; empty for demos.")
    title: str
    description: str
    config: dict[str, Any]


class ConfigCheck(BaseModel):
    """The answer of POST /config/validate: the full config with defaults, or what is wrong with it."""

    valid: bool
    config: dict[str, Any] | None
    problems: list[FieldProblem]


class Health(BaseModel):
    """status: `ok` or `unavailable`. checks: what was looked at, `ok` or what is wrong and what to do."""

    status: str = Field(examples=["ok"])
    checks: dict[str, str] = Field(examples=[{"database": "ok", "broker": "ok"}])


class Alert(BaseModel):
    """Something that goes wrong in a run: what shows it, and what to change."""

    kind: str = Field(examples=["entropy_collapse"])
    level: Literal["warn", "bad"]
    title: str
    evidence: str
    suggestion: str


class Alerts(BaseModel):
    """Worst first."""

    alerts: list[Alert]


class LogPart(BaseModel):
    """offset: of the first byte of `text` in the attempt's log. size: of the log now."""

    attempt: int
    offset: int
    text: str
    next_offset: int
    size: int


class FileOut(BaseModel):
    path: str
    n_bytes: int


class CheckpointOut(BaseModel):
    """accuracy: sampled, on the held-out set, after its step; null: it was not evaluated then."""

    step: int
    accuracy: float | None
    saved_at: dt.datetime
    n_bytes: int
    files: list[FileOut]


class Checkpoints(BaseModel):
    checkpoints: list[CheckpointOut]
    best_step: int | None = Field(description="Of the most accurate one.")


class RolloutFile(BaseModel):
    step: int
    n_bytes: int


class RolloutPage(BaseModel):
    files: list[RolloutFile]
    next_step: int | None = Field(description="`from_step` of the following page.")


class EvaluationFile(BaseModel):
    step: int
    benchmark: str = Field(examples=["held-out"])
    n_bytes: int


class EvaluationFiles(BaseModel):
    files: list[EvaluationFile]
    next_step: int | None = Field(description="`from_step` of the following page.")


class EvaluationAsk(BaseModel):
    """What to measure of a checkpoint. The held-out set is always measured, too, as the run does."""

    model_config = ConfigDict(extra="forbid")
    step: Annotated[int, Field(ge=0, lt=2**31)] | Literal["newest", "best"] = Field(
        "newest", description="The checkpoint's step; `best`: the most accurate one.", examples=[40]
    )
    benchmarks: list[Annotated[str, Field(min_length=1, max_length=500)]] | None = Field(
        None,
        max_length=20,
        description="Names of the run's benchmarks, or other prompt sets, written as a config's `data.eval`. Left out: "
        "all of the run's, or only those of the protocol.",
        examples=[["aime24", "set:mini@1f0c2a9b7d3e4455"]],
    )
    protocol: Literal["math-7"] | None = Field(None, description="Also these, as a config's `evaluation.protocol`.")
    samples: int | None = Field(None, ge=1, lt=2**31, description="Per prompt, in place of each benchmark's own.")
    temperature: float | None = Field(None, gt=0, description="The same for the temperature.")
    top_p: float | None = Field(None, gt=0, le=1, description="The same for top-p.")
    greedy: bool | None = Field(None, description="Whether each prompt is answered once more, greedily.")
    reward: dict[str, Any] | None = Field(None, description="What judges, as in a config.", examples=[{"name": "math"}])


class BenchmarkAsked(BaseModel):
    """What is measured and how. A name with a suffix, `aime24.k64.t0.6`: otherwise than the run measures it."""

    name: str = Field(examples=["held-out"])
    data: str
    samples: int
    greedy: bool
    temperature: float | None
    top_p: float | None


class CheckpointEvaluation(BaseModel):
    """An evaluation that was asked for. Its results are also with the run's own evaluations of that step."""

    id: uuid.UUID
    run_id: uuid.UUID
    run_name: str
    step: int
    benchmarks: list[BenchmarkAsked]
    state: str = Field(examples=["running"], description="As a run's; `stopped`: on request, or with the platform.")
    reason: str | None = Field(description="Why it is in this state, for a person.")
    priority: int = Field(description="In the queue of runs: that of its run.")
    device: str
    n_devices: int
    created_by: str | None
    created_at: dt.datetime
    started_at: dt.datetime | None
    finished_at: dt.datetime | None
    stop_requested_at: dt.datetime | None
    attempt: int = Field(description="Above 1: it began again after its process or its host was lost.")
    seconds: float = Field(description="How long it has run, all attempts together.")
    gpu_hours: float = Field(description="`seconds` on each of its engine's GPUs; the CPU counts as one.")
    rollouts: int = Field(
        description="Sampled by it, at most where it was cut short; the run's ledger has them under evaluation."
    )
    tokens: int
    results: list[BenchmarkOut] = Field(description="Empty until it has succeeded.")


class CheckpointEvaluations(BaseModel):
    """Newest first. Pass `next_cursor` as `cursor` for the following page; null at the end."""

    evaluations: list[CheckpointEvaluation]
    next_cursor: str | None


class TokenCreate(BaseModel):
    """A token to make. `read` sees runs, `run` also starts, stops and changes them, `admin` also makes tokens."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(
        min_length=1,
        max_length=100,
        pattern=spelled(r"^[^\x00-\x1f\x7f]+$", "no control character"),
        examples=["ci of the maths team"],
    )
    scope: Scope = "read"
    days: int | None = Field(90, ge=1, le=3650, description="Until it expires; null: never.")


class TokenOut(BaseModel):
    id: uuid.UUID
    name: str
    scope: str = Field(examples=["run"])
    created_at: dt.datetime
    created_by: str | None = Field(description="Name of the token that made it; null: made in the database directly.")
    expires_at: dt.datetime | None
    revoked_at: dt.datetime | None
    last_used_at: dt.datetime | None = Field(description="To the minute.")


class TokenMade(TokenOut):
    """The only answer that ever holds the token's secret."""

    secret: str = Field(description="Send it as `Authorization: Bearer <secret>`.")


class TokenPage(BaseModel):
    tokens: list[TokenOut]
    next_cursor: str | None


class SlotOut(BaseModel):
    """A CPU slot or one GPU of a host, and the run that holds it."""

    kind: Literal["cpu", "cuda"]
    device: str = Field(description="What CUDA_VISIBLE_DEVICES calls the GPU; a CPU slot's number.", examples=["0"])
    label: str = Field(examples=["NVIDIA H200, 139 GiB"])
    offered: bool = Field(description="false: its host has it no more, and the run that holds it is still ending.")
    use: float | None = Field(description="Share of the time that the GPU computed, lately; null: not known.")
    run_id: uuid.UUID | None
    evaluation_id: uuid.UUID | None = Field(None, description="Not the run itself holds it, but an evaluation of it.")
    run_name: str | None = Field(description="null: nobody holds it, or the run was deleted.")
    taken_at: dt.datetime | None


class WorkerOut(BaseModel):
    """A host on which a worker runs, or ran within the last day."""

    host: str
    silent_since: dt.datetime | None = Field(description="When its announcement ran out; null: it answers.")
    cpu_use: float | None = Field(description="Share of all its cores, lately; null: not known.")
    slots: list[SlotOut]


class Workers(BaseModel):
    """By name of the host."""

    workers: list[WorkerOut]


class SettingsChange(BaseModel):
    """All settings anew."""

    model_config = ConfigDict(extra="forbid")
    price_per_gpu_hour: float | None = Field(
        ge=0, le=1e6, allow_inf_nan=False, description="null: money is not shown.", examples=[2.5]
    )
    currency: str = Field(
        pattern=spelled(r"^[A-Z]{3}$", "three capital letters"), description="ISO 4217.", examples=["USD"]
    )


class SettingsOut(BaseModel):
    """What holds for everybody. changed_at, changed_by: null while nothing was set."""

    price_per_gpu_hour: float | None = Field(description="In `currency`; null: not set, and money is not shown.")
    currency: str = Field(description="ISO 4217.", examples=["USD"])
    changed_at: dt.datetime | None = None
    changed_by: str | None = None


class RewardOut(BaseModel):
    """A reward that a config can name."""

    name: str = Field(examples=["math"])
    version: int = Field(description="Rises when the same response would score differently.")
    title: str
    description: str
    judges: bool = Field(description="Whether it can judge how right a response is.")
    parameters: dict[str, Any] = Field(description="JSON schema of its section of a config.")
    elsewhere: str | None = Field(description="Why this API does not run it; null: it does.")


class Rewards(BaseModel):
    rewards: list[RewardOut]


class RewardTest(BaseModel):
    """Responses to score by a reward."""

    model_config = ConfigDict(extra="forbid")
    reward: dict[str, Any] = Field(description="As in a config.", examples=[{"name": "math"}])
    responses: list[Annotated[str, Field(max_length=300_000)]] = Field(
        min_length=1, max_length=16, description="What a policy wrote.", examples=[["So it is \\boxed{\\frac{1}{2}}."]]
    )
    answer: str = Field("", max_length=100_000, description="The reference answer.", examples=["0.5"])
    prompt: str = Field("", max_length=100_000)
    n_tokens: int | None = Field(None, ge=0, lt=2**31, description="Response tokens, for rewards that look at them.")


class RewardTested(BaseModel):
    """A result per response, in order."""

    results: list[RewardResult]


WebhookEvent = Literal["run.state", "run.alert"]


class WebhookCreate(BaseModel):
    model_config = ConfigDict(extra="forbid")
    url: str = Field(min_length=1, max_length=2000, examples=["https://hooks.example.org/pilot"])
    events: list[WebhookEvent] = Field(["run.state", "run.alert"], min_length=1, max_length=2)


class WebhookOut(BaseModel):
    id: uuid.UUID
    url: str
    events: list[str]
    created_at: dt.datetime
    created_by: str


class WebhookMade(WebhookOut):
    """The only answer that holds the secret."""

    secret: str = Field(description="`whsec_` and the base64 of the key that signs deliveries.")


class Webhooks(BaseModel):
    webhooks: list[WebhookOut]


class DeliveryOut(BaseModel):
    """One event for one webhook. error: why the newest attempt failed; `due_at`: when the next one is made."""

    id: int
    event: str
    body: dict[str, Any]
    created_at: dt.datetime
    attempts: int
    due_at: dt.datetime
    delivered_at: dt.datetime | None
    given_up_at: dt.datetime | None
    status: int | None
    error: str | None


class DeliveryPage(BaseModel):
    deliveries: list[DeliveryOut]
    next_cursor: str | None


class PromptSetOut(BaseModel):
    """One version of an uploaded prompt set. ref: what a config's data.train, data.eval or a benchmark writes."""

    name: str = Field(examples=["gsm8k"])
    version: str = Field(description="16 hex digits of the content; equal prompts, equal version.")
    ref: str = Field(examples=["set:gsm8k@9a3eda8c4b317c79"])
    file: str = Field(description="Name of the file that was uploaded, or the data set of the hub at its commit.")
    mapping: str = Field(examples=["gsm8k"])
    n_prompts: int
    n_bytes: int = Field(description="As it is stored: JSONL, a prompt a line, sorted by id.")
    created_at: dt.datetime
    created_by: str = Field(description="Name of the token.")
    n_runs: int = Field(description="Runs that use it. It can be deleted when there are none.")


class RunUsing(BaseModel):
    id: uuid.UUID
    name: str
    state: str


class PromptSetDetail(PromptSetOut):
    report: PromptReport = Field(description="Of the upload.")
    runs: list[RunUsing] = Field(description="The newest 100.")


class PromptCheck(PromptReport):
    hub: str | None = Field(
        description="The data set of the hub at the commit that was read: adding this adds what was looked at; null of "
        "a file.",
        examples=["hub:openai/gsm8k@e53f048856ff4f594e959d75785d2c2d37b678ee:main/train"],
    )


class PromptSetPage(BaseModel):
    """Newest first."""

    prompt_sets: list[PromptSetOut]
    next_cursor: str | None


class PromptSetRows(BaseModel):
    rows: list[PreviewRow]
    next_offset: int | None


class AuditRow(BaseModel):
    """One change. before, after: what of the target it changed; null: the target did not exist."""

    id: int
    at: dt.datetime
    token_id: uuid.UUID
    token_name: str
    action: str = Field(examples=["run.stop"])
    target: str = Field(description="Id of what was changed, or `settings`.")
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    request_id: str


class AuditPage(BaseModel):
    entries: list[AuditRow]
    next_cursor: str | None


RunDetail.model_rebuild()
Ledger.model_rebuild()
