"""What a run will sample before it starts: rollouts, tokens and GPU-hours by stage, worked out from its config and from
what earlier runs saw on the same prompts with the same starting policy. No I/O, no clock.

Per step, with `bt` prompts to train on and `ready` the share of piloted prompts that are worth committing:

    GRPO          bt prompts, n rollouts each: known exactly
    Pilot-Commit  n_commit rollouts for each of bt prompts, and bt / ready pilots of n_pilot rollouts to find them
    DAPO          bt / mixed groups of n rollouts, of which a share `mixed` has both right and wrong ones

`ready` and `mixed` come from history: each group that was seen, k right of n, says what this config's pilots would
have done with that prompt. Its success rate has the posterior Beta(a + k, b + n - k), where Beta(a, b) is fitted to all
groups; how many of n_pilot rollouts come out right is then beta-binomial, and the thresholds say which bucket that is.
A prompt gets easier as the policy learns, so step s of the new run takes the shares that the old runs had at step s.

docs/forecast.md has what it assumes and how far it was off.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, Field

from pipeline.config import DapoMethod, GrpoMethod, PilotCommitMethod, Pods, RunConfig

Stage = Literal["pilot", "commit", "evaluation"]
PARTS: Final = 12
"""A history is cut into so many parts of equal length, each with shares of its own."""
RUN_TO_RUN: Final = 0.1
"""Relative standard deviation of a share or a length between runs that differ in seed and method alone, as long as
history has too few runs to tell. docs/forecast.md measures it."""
PACE_TO_PACE: Final = 0.3
"""The same of seconds per rollout: machines are shared."""
Z_90: Final = 1.645
"""Half-width of a 90 % interval, in standard deviations."""


class Seen(NamedTuple):
    """Groups of a run's first stage, in steps first..last: `groups` of them had `k` right of `n` scored rollouts."""

    run: str
    first: int
    last: int
    n: int
    k: int
    groups: int


class Length(NamedTuple):
    """Mean response length in a part of a run."""

    run: str
    first: int
    last: int
    rollouts: int
    tokens: int


class Pace(NamedTuple):
    """Seconds that one run took, all of them its own: per rollout sampled and rewarded, per rollout trained on, per
    rollout evaluated, and per step for all the rest (loading, checkpoints, the trainer's own work)."""

    run: str
    sample: float
    update: float
    evaluate: float
    rest: float


class History(NamedTuple):
    """What earlier runs on the same prompts with the same starting policy tell. paces: of those on the same device."""

    seen: Sequence[Seen]
    lengths: Sequence[Length]
    paces: Sequence[Pace]
    runs: int
    prompts: int
    """Different prompts that were visited."""


NO_HISTORY: Final = History((), (), (), 0, 0)


def part_of(step: int, last: int) -> tuple[int, int]:
    """The first and the last step of the part, of a run of `last` steps, that `step` lies in."""
    width = math.ceil(last / PARTS)
    first = (step - 1) // width * width + 1
    return first, min(last, first + width - 1)


class Range(BaseModel):
    """A number and its 90 % interval. All three are equal when it is known exactly, and null where nothing is known;
    without a history `low` and `high` are bounds, and `expected` is null."""

    low: float | None = None
    expected: float | None = None
    high: float | None = None


class StageForecast(BaseModel):
    stage: Stage
    rollouts: Range
    tokens: Range
    gpu_hours: Range


class Forecast(BaseModel):
    """What a run is expected to sample. `stages` do not hold what loading and checkpoints take; `gpu_hours` does."""

    steps: int = Field(description="Steps that it will train, as far as its budgets tell.", examples=[150])
    ends_by: str = Field(description="The budget that ends it.", examples=["budget.steps"])
    stages: list[StageForecast]
    rollouts: Range = Field(description="Training rollouts, pilots and commits together.")
    tokens: Range = Field(description="Response tokens of these.")
    gpu_hours: Range = Field(description="Of everything, evaluation included; a CPU slot counts as one GPU.")
    shares: dict[str, Range] = Field(
        description="Share of the piloted prompts by the bucket that they land in; empty when nothing tells.",
        examples=[{"ready": {"low": 0.28, "expected": 0.33, "high": 0.38}}],
    )
    saving: Range | None = Field(
        description="Share of rollouts saved against GRPO with groups of the same size, for the same number of prompts "
        "that are neither too easy nor too hard. null: the method saves none, or nothing tells."
    )
    runs: int = Field(description="Runs that it rests on.")
    prompts: int = Field(description="Prompts that these runs visited.")
    visits: int = Field(description="Groups of their first stage.")
    unknown: list[str] = Field(description="What it cannot tell and why, in words.")


