"""Event logs as a trainer writes them, for a pool of prompts that is visited in turn."""

from __future__ import annotations

from pipeline.events import (
    AnyEvent,
    AttemptFinished,
    AttemptStarted,
    BenchmarkResult,
    CheckpointSaved,
    Count,
    EvaluationFinished,
    EvaluationProgress,
    PromptRecord,
    PromptsLoaded,
    SamplingStarted,
    StepFinished,
    VisitRecord,
)

POOL = [f"p{i}" for i in range(6)]


def number(events: list[AnyEvent]) -> list[AnyEvent]:
    return [e.model_copy(update={"seq": i, "time": 1.7e9 + i}) for i, e in enumerate(events, 1)]


def started(attempt: int, from_step: int = 0, lost: Count | None = None) -> AttemptStarted:
    return AttemptStarted(
        attempt=attempt,
        from_step=from_step,
        lost=lost or Count(),
        n_train=len(POOL),
        n_eval=2,
        model_parameters=10,
    )


def prompts() -> PromptsLoaded:
    records = [PromptRecord(id=p, text=f"{p} \x00?", answer="1", tags=["easy", "add"]) for p in POOL]
    return PromptsLoaded(dataset="d1", name="sums", prompts=records)


def visit(prompt: str, bucket: str, *, stage: str = "pilot", p: float | None = 0.5, n: int = 4) -> VisitRecord:
    return VisitRecord(
        prompt_id=prompt,
        stage=stage,
        n=n,
        n_failed=0 if p is not None else n,
        success_rate=p,
        reward_variance=None if p is None else p * (1 - p),
        tokens=10 * n,
        bucket=bucket,
    )


def step(
    number: int, visits: list[VisitRecord], *, before: int = 0, moves: dict[str, str] | None = None
) -> StepFinished:
    """A step that buffers two rollouts and trains on the others. before: rollouts sampled until then."""
    sampled = sum(v.n for v in visits)
    return StepFinished(
        step=number,
        epoch=1,
        metrics={"loss": 0.1 * number, "grad_norm": None},
        fates={
            "trained": Count(rollouts=sampled - 2, tokens=10 * (sampled - 2)),
            "buffered": Count(rollouts=2, tokens=20),
            "stale": Count(),
        },
        buckets={"unseen": len(POOL) - number, "committed": number},
        visits=visits,
        moves=moves or {},
        rollouts=before + sampled,
        tokens=10 * (before + sampled),
    )


def sampling(step: int, rollouts: int = 8) -> SamplingStarted:
    return SamplingStarted(step=step, rollouts=rollouts, tokens=10 * rollouts)


def evaluation_progress(step: int, **rollouts: int) -> EvaluationProgress:
    return EvaluationProgress(step=step, spent={name: Count(rollouts=n, tokens=10 * n) for name, n in rollouts.items()})


def evaluation(step: int, accuracy: float) -> EvaluationFinished:
    return EvaluationFinished(
        step=step,
        greedy_accuracy=accuracy,
        sampled_accuracy=accuracy,
        stderr=0.01,
        samples=4,
        n_prompts=2,
        rollouts_spent=0,
        eval_rollouts=8,
        eval_tokens=80,
        seconds=0.5,
        benchmarks=[benchmark("held-out", accuracy, 6), benchmark("aime24", accuracy / 2, 2)],
        mean_accuracy=accuracy / 2,
        mean_stderr=0.01,
    )


def benchmark(name: str, accuracy: float, rollouts: int) -> BenchmarkResult:
    return BenchmarkResult(
        name=name,
        dataset="d2",
        n_prompts=2,
        samples=2,
        temperature=1.0,
        top_p=0.7,
        accuracy=accuracy,
        stderr=0.01,
        pass_at={"1": accuracy, "2": None},
        majority=accuracy,
        greedy_accuracy=None,
        greedy_stderr=None,
        n_failed=0,
        rollouts=rollouts,
        tokens=10 * rollouts,
        seconds=0.2,
    )


def checkpoint(step: int) -> CheckpointSaved:
    return CheckpointSaved(step=step, path=f"checkpoints/{step}")


def finished(step: int, outcome: str = "succeeded") -> AttemptFinished:
    return AttemptFinished.model_validate({"outcome": outcome, "reason": "all steps done", "step": step})
