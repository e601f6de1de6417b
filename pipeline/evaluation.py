"""Evaluation: what the policy of a step can do, measured on benchmarks. Every response is kept on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import HELD_OUT, Benchmark
from pipeline.estimators import average, budgets, majority, mean_and_error, mean_of_means, pass_at
from pipeline.events import BenchmarkResult, Count, EvaluationFinished, EvaluationProgress
from pipeline.prompts import Prompt, PromptSet
from pipeline.rewards import Scorer, canonical


@dataclass(frozen=True, slots=True)
class Answer:
    """One response of an evaluation. reward and accuracy are NaN when the reward failed; extracted: the final answer,
    as the judging reward took it from the response; verdicts: rewards.Score.told."""

    text: str
    n_tokens: int
    reward: float
    accuracy: float
    extracted: str | None
    verdicts: str | None


class Answering(Protocol):
    """The part of an engine that evaluation needs."""

    def answers(
        self,
        prompts: Sequence[Prompt],
        samples: int,
        *,
        temperature: float,
        top_p: float,
        greedy: bool,
        step: int,
        stream: str,
        scorer: Scorer | None,
    ) -> list[list[Answer]]:
        """`samples` responses to each prompt, in order; fewer where sampling failed.

        greedy: the most likely tokens, whatever temperature and top_p are. stream: names an independent stream of
        random numbers, where the engine has them. scorer: None means the run's reward.
        """
        ...


SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("benchmark", pa.string()),
        ("prompt_id", pa.string()),
        ("prompt", pa.string()),
        ("answer", pa.string()),  # the reference
        ("greedy", pa.bool_()),
        ("sample", pa.int32()),  # 0, 1, ... of this prompt; 0 when greedy
        ("response", pa.string()),
        ("extracted", pa.string()),  # null when no answer was found
        ("reward", pa.float64()),  # null when the reward failed
        ("accuracy", pa.float64()),  # null when the reward failed
        ("verdicts", pa.string()),  # as in pipeline.rollouts
        ("n_tokens", pa.int32()),
    ]
)


def evaluate(
    engine: Answering,
    benchmarks: Sequence[tuple[Benchmark, PromptSet]],
    step: int,
    folder: Path | None,
    tell: Callable[[EvaluationProgress], None],
    max_new_tokens: int,
    rollouts_spent: int = 0,
) -> EvaluationFinished:
    """Measure the engine's policy on all benchmarks, the held-out set first. Temperature and top-p are filled in.

    folder: where the responses are kept, NAME.parquet each; None: nowhere. max_new_tokens: of a response.
    Raises ValueError when a benchmark's reward failed on every prompt, or cannot start.
    """
    start = time.perf_counter()
    results: list[BenchmarkResult] = []
    spent: dict[str, Count] = {}
    for benchmark, prompts in benchmarks:
        most = _n_rollouts(benchmark, prompts)
        tell(
            EvaluationProgress(
                step=step, spent=spent | {benchmark.name: Count(rollouts=most, tokens=most * max_new_tokens)}
            )
        )
        result = measure(engine, benchmark, prompts, step, folder)
        spent[result.name] = Count(rollouts=result.rollouts, tokens=result.tokens)
        results.append(result)
    tell(EvaluationProgress(step=step, spent=spent))
    first, *others = results
    if first.name != HELD_OUT or first.greedy_accuracy is None:
        raise ValueError(f"the first benchmark is {first.name!r}; it must be {HELD_OUT!r}, with greedy responses")
    mean, error = mean_of_means([(r.accuracy, r.stderr) for r in others]) if others else (None, None)
    return EvaluationFinished(
        step=step,
        greedy_accuracy=first.greedy_accuracy,
        sampled_accuracy=first.accuracy,
        stderr=first.stderr,
        samples=first.samples,
        n_prompts=first.n_prompts,
        rollouts_spent=rollouts_spent,
        eval_rollouts=sum(r.rollouts for r in results),
        eval_tokens=sum(r.tokens for r in results),
        seconds=time.perf_counter() - start,
        benchmarks=results,
        mean_accuracy=mean,
        mean_stderr=error,
    )


def measure(
    engine: Answering, benchmark: Benchmark, prompts: PromptSet, step: int, folder: Path | None
) -> BenchmarkResult:
    """Sample, score and sum up one benchmark, and keep its responses. Raises ValueError as `evaluate` does."""
    start, name, k = time.perf_counter(), benchmark.name, benchmark.samples
    temperature, top_p = benchmark.temperature, benchmark.top_p
    assert temperature is not None and top_p is not None, "RunConfig.filled_in comes first"

    def ask(samples: int, greedy: bool) -> list[list[Answer]]:
        # The held-out set draws what it drew before there were benchmarks.
        stream = "" if name == HELD_OUT else name
        return engine.answers(
            prompts.prompts, samples, temperature=temperature, top_p=top_p, greedy=greedy, step=step, stream=stream,
            scorer=scorer,
        )  # fmt: skip

    with nullcontext() if benchmark.reward is None else Scorer(benchmark.reward) as scorer:
        greedy = ask(1, True) if benchmark.greedy else []
        sampled = ask(k, False)
    accuracy_P_K = [np.array([a.accuracy for a in group]) for group in sampled]
    value, error = mean_and_error(np.array([average(accuracy_K) for accuracy_K in accuracy_P_K]))
    if math.isnan(value):
        what = "held-out prompt" if name == HELD_OUT else f"prompt of benchmark {name!r}"
        raise ValueError(f"the reward failed on every {what}: check the reward and the answers")
    chosen = [
        majority(accuracy_K, [None if a.extracted is None else canonical(a.extracted) for a in group])
        for accuracy_K, group in zip(accuracy_P_K, sampled, strict=True)
    ]
    best, best_error = mean_and_error(np.array([average(np.array([a.accuracy for a in group])) for group in greedy]))
    if folder is not None:
        write_answers(folder / f"{name}.parquet", step, name, prompts.prompts, greedy, sampled)
    every = [a for group in (*greedy, *sampled) for a in group]
    return BenchmarkResult(
        name=name,
        dataset=prompts.digest,
        n_prompts=len(prompts),
        samples=k,
        temperature=temperature,
        top_p=top_p,
        accuracy=value,
        stderr=error,
        pass_at={
            str(at): _known(mean_and_error(np.array([pass_at(at, accuracy_K) for accuracy_K in accuracy_P_K]))[0])
            for at in budgets(k)
        },
        majority=mean_and_error(np.array(chosen))[0],
        greedy_accuracy=_known(best),
        greedy_stderr=_known(best_error),
        n_failed=sum(math.isnan(a.accuracy) for a in every),
        rollouts=_n_rollouts(benchmark, prompts),
        tokens=sum(a.n_tokens for a in every),
        seconds=time.perf_counter() - start,
    )


def _n_rollouts(benchmark: Benchmark, prompts: PromptSet) -> int:
    return len(prompts) * (benchmark.samples + benchmark.greedy)


def write_answers(
    path: Path,
    step: int,
    benchmark: str,
    prompts: Sequence[Prompt],
    greedy: Sequence[Sequence[Answer]],
    sampled: Sequence[Sequence[Answer]],
) -> None:
    """One benchmark's responses, appearing whole or not at all. Those of an earlier evaluation of the step go."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".writing")
    with pq.ParquetWriter(draft, SCHEMA, compression="zstd") as file:
        for kind, groups in ((True, greedy), (False, sampled)):
            # A table of a bounded number of responses at a time: each may have tens of thousands of characters.
            rows: list[dict[str, object]] = []
            for prompt, group in zip(prompts, groups, strict=False):
                rows += _rows(step, benchmark, prompt, kind, group)
                if len(rows) >= 1024:
                    file.write_table(pa.Table.from_pylist(rows, SCHEMA))
                    rows = []
            if rows:
                file.write_table(pa.Table.from_pylist(rows, SCHEMA))
    draft.rename(path)


def _rows(step: int, benchmark: str, prompt: Prompt, greedy: bool, group: Iterable[Answer]) -> list[dict[str, object]]:
    return [
        {
            "step": step,
            "benchmark": benchmark,
            "prompt_id": prompt.id,
            "prompt": prompt.text,
            "answer": prompt.answer,
            "greedy": greedy,
            "sample": i,
            "response": answer.text,
            "extracted": answer.extracted,
            "reward": _known(answer.reward),
            "accuracy": _known(answer.accuracy),
            "verdicts": answer.verdicts,
            "n_tokens": answer.n_tokens,
        }
        for i, answer in enumerate(group)
    ]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