class _Expected(NamedTuple):
    """One way the run may go, step by step."""

    pilots: list[float]  # rollouts of the pilot stage in each step
    commits: list[float]
    trained: list[float]


def forecast(config: RunConfig, n_train: int, n_eval: int, history: History = NO_HISTORY) -> Forecast:
    """n_train: prompts to train on. n_eval: responses that one evaluation samples."""
    known = _Known(config, history)
    middle = _course(config, n_train, known, 0.0)
    cheap, dear = _course(config, n_train, known, 1.0), _course(config, n_train, known, -1.0)
    steps, ends_by = _end(config, n_eval, known, middle or dear)
    courses = (cheap or _bound(config, n_train, cheap=True), middle, dear or _bound(config, n_train, cheap=False))
    pilot = _stage("pilot", config, known, [c and sum(c.pilots[:steps]) for c in courses], courses, steps)
    commit = _stage("commit", config, known, [c and sum(c.commits[:steps]) for c in courses], courses, steps)
    evaluation = _evaluation(config, known, n_eval, steps)
    has_pilots = isinstance(config.method, PilotCommitMethod)
    training = [pilot, commit] if has_pilots else [commit]
    rest = _times(Range(low=1, expected=1, high=1), known.rest, steps * config.engine.n_gpus / 3600)
    return Forecast(
        steps=steps,
        ends_by=ends_by,
        stages=[*training, evaluation],
        rollouts=_bounded(_sum(s.rollouts for s in training), config.budget.rollouts),
        tokens=_bounded(_sum(s.tokens for s in training), config.budget.tokens),
        gpu_hours=_bounded(_sum([*(s.gpu_hours for s in (*training, evaluation)), rest]), config.budget.gpu_hours),
        shares=known.mean_shares(steps) if history.seen and not isinstance(config.method, GrpoMethod) else {},
        saving=_saving(config, known, steps),
        runs=history.runs,
        prompts=history.prompts,
        visits=sum(seen.groups for seen in history.seen),
        unknown=_unknown(config, history),
    )


class _Known:
    """History, asked by step: shares, lengths and paces, each with how sure it is."""

    def __init__(self, config: RunConfig, history: History) -> None:
        self.history = history
        self.shares = _Shares(config, history) if history.seen else None
        self.sample = _pace([pace.sample for pace in history.paces])
        self.update = _pace([pace.update for pace in history.paces])
        self.evaluate = _pace([pace.evaluate for pace in history.paces])
        self.rest = _pace([pace.rest for pace in history.paces])

    def mean_shares(self, steps: int) -> dict[str, Range]:
        """Over the run's steps."""
        assert self.shares is not None
        at = [self.shares.at(step) for step in range(1, max(1, steps) + 1)]
        found = {}
        for bucket in at[0]:
            mean = sum(shares[bucket] for shares in at) / len(at)
            error = Z_90 * self.shares.error * mean
            found[bucket] = Range(low=max(0.0, mean - error), expected=mean, high=min(1.0, mean + error))
        return found

    def length(self, steps: int, longest: int) -> Range:
        """Mean response tokens over the run's steps."""
        lengths = self.history.lengths
        if not lengths:
            return Range(low=1, high=longest)
        means = []
        known = min(steps, max(part.last for part in lengths))  # beyond it nothing changes
        for step in range(1, known + 1):
            here = _at(lengths, step)
            means.append(sum(part.tokens for part in here) / sum(part.rollouts for part in here))
        mean = (sum(means) + (steps - known) * means[-1]) / steps
        by_run: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for part in lengths:
            by_run[part.run][0] += part.tokens
            by_run[part.run][1] += part.rollouts
        error = Z_90 * _between([tokens / rollouts for tokens, rollouts in by_run.values()])
        return Range(low=mean * max(0.0, 1 - error), expected=mean, high=min(longest, mean * (1 + error)))


class _Block(NamedTuple):
    """All groups of a part of a run: how many would be in each bucket."""

    run: str
    first: int
    last: int
    buckets: dict[str, float]


