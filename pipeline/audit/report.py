"""What an audit is asked and what it answers, as the command line, the API and the HTML page show it. No NumPy here.

The words are those of `pipeline.allocation.types`. A group is the rollouts of one prompt in one step. It is **mixed**
when its rewards differ, and has **zero variance** when they are all equal: then every advantage is zero, and it was
paid for and teaches nothing.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Format = Literal["verl", "trl", "csv", "pilot"]


class AuditSettings(BaseModel):
    """How a log is read, and what is replayed on it. What is left out takes its default or follows the log."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    format: Format | None = Field(None, description="Of the log; left out: told by its files and columns.")
    reward: list[str] = Field(
        [], max_length=20, description="Columns whose sum is the reward; left out: those of the format."
    )
    success: str | None = Field(None, max_length=200, description="Column that tells right (1) from wrong (0).")
    success_at: float | None = Field(None, description="A rollout is right when its reward is at least this.")
    skip_bad: bool = Field(False, description="Leave bad rows out and name them, instead of refusing the log.")
    n: int | None = Field(
        None,
        ge=2,
        le=4096,
        description="Rollouts of a prompt in GRPO, DAPO and PODS; left out: the most common logged.",
    )
    n_pilot: int | None = Field(
        None, ge=1, le=4096, description="Pilots of a prompt; left out: a quarter of n, at least 2."
    )
    n_commit: int | None = Field(None, ge=1, le=4096, description="Its commits; left out: the rest of n.")
    p_lower: float = Field(0.125, ge=0, le=1, description="Below: deferred, too hard.")
    p_upper: float = Field(0.75, ge=0, le=1, description="Above: skipped, too easy.")
    p_solve: float = Field(1.0, ge=0, le=1, description="From here on: evicted, solved.")
    keep: int | None = Field(None, ge=2, le=4096, description="Rollouts that PODS keeps; left out: a quarter of n.")
    batch_prompts: int | None = Field(
        None, ge=1, le=65536, description="Prompts trained on per step; left out: the median of the log."
    )
    replays: int | None = Field(
        None,
        ge=1,
        le=500,
        description="Of each method, each on other prompts; left out: 20, fewer on large logs, 3 at least.",
    )
    seed: int = Field(0, ge=0, lt=2**31)


class Interval(BaseModel):
    """The median over replays, with the 2.5% and the 97.5% quantile."""

    median: float
    low: float
    high: float


class AtSteps(BaseModel):
    """The log between two steps. Shares are of rollouts with a reward. reward_variance: mean over groups."""

    first_step: int
    last_step: int
    rollouts: int
    all_right: float = Field(description="Share in groups of equal rewards whose success rate is at least 1/2.")
    all_wrong: float = Field(description="Share in the other groups of equal rewards.")
    success_rate: float
    reward_variance: float


class Cell(BaseModel):
    """A cell of the difficulty map: prompts with a success rate in [p_from, p_to) and so many visits."""

    p_from: float
    p_to: float
    visits_from: int
    visits_to: int
    prompts: int


class BucketShare(BaseModel):
    """Prompts by what Pilot-Commit's thresholds would say of their success rate over the whole log."""

    bucket: Literal["deferred", "ready", "skipped", "evicted"]
    prompts: int
    rollouts: int


class DeadPrompt(BaseModel):
    """A prompt none of whose groups was ever mixed."""

    text: str = Field(description="Its beginning.")
    success_rate: float
    visits: int
    rollouts: int
    tokens: int | None


class MethodReplay(BaseModel):
    """What a method spent on the log's stream. Rates are per replay, then summed up over replays."""

    name: str
    what: str
    rollouts: Interval = Field(description="Sampled in all steps.")
    per_mixed: Interval | None = Field(description="Rollouts sampled per mixed group that trained; null: none trained.")
    per_signal: Interval | None = Field(
        description="Rollouts sampled per unit of signal. A trained group counts 4p(1 - p): 1 at p = 1/2, 0 when all "
        "are right or all wrong."
    )
    saved: Interval | None = Field(
        description="Share of GRPO's rollouts saved for as many mixed trained groups; negative: it needs more."
    )
    saved_signal: Interval | None = Field(description="The same at equal signal.")
    mixed_groups: Interval
    fates: dict[str, float] = Field(description="Share of the sampled rollouts by fate, mean over replays; sums to 1.")
    short_by: Interval = Field(description="Prompts missing to full batches, all steps together.")


class Certainty(BaseModel):
    """What the replays rest on."""

    replays: int
    visits_per_prompt: float = Field(description="Mean.")
    rollouts_per_prompt: tuple[int, int, int] = Field(description="10%, 50% and 90% quantile.")
    steps_away: float = Field(description="Median distance between a replayed step and the visit it draws from.")
    drawn_again: float = Field(description="Share of Pilot-Commit's rollouts drawn a second time from the same visit.")


class Report(BaseModel):
    source: str
    format: Format
    reward: str = Field(description="What counts as the reward, and as success.")
    steps: int
    first_step: int
    last_step: int
    prompts: int
    groups: int
    rollouts: int
    failed: int = Field(description="Rollouts without a reward; they are in no other figure.")
    tokens: int | None = Field(description="Response tokens; null: the log has none.")
    group_size: int = Field(description="The most common one.")
    batch_prompts: int
    zero_variance: float = Field(description="Share of rollouts in groups whose rewards are all equal.")
    all_right: float
    all_wrong: float
    success_rate: float
    reward_variance: float
    per_mixed: float | None = Field(description="Rollouts per mixed group, as logged.")
    over_steps: list[AtSteps]
    map: list[Cell]
    buckets: list[BucketShare]
    dead_prompts: int
    dead_rollouts: int
    dead: list[DeadPrompt] = Field(description="The most expensive ones.")
    methods: list[MethodReplay]
    certainty: Certainty
    settings: AuditSettings = Field(description="With every default filled in.")
    assumptions: list[str]
    bad_rows: int
    bad: list[str] = Field(description="The first bad rows that were left out.")
