"""Runs that look as if a trainer had worked on them: its events, through the real ingest, into the real tables."""

from __future__ import annotations

import datetime as dt
import json
import random
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import ingest as tables
from db import leases, marks, runs
from db.models import PromptVisit, Run
from pipeline.config import Benchmark, parse_config
from pipeline.events import (
    AnyEvent,
    AttemptStarted,
    BenchmarkResult,
    Count,
    EvaluationFinished,
    MarkRecord,
    MarksApplied,
    PromptRecord,
    PromptsLoaded,
    StepFinished,
    VisitRecord,
)
from pipeline.rollouts import SCHEMA
from tests.worker import logs
from worker.ingest import ingest
from worker.settle import settle

TTL = dt.timedelta(hours=1)


def config(folder: Path, **given: Any) -> dict[str, Any]:
    """A run config whose model folder and prompt files exist."""
    model = folder / "policy"
    model.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        (model / name).write_text("{}")
    for name, first in (("train", 0), ("eval", 50)):
        rows = [{"prompt": f"{n}+{n}=", "answer": str(2 * n)} for n in range(first, first + 5)]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {
        "name": "demo",
        "model": {"path": str(model)},
        "data": {"train": str(folder / "train.jsonl"), "eval": str(folder / "eval.jsonl")},
        "method": {"name": "pilot_commit", "n_pilot": 8, "n_commit": 24},
        "update": {"batch_prompts": 16, "mini_batches": 2},
        "budget": {"steps": 60, "rollouts": 40_000},
    } | given


def several(folder: Path) -> dict[str, Any]:
    """The evaluation section of a config with benchmarks besides the held-out set: one greedy, too, one not."""
    data = str(folder / "eval.jsonl")
    return {
        "benchmarks": [
            {"name": "aime24", "data": data, "samples": 32, "greedy": True},
            {"name": "amc23", "data": data, "samples": 8},
        ]
    }


