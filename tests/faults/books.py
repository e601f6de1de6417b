"""What the database must hold of a run, worked out anew from nothing but the event logs of its attempts."""

from __future__ import annotations

import uuid
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from db.models import Attempt, Evaluation, LedgerEntry, PromptMove, PromptState, PromptVisit, Run, StepMetrics
from pipeline.events import (
    AttemptStarted,
    EvaluationFinished,
    EvaluationProgress,
    SamplingStarted,
    StepFinished,
    events_path,
    read_events,
)


def check(session: Session, run_id: uuid.UUID, run_dir: Path) -> None:
    """Every step, visit, move, metric, evaluation and rollout that a trainer told is there exactly once."""
    run = session.get_one(Run, run_id, populate_existing=True)
    attempts = session.scalars(sa.select(Attempt).where(Attempt.run_id == run_id).order_by(Attempt.attempt)).all()
    assert [a.attempt for a in attempts] == list(range(1, run.attempt + 1))
    assert all(a.finished_at is not None and a.outcome for a in attempts)

    steps: dict[int, StepFinished] = {}
    evaluations: dict[int, EvaluationFinished] = {}
    sampled = tokens = eval_rollouts = 0
    for attempt in attempts:
        path = events_path(run_dir, attempt.attempt)
        told = [event for event, _ in read_events(path)] if path.exists() else []
        assert attempt.last_seq == len(told), f"attempt {attempt.attempt}: events that were told and not ingested"
        under_way: list[SamplingStarted] = []
        evaluating = 0
        for event in told:
            match event:
                case AttemptStarted():
                    steps = {s: e for s, e in steps.items() if s <= event.from_step}
                    evaluations = {s: e for s, e in evaluations.items() if s <= event.from_step}
                case SamplingStarted():
                    under_way.append(event)
                case StepFinished():
                    steps[event.step], under_way = event, []
                    sampled += sum(count.rollouts for count in event.fates.values())
                    tokens += sum(count.tokens for count in event.fates.values())
                    assert event.rollouts == sampled, "the trainer's own count"
                case EvaluationProgress():
                    evaluating = sum(most.rollouts for most in event.spent.values())
                case EvaluationFinished():
                    evaluations[event.step], evaluating = event, 0
                    eval_rollouts += event.eval_rollouts
                case _:
                    pass
        sampled += sum(event.rollouts for event in under_way)
        tokens += sum(event.tokens for event in under_way)
        eval_rollouts += evaluating

    assert (run.step, run.rollouts, run.tokens, run.eval_rollouts) == (max(steps), sampled, tokens, eval_rollouts)
    spent = session.execute(
        sa.select(sa.func.sum(LedgerEntry.rollouts), sa.func.sum(LedgerEntry.tokens)).where(
            LedgerEntry.run_id == run_id
        )
    ).one()
    assert (int(spent[0]), int(spent[1])) == (sampled, tokens), "fates add up to what was sampled"
    by_fate = session.execute(
        sa.select(LedgerEntry.fate, sa.func.sum(LedgerEntry.rollouts), sa.func.sum(LedgerEntry.tokens))
        .where(LedgerEntry.run_id == run_id)
        .group_by(LedgerEntry.fate)
    )
    assert run.fates == {fate: [rollouts, tokens] for fate, rollouts, tokens in by_fate}
    rows = session.execute(
        sa.select(StepMetrics.step, StepMetrics.metrics, StepMetrics.rollouts, StepMetrics.buckets)
        .where(StepMetrics.run_id == run_id)
        .order_by(StepMetrics.step)
    )
    assert [tuple(row) for row in rows] == [(s, e.metrics, e.rollouts, e.buckets) for s, e in sorted(steps.items())]
    for step, event in steps.items():
        fates = session.execute(
            sa.select(LedgerEntry.fate, LedgerEntry.rollouts).where(
                LedgerEntry.run_id == run_id, LedgerEntry.step == step, LedgerEntry.fate != "lost"
            )
        )
        assert {row.fate: row.rollouts for row in fates} == {
            f: c.rollouts for f, c in event.fates.items() if c.rollouts or c.tokens
        }
    visits = session.execute(
        sa.select(PromptVisit.step, PromptVisit.position, PromptVisit.prompt_id, PromptVisit.n, PromptVisit.bucket)
        .where(PromptVisit.run_id == run_id)
        .order_by(PromptVisit.step, PromptVisit.position)
    )
    assert [tuple(row) for row in visits] == [
        (step, i, v.prompt_id, v.n, v.bucket) for step, e in sorted(steps.items()) for i, v in enumerate(e.visits)
    ]
    moves = session.execute(
        sa.select(PromptMove.step, PromptMove.prompt_id, PromptMove.bucket).where(PromptMove.run_id == run_id)
    )
    assert {tuple(row) for row in moves} == {(s, p, b) for s, e in steps.items() for p, b in e.moves.items()}
    states = session.execute(
        sa.select(PromptState.prompt_id, PromptState.visits, PromptState.rollouts).where(PromptState.run_id == run_id)
    )
    counted: dict[str, tuple[int, int]] = {}
    for event in steps.values():
        for prompt in event.moves:
            counted.setdefault(prompt, (0, 0))
        for visit in event.visits:
            n, rollouts = counted.get(visit.prompt_id, (0, 0))
            counted[visit.prompt_id] = (n + 1, rollouts + visit.n)
    assert {p: (n, rollouts) for p, n, rollouts in states} == counted
    measured = session.execute(
        sa.select(Evaluation.step, Evaluation.sampled_accuracy).where(Evaluation.run_id == run_id)
    )
    assert dict(tuple(row) for row in measured) == {s: e.sampled_accuracy for s, e in evaluations.items()}
