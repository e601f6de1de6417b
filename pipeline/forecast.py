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
How much runs differ is told at steps that they share. What they saw beyond the new run's last step is left out.

docs/forecast.md has what it assumes and how far it was off.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from pydantic import BaseModel, Field

from pipeline.config import DapoMethod, GrpoMethod, PilotCommitMethod, Pods, RunConfig

Stage = Literal["pilot", "commit", "evaluation"]


def _edges() -> list[int]:
    edges = [1]
    while edges[-1] < 1_000_000:
        edges.append(edges[-1] + max(5, edges[-1] // 4))
    return edges


EDGES: Final = _edges()
"""The first steps of the parts that every run is cut into: five steps each at first, then a quarter longer each, as a
policy changes less and less. They are the same for a short run and a long one, so these can be compared."""
RUN_TO_RUN: Final = 0.1
"""Relative standard deviation of a share or a length between runs that differ in seed and method alone: what is assumed
before any run tells, with the weight of `ASSUMED` runs after. docs/forecast.md measures it."""
PACE_TO_PACE: Final = 0.3
"""The same of seconds per rollout: machines are shared."""
ASSUMED: Final = 2
MOST: Final = 0.5
"""A larger relative standard deviation tells nothing."""
LEAST: Final = 100
"""A run that has fewer useful groups says more about chance than about runs."""
Z_90: Final = 1.645
"""Half-width of a 90 % interval, in standard deviations."""


class Seen(NamedTuple):
    """Groups of a run's first stage in one part of it: `groups` of them had `k` right of `n` scored rollouts."""

    run: str
    part: int
    n: int
    k: int
    groups: int


class Length(NamedTuple):
    """Mean response length in a part of a run."""

    run: str
    part: int
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
    steps: int
    """That the longest of these runs has trained."""


NO_HISTORY: Final = History((), (), (), 0, 0, 0)


def part_of(step: int) -> int:
    """The part that a step lies in, from 0."""
    return bisect(EDGES, step) - 1


class Range(BaseModel):
    """A number and its 90 % interval: low <= expected <= high. All three are equal when it is known exactly, and null
    where nothing is known; where history cannot tell, `low` and `high` are bounds, and `expected` is null."""

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
    gpu_hours: Range = Field(description="Of everything, evaluation included; of a CPU run the hours of its slot.")
    device: Literal["cpu", "cuda"] = Field(description="What the hours are of: a CPU slot, or GPUs.")
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
    advice: list[str] = Field(description="What in the config is allowed and hardly meant, in words.")


class _Expected(NamedTuple):
    """One way the run may go, step by step."""

    pilots: list[float]  # rollouts of the pilot stage in each step
    commits: list[float]
    trained: list[float]


def forecast(config: RunConfig, n_train: int, n_eval: int, history: History = NO_HISTORY) -> Forecast:
    """n_train: prompts to train on. n_eval: responses that one evaluation samples."""
    history = _cut(history, config.budget.steps)
    known = _Known(config, history)
    middle = _course(config, n_train, known, 0.0)
    others = [_course(config, n_train, known, sigmas) for sigmas in (1.0, -1.0)] if middle else _bounds(config, n_train)
    found = [course for course in (middle, *others) if course]
    steps, ends_by = _end(config, n_eval, known, found[0])
    courses = [(course, _end(config, n_eval, known, course)[0]) for course in found]

    def over(amount: Callable[[_Expected, int], float]) -> Range:
        """Of the ways that it may go: the one that pilots least need not be the one that commits least."""
        found = [float(amount(course, until)) for course, until in courses]
        return Range(low=min(found), expected=found[0] if middle else None, high=max(found))

    budget, per_second = config.budget, config.engine.n_gpus / 3600
    hours = [budget.gpu_hours, None if budget.wall_clock_s is None else budget.wall_clock_s * per_second]
    length = known.length(max(1, steps))

    def stage(name: Stage, sampled: Range, *times: Range, of_budget: bool = True) -> StageForecast:
        return StageForecast(
            stage=name,
            rollouts=_bounded(sampled, budget.rollouts if of_budget else None),
            tokens=_bounded(_times(sampled, length), budget.tokens if of_budget else None),
            gpu_hours=_bounded(_sum(times), *hours),
        )

    pilots, commits = over(lambda c, until: sum(c.pilots[:until])), over(lambda c, until: sum(c.commits[:until]))
    trained = over(lambda c, until: sum(c.trained[:until]))
    evaluated = over(lambda _, until: n_eval * _evaluations(config, until))
    # The update is the commits' doing: its time is counted there.
    commit_times = _times(commits, known.sample, per_second), _times(trained, known.update, per_second)
    stages = [
        stage("commit", commits, *commit_times),
        stage("evaluation", evaluated, _times(evaluated, known.evaluate, per_second), of_budget=False),
    ]
    if isinstance(config.method, PilotCommitMethod):
        stages.insert(0, stage("pilot", pilots, _times(pilots, known.sample, per_second)))
    rest = _times(over(lambda _, until: until), known.rest, per_second)
    rollouts = over(lambda c, until: sum(c.pilots[:until]) + sum(c.commits[:until]))
    return Forecast(
        steps=steps,
        ends_by=ends_by,
        stages=stages,
        rollouts=_bounded(rollouts, budget.rollouts),
        tokens=_bounded(_times(rollouts, length), budget.tokens),
        gpu_hours=_bounded(_sum([*(stage.gpu_hours for stage in stages), rest]), *hours),
        shares=known.shares.mean(steps) if known.shares and not isinstance(config.method, GrpoMethod) else {},
        saving=_saving(config, known, steps),
        runs=history.runs,
        prompts=history.prompts,
        visits=sum(seen.groups for seen in history.seen),
        unknown=_unknown(config, history, known, steps),
        device=config.engine.device,
        advice=_advice(config, n_train),
    )


def _cut(history: History, steps: int) -> History:
    """Without what runs saw beyond so many steps: of a longer run only its beginning is like a shorter one."""
    last = part_of(steps)
    return history._replace(
        seen=[seen for seen in history.seen if seen.part <= last],
        lengths=[length for length in history.lengths if length.part <= last],
    )


class _Curve:
    """A mean by part, from (amount, number) by run and part; and its relative standard deviation from run to run.

    Runs are compared with all of them together, at the parts that at least two of them hold.
    """

    def __init__(self, cells: Mapping[tuple[str, int], tuple[float, float]]) -> None:
        totals: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (_, part), (amount, number) in cells.items():
            totals[part][0] += amount
            totals[part][1] += number
        self._by_part = {part: amount / number for part, (amount, number) in totals.items()}
        runs = Counter(part for _, part in cells)
        compared: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for (run, part), (amount, number) in cells.items():
            if runs[part] > 1:
                compared[run][0] += amount
                compared[run][1] += number * self._by_part[part]
        self.error = _between([amount / usual for amount, usual in compared.values() if usual >= LEAST], RUN_TO_RUN)

    def at(self, step: int) -> float:
        """In steps that no run has reached, or that sampled nothing, as in the nearest part."""
        part = part_of(step)
        if part not in self._by_part:
            part = min(self._by_part, key=lambda known: (abs(known - part), known))
        return self._by_part[part]

    def mean(self, steps: int) -> float:
        return sum(self.at(EDGES[part]) * n for part, n in Counter(map(part_of, range(1, steps + 1))).items()) / steps


class _Shares:
    """Which part of the piloted prompts lands in which bucket, by step. The first bucket is worth training on."""

    def __init__(self, config: RunConfig, history: History) -> None:
        prior = fitted_prior(history.seen)
        judged = {(seen.n, seen.k): judge(config, seen.n, seen.k, prior) for seen in history.seen}
        found: dict[tuple[str, int], dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for seen in history.seen:
            for bucket, share in judged[seen.n, seen.k].items():
                found[seen.run, seen.part][bucket] += seen.groups * share
        groups = {place: sum(counts.values()) for place, counts in found.items()}
        self._curves = {
            bucket: _Curve({place: (counts[bucket], groups[place]) for place, counts in found.items()})
            for bucket in next(iter(judged.values()))
        }
        self._groups = sum(groups.values())
        self._useful = next(iter(self._curves.values()))
        self.found = sum(next(iter(counts.values())) for counts in found.values())
        self.between = self._useful.error
        self.error = self._error(self._useful, self.found / self._groups)

    def _error(self, curve: _Curve, share: float) -> float:
        """Relative standard deviation, of few groups and from run to run."""
        return math.hypot(math.sqrt((1 - min(1.0, share)) / (share * self._groups)), curve.error) if share else 1.0

    def mean(self, steps: int) -> dict[str, Range]:
        """Over the run's steps."""
        told = {}
        for bucket, curve in self._curves.items():
            mean = min(1.0, curve.mean(max(1, steps)))
            error = Z_90 * self._error(curve, mean) * mean
            told[bucket] = Range(low=max(0.0, mean - error), expected=mean, high=min(1.0, mean + error))
        return told

    def useful(self, step: int, sigmas: float) -> float:
        """Share of groups worth training on, so many times its 90 % error above what is expected.

        The error is a factor: rollouts go with one over the share, and no share is below 0.
        """
        return min(1.0, max(1e-6, self._useful.at(step) * math.exp(sigmas * Z_90 * self.error)))


class _Known:
    """What history tells of this config, and in `doubts` why it does not tell what one could expect of it."""

    def __init__(self, config: RunConfig, history: History) -> None:
        self.doubts: list[str] = []
        self._longest = config.sampling.max_new_tokens
        self.shares = _Shares(config, history) if history.seen else None
        if self.shares is not None and self.shares.error > MOST:
            why = f"the {history.runs} runs on these prompts disagree by {self.shares.between:.0%} at the same steps"
            if self.shares.between <= MOST:
                why = f"earlier runs met {self.shares.found:,.0f} of them, too few to tell"
            if not isinstance(config.method, GrpoMethod):
                self.doubts.append(f"How many {_sought(config)}: {why}. {_BOUNDS}")
            self.shares = None
        cells = {(part.run, part.part): (float(part.tokens), float(part.rollouts)) for part in history.lengths}
        self._lengths = _Curve(cells) if cells else None
        if self._lengths is not None and self._lengths.error > MOST:
            self.doubts.append(
                f"How long responses are: the {history.runs} runs on these prompts disagree by "
                f"{self._lengths.error:.0%} at the same steps. Tokens are given as bounds."
            )
            self._lengths = None
        self.sample = self._pace("sampling a rollout", [pace.sample for pace in history.paces])
        self.update = self._pace("training on a rollout", [pace.update for pace in history.paces])
        self.evaluate = self._pace("evaluating a response", [pace.evaluate for pace in history.paces])
        self.rest = self._pace("the rest of a step", [pace.rest for pace in history.paces])

    def length(self, steps: int) -> Range:
        """Mean response tokens over the run's steps."""
        if self._lengths is None:
            return Range(low=1, high=self._longest)
        mean = min(self._longest, self._lengths.mean(steps))
        factor = math.exp(Z_90 * self._lengths.error)
        return Range(low=mean / factor, expected=mean, high=min(self._longest, mean * factor))

    def _pace(self, what: str, seconds: Sequence[float]) -> Range:
        """What was measured lies inside in any case."""
        if not seconds:
            return Range()
        mean = sum(seconds) / len(seconds)
        error = _between([second / mean for second in seconds] if mean else [], PACE_TO_PACE)
        low, high = min(*seconds, mean), max(*seconds, mean)
        if error > MOST:
            self.doubts.append(f"How fast it is: {what} took {low:.2g} to {high:.2g} s. Hours span these.")
            return Range(low=low, expected=mean, high=high)
        factor = math.exp(Z_90 * error)
        return Range(low=min(low, mean / factor), expected=mean, high=max(high, mean * factor))


def _between(ratios: Sequence[float], assumed: float) -> float:
    """Relative standard deviation of runs, each given as its ratio to all; what is assumed weighs as much as `ASSUMED`
    runs do, because few runs that happen to be alike say little."""
    squares = sum((ratio - 1) ** 2 for ratio in ratios)
    return math.sqrt((ASSUMED * assumed**2 + squares) / (ASSUMED + max(0, len(ratios) - 1)))


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
            groups = min(groups, float(method.max_rounds * most), float(n_train))  # each prompt once a step
            pilots.append(0.0)
            commits.append(groups * method.n)
            trained.append(_trained(config, min(batch, groups * useful)))
        else:
            most = min(method.pilot_prompts or 3 * config.update.batch_prompts, n_train)
            looked_at = min(batch / useful, float(method.max_rounds * most))
            if step == 1:  # what waits in the buffer from then on
                looked_at += max(0.0, (1 + method.binding) * batch - batch * batch / (most * useful)) / useful
            looked_at = min(looked_at, float(n_train))  # each prompt once a step
            committed = min(float(batch), looked_at * useful)
            pilots.append(looked_at * method.n_pilot)
            commits.append(committed * method.n_commit)
            trained.append(_trained(config, committed))
    return _Expected(pilots, commits, trained)


def _bounds(config: RunConfig, n_train: int) -> list[_Expected]:
    """The ends of what the method can sample, when nothing tells how many prompts are worth it; first the one in which
    every prompt is. A step looks at each prompt once at most, however many passes it may take."""
    method, steps = config.method, config.budget.steps
    batch = min(config.update.batch_prompts, n_train)

    def course(looked_at: float, committed: float, n: int, n_commit: int) -> _Expected:
        found, trained = [float(looked_at * n)] * steps, [_trained(config, committed)] * steps
        if isinstance(method, DapoMethod):
            return _Expected([0.0] * steps, found, trained)
        return _Expected(found, [float(committed * n_commit)] * steps, trained)

    if isinstance(method, DapoMethod):
        most = min(method.max_rounds * (method.gen_prompts or 3 * config.update.batch_prompts), n_train)
        full = min(batch, most)
        return [course(full, full, method.n, 0), course(most, full, method.n, 0), course(most, 0, method.n, 0)]
    assert isinstance(method, PilotCommitMethod)
    most = min(method.max_rounds * (method.pilot_prompts or 3 * config.update.batch_prompts), n_train)
    full = min(batch, most)
    none_ready = course(most, 0, method.n_pilot, method.n_commit)
    # Solved at the first look, all of them: nothing is left to sample after that.
    left = [max(0, min(most, n_train - step * most)) for step in range(steps)]
    solved = none_ready._replace(pilots=[float(looked_at * method.n_pilot) for looked_at in left])
    return [
        course(full, full, method.n_pilot, method.n_commit), course(most, batch, method.n_pilot, method.n_commit),
        none_ready, solved,
    ]  # fmt: skip


def _trained(config: RunConfig, prompts: float) -> float:
    """Rollouts that the update sees."""
    selection = config.selection
    return prompts * (selection.keep if isinstance(selection, Pods) else config.method.group_size)


def _end(config: RunConfig, n_eval: int, known: _Known, course: _Expected) -> tuple[int, str]:
    """How many steps are trained, and the budget that ends it."""
    budget, n_gpus = config.budget, config.engine.n_gpus
    per_token = known.length(budget.steps).expected or 0.0
    timed = None not in (known.sample.expected, known.update.expected, known.rest.expected)
    rollouts, seconds = 0.0, 0.0
    for step in range(budget.steps):
        sampled = course.pilots[step] + course.commits[step]
        rollouts += sampled
        if timed:
            seconds += sampled * (known.sample.expected or 0) + course.trained[step] * (known.update.expected or 0)
            seconds += known.rest.expected or 0
        if step % config.evaluation.every == 0:
            seconds += n_eval * (known.evaluate.expected or 0)
        spent = {
            "budget.rollouts": (rollouts, budget.rollouts),
            "budget.tokens": (rollouts * per_token, budget.tokens),
            "budget.wall_clock_s": (seconds, budget.wall_clock_s),
            "budget.gpu_hours": (seconds * n_gpus / 3600, budget.gpu_hours),
        }
        for field, (used, bound) in spent.items():
            if bound is not None and used > bound:
                return step, field
    return budget.steps, "budget.steps"


def _evaluations(config: RunConfig, steps: int) -> int:
    """At the start, every so many steps, and at the end."""
    every = config.evaluation.every
    return 1 + steps // every + (steps % every > 0)


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


def _sought(config: RunConfig) -> str:
    return "pilots that find a prompt worth committing" if config.method.name == "pilot_commit" else "mixed groups"


_BOUNDS: Final = (
    "Rollouts are given as bounds: at least what is sampled when batches go short, because prompts are solved or too "
    "hard; at most every pass that max_rounds allows."
)


def _advice(config: RunConfig, n_train: int) -> list[str]:
    asked = config.update.batch_prompts
    if asked <= n_train:
        return []
    has = "1 prompt" if n_train == 1 else f"{n_train:,} prompts"
    return [
        f"update.batch_prompts is {asked:,} and the training set has {has}: every batch goes short. Lower it, or "
        "give more prompts."
    ]


def _unknown(config: RunConfig, history: History, known: _Known, steps: int) -> list[str]:
    words = []
    if not history.seen and not isinstance(config.method, GrpoMethod):
        words.append(f"How many {_sought(config)}: no run has trained this model on these prompts yet. {_BOUNDS}")
    if not history.lengths:
        words.append("How long responses are: tokens are given as bounds, up to sampling.max_new_tokens each.")
    if not history.paces:
        words.append(
            "How fast it is: no run of this model on these prompts has finished steps on this engine and device."
        )
    words += known.doubts
    if history.seen and part_of(steps) > part_of(history.steps):
        words.append(
            f"How it goes on after step {history.steps:,}: no run on these prompts went further. Shares and lengths "
            "are taken to stay as they were there, and ranges do not allow for what changes."
        )
    if history.seen and history.runs < 3:
        few = "1 run" if history.runs == 1 else f"{history.runs} runs"
        words.append(
            f"How much runs differ: {few} cannot tell. {RUN_TO_RUN:.0%} are assumed, and {PACE_TO_PACE:.0%} of speed."
        )
    return words


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


def _bounded(total: Range, *budgets: float | None) -> Range:
    """Budgets are hard."""
    bound = min((budget for budget in budgets if budget is not None), default=math.inf)
    return Range(**{name: None if v is None else min(v, bound) for name, v in total.model_dump().items()})