class _Shares:
    """Which part of the piloted prompts lands in which bucket, by step. error: relative standard deviation.

    The first bucket is the one that is worth training on.
    """

    def __init__(self, config: RunConfig, history: History) -> None:
        prior = fitted_prior(history.seen)
        judged = {(seen.n, seen.k): judge(config, seen.n, seen.k, prior) for seen in history.seen}
        blocks: dict[tuple[str, int, int], dict[str, float]] = {}
        for seen in history.seen:
            counts = blocks.setdefault((seen.run, seen.first, seen.last), defaultdict(float))
            for bucket, share in judged[seen.n, seen.k].items():
                counts[bucket] += seen.groups * share
        self.blocks = [_Block(*place, buckets) for place, buckets in blocks.items()]
        self._last = max(block.last for block in self.blocks)  # beyond it nothing changes
        self._by_step: dict[int, dict[str, float]] = {}
        by_run: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for block in self.blocks:
            by_run[block.run][0] += next(iter(block.buckets.values()))
            by_run[block.run][1] += sum(block.buckets.values())
        useful = [found / groups for found, groups in by_run.values()]
        groups = sum(seen.groups for seen in history.seen)
        mean = sum(useful) / len(useful)
        chance = math.sqrt((1 - mean) / (mean * groups)) if mean > 0 else 1.0
        self.error = math.hypot(chance, _between(useful))

    def at(self, step: int) -> dict[str, float]:
        """The share of each bucket."""
        step = min(step, self._last)
        if step not in self._by_step:
            here = _at(self.blocks, step)
            counts = {bucket: sum(block.buckets[bucket] for block in here) for bucket in here[0].buckets}
            groups = sum(counts.values())
            self._by_step[step] = {bucket: count / groups for bucket, count in counts.items()}
        return self._by_step[step]

    def useful(self, step: int, sigmas: float) -> float:
        """Share of groups worth training on, so many times its 90 % error above what is expected."""
        expected = next(iter(self.at(step).values()))
        return min(1.0, max(1e-3, expected * (1 + sigmas * Z_90 * self.error)))


def fitted_prior(seen: Sequence[Seen]) -> tuple[float, float]:
    """(a, b) of the Beta distribution of success rates, from groups of any size, by its first two moments.

    The variance of rates is that of the prompts and, on top, what few rollouts leave to chance: the mean of
    p (1 - p) / n over groups, in which n - 1 in place of n makes k / n (1 - k / n) free of bias.
    """
    groups = sum(s.groups for s in seen)
    mean = sum(s.groups * s.k / s.n for s in seen) / groups
    variance = sum(s.groups * (s.k / s.n - mean) ** 2 for s in seen) / groups
    chance = sum(s.groups * (s.k / s.n) * (1 - s.k / s.n) / max(1, s.n - 1) for s in seen) / groups
    mean = min(1 - 1e-3, max(1e-3, mean))
    spread = min(mean * (1 - mean) * 0.999, max(1e-4, variance - chance))
    total = mean * (1 - mean) / spread - 1
    return mean * total, (1 - mean) * total


def judge(config: RunConfig, n: int, k: int, prior: tuple[float, float]) -> dict[str, float]:
    """Probability of each bucket for a prompt that had k right of n, if this config's first stage looks at it.

    The first bucket is the one that is worth training on.
    """
    method = config.method
    a, b = prior[0] + k, prior[1] + n - k
    if not isinstance(method, PilotCommitMethod):
        size = method.group_size
        hard, easy = _beta_binomial(size, 0, a, b), _beta_binomial(size, size, a, b)
        return {"ready": max(0.0, 1 - hard - easy), "skipped": easy, "deferred": hard}
    shares = dict.fromkeys(("ready", "skipped", "deferred", "evicted"), 0.0)
    for right in range(method.n_pilot + 1):
        p = right / method.n_pilot
        if p >= method.p_solve:
            bucket = "evicted"
        elif p > method.p_upper:
            bucket = "skipped"
        elif p < method.p_lower:
            bucket = "deferred"
        else:
            bucket = "ready"
        shares[bucket] += _beta_binomial(method.n_pilot, right, a, b)
    return shares


def _beta_binomial(n: int, k: int, a: float, b: float) -> float:
    lg = math.lgamma
    choose = lg(n + 1) - lg(k + 1) - lg(n - k + 1)
    return math.exp(choose + lg(k + a) + lg(n - k + b) - lg(n + a + b) - lg(a) - lg(b) + lg(a + b))