class Story:
    """One run and a trainer that is made up: prompts have a difficulty, and get easier with every step."""

    def __init__(self, engine: sa.Engine, config: dict[str, Any], n_prompts: int = 200, seed: int = 0) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        checked = parse_config(config)
        self.method = checked.method
        self.batch = checked.update.batch_prompts
        self.benchmarks = checked.benchmarks
        with Session(engine, expire_on_commit=False) as session, session.begin():
            self.run = runs.create(
                session,
                name=checked.name,
                config=checked.model_dump(mode="json"),
                config_digest=checked.digest(),
                method=checked.method.name,
                model=checked.model.path,
            )
        self.id: uuid.UUID = self.run.id
        self.ease = {f"p{i:04}": self.random.betavariate(0.5, 0.7) for i in range(n_prompts)}
        self.bucket = dict.fromkeys(self.ease, "unseen")
        self.step = self.seq = self.rollouts = self.tokens = self.fence = 0

    def start(self) -> Story:
        """A worker takes the run and the trainer reads its inputs."""
        with Session(self.engine) as session, session.begin():
            fence = leases.claim(session, self.id, "host:1:1", TTL)
            assert fence is not None
            self.fence = fence
            tables.begin_attempt(session, leases.owned(session, self.id, fence), fence, "gpu-node-1")
        prompts = [
            PromptRecord(id=p, text=f"What is {int(p[1:])} + {int(p[1:]) * 7 % 13}?\nAnswer with a number.",
                         answer=str(int(p[1:]) + int(p[1:]) * 7 % 13), tags=["add", f"digits{len(str(int(p[1:])))}"])
            for p in self.ease
        ]  # fmt: skip
        self._tell(
            AttemptStarted(
                attempt=1, from_step=0, lost=Count(), n_train=len(prompts), n_eval=64, model_parameters=2_900_000
            ),
            PromptsLoaded(dataset=f"set-{len(prompts)}", name="train", prompts=prompts),
            self._evaluation(),
        )
        return self

    def train(self, steps: int, evaluate_every: int = 5) -> Story:
        for _ in range(steps):
            self._tell(self._step())
            if self.step % evaluate_every == 0:
                self._tell(self._evaluation())
        return self

    def apply_marks(self) -> Story:
        """The trainer honours what is wished from its next step on."""
        with Session(self.engine) as session:
            wished = [MarkRecord(*wish) for wish in marks.pending(session, self.id)]
        self._tell(MarksApplied(step=self.step + 1, marks=wished))
        return self

    def finish(self, state: str, reason: str) -> Story:
        with Session(self.engine) as session, session.begin():
            run = leases.owned(session, self.id, self.fence)
            tables.finish_run(run, state, reason)
        return self

    def evaluated(self, evaluation_id: uuid.UUID, step: int, accuracies: dict[str, float]) -> None:
        """A worker takes an evaluation that was asked for, and finds this, the held-out set's accuracy first."""
        found = logs.evaluation(step, next(iter(accuracies.values())))
        benchmarks = [logs.benchmark(name, accuracy, 40) for name, accuracy in accuracies.items()]
        end = logs.finished(step)
        events = [
            logs.started(1, step), found.model_copy(update={"benchmarks": benchmarks, "eval_rollouts": 80}), end,
        ]  # fmt: skip
        with Session(self.engine) as session, session.begin():
            fence = leases.claim(session, evaluation_id, "host:1:1", TTL)
            assert fence is not None
            tables.begin_attempt(session, leases.owned(session, evaluation_id, fence), fence, "gpu-node-1")
            ingest(session, evaluation_id, 1, fence, logs.number(events))
            settle(session, evaluation_id, fence, end, exit_code=0, seconds=12.4)

    def age(self, minutes: float, step_seconds: float = 4.2) -> Story:
        """As if the run had begun so long ago, with steps evenly spread."""
        with self.engine.begin() as connection:
            connection.execute(
                sa.text("UPDATE runs SET started_at = now() - :past, created_at = now() - :past WHERE id = :id"),
                {"past": dt.timedelta(minutes=minutes), "id": self.id},
            )
            connection.execute(
                sa.text("UPDATE step_metrics SET finished_at = now() - (:last - step) * :pace WHERE run_id = :id"),
                {"last": self.step, "pace": dt.timedelta(seconds=step_seconds), "id": self.id},
            )
        return self

    def leave_rollouts(self, home: Path, prompt: str) -> None:
        """The Parquet files of a prompt's visits, as the trainer would have left them."""
        with Session(self.engine) as session:
            visits = session.scalars(
                sa.select(PromptVisit).where(PromptVisit.run_id == self.id, PromptVisit.prompt_id == prompt)
            ).all()
        steps: dict[int, list[dict[str, Any]]] = {}
        for visit in visits:
            for i in range(visit.n):
                right = i < round((visit.success_rate or 0.0) * visit.n)
                end = "so the answer is 12." if right else "so I would say that the answer is 13 <or so>."
                steps.setdefault(visit.step, []).append(
                    {
                        "step": visit.step, "prompt_id": prompt, "stage": visit.stage, "reward": float(right),
                        "response": f"First we add both numbers ({i}), {end}", "success": float(right),
                        "verdicts": None, "n_tokens": 11, "logprob": -3.3,
                    }
                )  # fmt: skip
        for step, rows in steps.items():
            path = home / "runs" / str(self.id) / "rollouts" / f"step_{step:06d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path)

    def now(self) -> Run:
        with Session(self.engine, expire_on_commit=False) as session:
            return session.get_one(Run, self.id)

    def _tell(self, *events: AnyEvent) -> None:
        numbered = []
        for event in events:
            self.seq += 1
            numbered.append(event.model_copy(update={"seq": self.seq, "time": time.time()}))
        with Session(self.engine) as session, session.begin():
            ingest(session, self.id, 1, self.fence, numbered)

    def _rate(self, prompt: str, n: int) -> float:
        return sum(self.random.random() < self.ease[prompt] for _ in range(n)) / n

    def _step(self) -> StepFinished:
        """Pilots of unseen and deferred prompts, then commits of ready ones; GRPO trains on whatever comes."""
        self.step += 1
        visits: list[VisitRecord] = []
        fates: Counter[str] = Counter()
        if self.method.name == "grpo":
            for prompt in self.random.sample(list(self.ease), min(self.batch, len(self.ease))):
                visits.append(self._visit(prompt, "commit", self.method.n, "committed"))
                fates["trained"] += self.method.n
        else:
            n_pilot, n_commit = self.method.n_pilot, self.method.n_commit
            fresh = [p for p, b in self.bucket.items() if b in ("unseen", "deferred", "committed", "skipped")]
            for prompt in sorted(fresh, key=lambda p: self.bucket[p] != "unseen")[: 2 * self.batch]:
                visits.append(self._pilot(prompt, n_pilot, fates))
            for prompt in [p for p, b in self.bucket.items() if b == "ready"][: self.batch]:
                visits.append(self._visit(prompt, "commit", n_commit, "committed"))
                fates["trained"] += n_pilot + n_commit
                fates["buffered"] -= n_pilot
        self.rollouts += sum(v.n for v in visits)
        self.tokens += 11 * sum(v.n for v in visits)
        for prompt in self.ease:
            self.ease[prompt] = min(1.0, self.ease[prompt] * 1.004 + 0.004)
        trained = [v.reward_variance or 0.0 for v in visits if v.stage == "commit"]
        uniform = [v.reward_variance or 0.0 for v in visits if v.stage == "pilot"] or trained
        noise = self.random.uniform(0.9, 1.1)
        counts = Counter(self.bucket.values())
        return StepFinished(
            step=self.step,
            epoch=self.step // 20,
            metrics={
                "trained_prompts": len(trained), "trained_rollouts": fates["trained"],
                "short_by": self.batch - len(trained),
                "reward_variance": sum(trained) / len(trained) if trained else None,
                "uniform_reward_variance": sum(uniform) / len(uniform) if uniform else None,
                "success_rate": 0.5 * noise, "loss": 0.012 * noise, "grad_norm": 0.61 * noise, "entropy": 0.83 * noise,
                "clip_fraction": 0.02 * noise, "response_tokens": 11.0, "rounds": 1, "buffer_size": counts["ready"],
                "age_mean": 0.8, "seconds_generate": 2.4 * noise, "seconds_reward": 0.1, "seconds_update": 1.3 * noise,
            },
            fates={f: Count(rollouts=n, tokens=11 * n) for f, n in fates.items()},
            buckets={b: counts[b] for b in ("unseen", "evicted", "skipped", "deferred", "ready", "committed")},
            visits=visits,
            moves={},
            rollouts=self.rollouts,
            tokens=self.tokens,
        )  # fmt: skip

    def _pilot(self, prompt: str, n: int, fates: Counter[str]) -> VisitRecord:
        rate = self._rate(prompt, n)
        if rate >= 1:
            bucket, fate = "evicted", "pilot_evicted"
        elif rate > 0.75:
            bucket, fate = "skipped", "pilot_skipped"
        elif rate < 0.125:
            bucket, fate = "deferred", "pilot_deferred"
        else:
            bucket, fate = "ready", "buffered"
        fates[fate] += n
        return self._visit(prompt, "pilot", n, bucket, rate)

    def _visit(self, prompt: str, stage: str, n: int, bucket: str, rate: float | None = None) -> VisitRecord:
        rate = self._rate(prompt, n) if rate is None else rate
        self.bucket[prompt] = bucket
        return VisitRecord(
            prompt_id=prompt, stage=stage, n=n, n_failed=0, success_rate=rate, reward_variance=rate * (1 - rate),
            tokens=11 * n, bucket=bucket,
        )  # fmt: skip

    def _evaluation(self) -> EvaluationFinished:
        """Each benchmark is a tenth harder than the one before it, the held-out set the easiest."""
        reached = sum(self.ease.values()) / len(self.ease)
        found = [self._measured(b, reached * 0.9**i) for i, b in enumerate(self.benchmarks)]
        others = [b.accuracy for b in found[1:]]
        return EvaluationFinished(
            step=self.step, greedy_accuracy=min(1.0, reached + 0.04), sampled_accuracy=reached, stderr=0.02, samples=4,
            n_prompts=64, rollouts_spent=self.rollouts, eval_rollouts=sum(b.rollouts for b in found),
            eval_tokens=sum(b.tokens for b in found), seconds=1.5, benchmarks=found,
            mean_accuracy=sum(others) / len(others) if others else None,
            mean_stderr=0.02 / len(others) ** 0.5 if others else None,
        )  # fmt: skip

    def _measured(self, benchmark: Benchmark, accuracy: float) -> BenchmarkResult:
        k, greedy = benchmark.samples, min(1.0, accuracy + 0.04) if benchmark.greedy else None
        rollouts = 64 * (k + benchmark.greedy)
        return BenchmarkResult(
            name=benchmark.name, dataset=f"set-{benchmark.name}", n_prompts=64, samples=k, temperature=1.0, top_p=1.0,
            accuracy=accuracy, stderr=0.02, pass_at={"1": accuracy, str(k): 1 - (1 - accuracy) ** k},
            majority=min(1.0, accuracy + 0.03), greedy_accuracy=greedy,
            greedy_stderr=None if greedy is None else 0.04, n_failed=0, rollouts=rollouts, tokens=11 * rollouts,
            seconds=0.5,
        )  # fmt: skip