def _course(config: RunConfig, n_train: int, known: _Known, sigmas: float) -> _Expected | None:
    """The run with shares so many times their 90 % error above what is expected; None when nothing tells them."""
    method, steps = config.method, config.budget.steps
    batch = min(config.update.batch_prompts, n_train)
    if isinstance(method, GrpoMethod):
        commits = [float(batch * method.n)] * steps
        return _Expected([0.0] * steps, commits, [_trained(config, batch)] * steps)
    if known.shares is None:
        return None
    pilots, commits, trained = [], [], []
    for step in range(1, steps + 1):
        useful = known.shares.useful(step, sigmas)
        if isinstance(method, DapoMethod):
            most = min(method.gen_prompts or 3 * config.update.batch_prompts, n_train)
            groups = batch / useful
            if not method.keep_surplus:  # whole passes
                groups = max(1.0, math.ceil(groups / most - 1e-9)) * most
            groups = min(groups, float(method.max_rounds * most))
            pilots.append(0.0)
            commits.append(groups * method.n)
            trained.append(_trained(config, min(batch, groups * useful)))
        else:
            most = min(method.pilot_prompts or 3 * config.update.batch_prompts, n_train)
            looked_at = min(batch / useful, float(method.max_rounds * most))
            if step == 1:  # what waits in the buffer from then on
                looked_at += max(0.0, (1 + method.binding) * batch - batch * batch / (most * useful)) / useful
            committed = min(float(batch), looked_at * useful)
            pilots.append(looked_at * method.n_pilot)
            commits.append(committed * method.n_commit)
            trained.append(_trained(config, committed))
    return _Expected(pilots, commits, trained)


def _bound(config: RunConfig, n_train: int, *, cheap: bool) -> _Expected:
    """The least and the most that the method can sample, when nothing tells how many prompts are worth it."""
    method, steps = config.method, config.budget.steps
    batch = min(config.update.batch_prompts, n_train)
    if isinstance(method, DapoMethod):
        most = min(method.gen_prompts or 3 * config.update.batch_prompts, n_train)
        groups = batch if cheap else method.max_rounds * most
        return _Expected([0.0] * steps, [float(groups * method.n)] * steps, [_trained(config, batch)] * steps)
    assert isinstance(method, PilotCommitMethod)
    most = min(method.pilot_prompts or 3 * config.update.batch_prompts, n_train)
    looked_at = batch if cheap else method.max_rounds * most
    return _Expected(
        [float(looked_at * method.n_pilot)] * steps,
        [float(batch * method.n_commit)] * steps,
        [_trained(config, batch)] * steps,
    )


def _trained(config: RunConfig, prompts: float) -> float:
    """Rollouts that the update sees."""
    selection = config.selection
    return prompts * (selection.keep if isinstance(selection, Pods) else config.method.group_size)


def _end(config: RunConfig, n_eval: int, known: _Known, course: _Expected | None) -> tuple[int, str]:
    """How many steps are trained, and the budget that ends it."""
    budget, n_gpus = config.budget, config.engine.n_gpus
    if course is None:
        return budget.steps, "budget.steps"
    per_token = known.length(budget.steps, config.sampling.max_new_tokens).expected
    rollouts, seconds = 0.0, 0.0
    for step in range(budget.steps):
        sampled = course.pilots[step] + course.commits[step]
        rollouts += sampled
        if None not in (known.sample.expected, known.update.expected, known.rest.expected):
            seconds += sampled * (known.sample.expected or 0) + course.trained[step] * (known.update.expected or 0)
            seconds += known.rest.expected or 0
        if step % config.evaluation.every == 0:
            seconds += n_eval * (known.evaluate.expected or 0)
        spent = {
            "budget.rollouts": (rollouts, budget.rollouts),
            "budget.tokens": (rollouts * (per_token or 0), budget.tokens),
            "budget.wall_clock_s": (seconds, budget.wall_clock_s),
            "budget.gpu_hours": (seconds * n_gpus / 3600, budget.gpu_hours),
        }
        for field, (used, bound) in spent.items():
            if bound is not None and used > bound:
                return step, field
    return budget.steps, "budget.steps"


def _stage(
    stage: Literal["pilot", "commit"],
    config: RunConfig,
    known: _Known,
    rollouts: Sequence[float | None],
    courses: Sequence[_Expected | None],
    steps: int,
) -> StageForecast:
    """The update is the commits' doing: its time is counted there."""
    sampled = Range(low=rollouts[0], expected=rollouts[1], high=rollouts[2])
    length = known.length(max(1, steps), config.sampling.max_new_tokens)
    hours = config.engine.n_gpus / 3600
    spent = [_times(sampled, known.sample, hours)]
    if stage == "commit":
        trained = [None if c is None else sum(c.trained[:steps]) for c in courses]
        spent.append(_times(Range(low=trained[0], expected=trained[1], high=trained[2]), known.update, hours))
    return StageForecast(stage=stage, rollouts=sampled, tokens=_times(sampled, length), gpu_hours=_sum(spent))


def _evaluation(config: RunConfig, known: _Known, n_eval: int, steps: int) -> StageForecast:
    """At the start, every so many steps, and at the end."""
    settings = config.evaluation
    times = 1 + steps // settings.every + (steps % settings.every > 0)
    n = float(times * n_eval)
    rollouts = Range(low=n, expected=n, high=n)
    tokens = _times(rollouts, known.length(max(1, steps), config.sampling.max_new_tokens))
    gpu_hours = _times(rollouts, known.evaluate, config.engine.n_gpus / 3600)
    return StageForecast(stage="evaluation", rollouts=rollouts, tokens=tokens, gpu_hours=gpu_hours)


def _saving(config: RunConfig, known: _Known, steps: int) -> Range | None:
    """GRPO samples n / useful rollouts for a prompt worth training on; Pilot-Commit n_pilot / useful + n_commit.

    So it saves n_commit / n (1 - useful): what the commits of all other prompts would have cost.
    """
    method = config.method
    if not isinstance(method, PilotCommitMethod) or known.shares is None or not steps:
        return None
    saved = []
    for sigmas in (1.0, 0.0, -1.0):
        useful = sum(known.shares.useful(step, sigmas) for step in range(1, steps + 1)) / steps
        saved.append(method.n_commit / method.group_size * (1 - useful))
    return Range(low=saved[0], expected=saved[1], high=saved[2])


def _unknown(config: RunConfig, history: History) -> list[str]:
    words = []
    if not history.seen and not isinstance(config.method, GrpoMethod):
        found = "pilots that find a prompt worth committing" if config.method.name == "pilot_commit" else "mixed groups"
        words.append(
            f"How many {found}: no run has trained this model on these prompts yet. Rollouts are given as bounds, "
            "from every prompt being worth it to as many passes as max_rounds allows."
        )
    if not history.lengths:
        words.append("How long responses are: tokens are given as bounds, up to sampling.max_new_tokens each.")
    if not history.paces:
        words.append(
            "How fast it is: no run of this model on these prompts has finished steps on this engine and device."
        )
    if history.seen and history.runs < 3:
        few = "1 run" if history.runs == 1 else f"{history.runs} runs"
        words.append(
            f"How much runs differ: {few} cannot tell. {RUN_TO_RUN:.0%} are assumed, and {PACE_TO_PACE:.0%} of speed."
        )
    return words


def _pace(seconds: Sequence[float]) -> Range:
    """What was measured lies inside in any case."""
    if not seconds:
        return Range()
    mean = sum(seconds) / len(seconds)
    error = Z_90 * _between(seconds, PACE_TO_PACE)
    return Range(low=min(*seconds, mean * max(0.0, 1 - error)), expected=mean, high=max(*seconds, mean * (1 + error)))


def _between(values: Sequence[float], assumed: float = RUN_TO_RUN) -> float:
    """Relative standard deviation from run to run; below three runs what is assumed."""
    mean = sum(values) / len(values)
    if len(values) < 3 or not mean:
        return assumed
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1)) / mean


class _Part(Protocol):
    @property
    def first(self) -> int: ...
    @property
    def last(self) -> int: ...


_P = TypeVar("_P", bound=_Part)


def _at(parts: Sequence[_P], step: int) -> list[_P]:
    """The parts of runs that hold this step; of steps that no run has reached, or that sampled nothing, the nearest."""
    distances = [max(part.first - step, step - part.last, 0) for part in parts]
    nearest = min(distances)
    return [part for part, distance in zip(parts, distances, strict=True) if distance == nearest]


def _times(one: Range, other: Range, factor: float = 1.0) -> Range:
    """The product; both may be at their worst at once."""

    def product(a: float | None, b: float | None) -> float | None:
        return None if a is None or b is None else a * b * factor

    return Range(
        low=product(one.low, other.low), expected=product(one.expected, other.expected),
        high=product(one.high, other.high),
    )  # fmt: skip


def _sum(ranges: Iterable[Range]) -> Range:
    totals: dict[str, float | None] = defaultdict(float)
    for part in ranges:
        for name in ("low", "expected", "high"):
            value, total = getattr(part, name), totals[name]
            totals[name] = None if value is None or total is None else total + value
    return Range(**totals)


def _bounded(total: Range, budget: float | None) -> Range:
    """Budgets are hard."""
    if budget is None:
        return total
    return Range(**{name: None if v is None else min(v, budget) for name, v in total.model_dump().items()})
