"""What a supervisor writes: attempts, and everything that its trainer's events tell.

The caller holds the run through its fence (`leases.owned`) and wraps everything in one transaction, so a
reader never sees half a step. Sequence numbers make it idempotent: `last_seq` moves in the same transaction.

Resuming from step k takes back whatever an earlier attempt reported of later steps, because they will be
trained again: their metrics, visits and moves go, and what they sampled is booked as `lost`, so the fates
still add up. What an attempt may have sampled of the step that it died in is booked as `lost` when it ends: nobody can
tell how much it was, and all of what the step had announced is the most. The same goes for an evaluation that never
finished: it is booked with what evaluations spend.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.orm import Session

from db import marks, runs
from db.engine import DatabaseUnavailable
from db.models import (
    BUCKETS,
    Attempt,
    Dataset,
    Evaluation,
    Lease,
    LedgerEntry,
    Prompt,
    PromptMove,
    PromptVisit,
    Run,
    StepMetrics,
)


class Spend(NamedTuple):
    rollouts: int
    tokens: int


# prompt id, stage, n, n_failed, success rate, reward variance, tokens, bucket: the columns' order in `add_steps`
Visit = tuple[str, str, int, int, float | None, float | None, int, str]


@dataclass(frozen=True, slots=True)
class Step:
    """One finished training step. rollouts, tokens: sampled so far; fates: change in this step."""

    step: int
    epoch: int
    finished_at: dt.datetime
    metrics: Mapping[str, float | None]
    buckets: Mapping[str, int]
    rollouts: int
    tokens: int
    fates: Mapping[str, Spend]
    visits: Sequence[Visit]
    moves: Mapping[str, str]


def begin_attempt(session: Session, run: Run, fence: int, host: str) -> int:
    """A new attempt of a run that the caller owns. Returns its number."""
    _book_unfinished(session, run)
    run.attempt += 1
    session.add(Attempt(run_id=run.id, attempt=run.attempt, fence=fence, host=host))
    session.flush()
    return run.attempt


def attempt(session: Session, run: Run, number: int) -> Attempt:
    """Raises LookupError when the run has no such attempt."""
    found = session.get(Attempt, (run.id, number), populate_existing=True)
    if found is None:
        raise LookupError(f"run {run.id} has no attempt {number}")
    return found


def start(session: Session, run: Run, attempt: Attempt, from_step: int, n_train: int) -> Spend:
    """The trainer goes on from `from_step`. Takes back later steps; returns what was lost."""
    attempt.from_step = from_step
    if run.state == "starting":
        run.state = "running"
    later = {"run_id": run.id, "step": from_step}
    lost = Spend(*session.execute(_LATER_SPEND, later).one())
    session.execute(_FORGET_LATER_STATES, later)
    for table in (StepMetrics, Evaluation, PromptVisit, PromptMove, LedgerEntry):
        session.execute(sa.delete(table).where(table.run_id == run.id, table.step > from_step))
    marks.take_back(session, run, from_step)
    if lost != (0, 0):
        entry = {"run_id": run.id, "attempt": attempt.attempt, "step": from_step, "fate": "lost"}
        session.execute(sa.insert(LedgerEntry), [{**entry, "rollouts": lost.rollouts, "tokens": lost.tokens}])
    session.execute(_RESTORE_STATES, {"run_id": run.id, "after": -1})
    before = session.get(StepMetrics, (run.id, from_step), populate_existing=True)
    run.step = from_step
    run.buckets = dict(before.buckets) if before else dict.fromkeys(BUCKETS, 0) | {"unseen": n_train}
    run.fates = _summed(session, run)
    _refresh_accuracy(session, run)
    session.flush()
    return lost


def add_prompts(
    session: Session, run: Run, dataset_id: str, name: str, prompts: Sequence[tuple[str, str, str, list[str]]]
) -> None:
    """A chunk (id, text, answer, tags) of the training set; what another run has brought stays."""
    session.execute(insert(Dataset).on_conflict_do_nothing(), [{"id": _clean(dataset_id), "name": _clean(name)}])
    rows = [
        {
            "dataset_id": _clean(dataset_id),
            "id": _clean(id),
            "text": _clean(text),
            "answer": _clean(answer),
            "tags": [_clean(tag) for tag in tags],
        }
        # In one order for everybody: two runs that bring the same set at once must not wait for each other in
        # turn.
        for id, text, answer, tags in sorted(prompts)
    ]
    if rows:
        session.execute(insert(Prompt).on_conflict_do_nothing(), rows)
    run.dataset_id = _clean(dataset_id)


def add_steps(session: Session, run: Run, attempt: Attempt, steps: Sequence[Step]) -> None:
    """Finished steps in order, from the one after the run's on. Raises ValueError when they are not."""
    if not steps:
        return
    if attempt.from_step is None:
        raise ValueError(f"attempt {attempt.attempt} reports step {steps[0].step} before it has started")
    for expected, step in enumerate(steps, run.step + 1):
        if step.step != expected:
            raise ValueError(f"attempt {attempt.attempt} reports step {step.step} where {expected} comes next")
    run_id, owner, number = run.id, str(run.id), attempt.attempt  # as text once, not in each row
    key = {"run_id": run_id, "attempt": number}
    session.execute(
        sa.insert(StepMetrics),
        [
            {
                **key,
                "step": s.step,
                "epoch": s.epoch,
                "rollouts": s.rollouts,
                "tokens": s.tokens,
                "metrics": dict(s.metrics),
                "buckets": dict(s.buckets),
                "finished_at": s.finished_at,
            }
            for s in steps
        ],
    )
    spends: list[dict[str, Any]] = [
        {**key, "step": s.step, "fate": fate, "rollouts": spend[0], "tokens": spend[1]}
        for s in steps
        for fate, spend in s.fates.items()
        if spend != (0, 0)
    ]
    if spends:
        session.execute(sa.insert(LedgerEntry), spends)
    _copy(
        session,
        "prompt_visits",
        "run_id, step, position, attempt, prompt_id, stage, n, n_failed, success_rate, reward_variance, tokens, bucket",
        ((owner, s.step, at, number, *visit) for s in steps for at, visit in enumerate(s.visits)),
    )
    _copy(
        session,
        "prompt_moves",
        "run_id, step, attempt, prompt_id, bucket",
        ((owner, s.step, number, id, bucket) for s in steps for id, bucket in s.moves.items()),
    )
    session.execute(_MERGE_STATES, {"run_id": run.id, "after": run.step})
    fates = dict(run.fates)
    for entry in spends:
        rollouts, tokens = fates.get(entry["fate"], (0, 0))
        fates[entry["fate"]] = [rollouts + entry["rollouts"], tokens + entry["tokens"]]
    run.fates = fates
    last = steps[-1]
    run.step, run.rollouts, run.tokens = last.step, last.rollouts, last.tokens
    run.buckets = dict(last.buckets)
    session.flush()


def add_evaluation(session: Session, run: Run, attempt: Attempt, values: Mapping[str, Any]) -> None:
    """An evaluation, by the names of the table's columns. It replaces an earlier one of the same step, but for what
    that one has spent.
    """
    row = {"run_id": run.id, "attempt": attempt.attempt, **values}
    statement = insert(Evaluation).values(row)
    columns = {name: statement.excluded[name] for name in row if name not in ("run_id", "step")}
    session.execute(statement.on_conflict_do_update(index_elements=["run_id", "step"], set_=columns))
    attempt.open_evaluation = {}
    run.eval_seconds += float(values["seconds"])
    _add_eval_spend(run, values)
    _refresh_accuracy(session, run)


def _add_eval_spend(run: Run, values: Mapping[str, Any]) -> None:
    run.eval_rollouts += int(values["eval_rollouts"])
    run.eval_tokens += int(values["eval_tokens"])
    spend = dict(run.eval_spend)
    for benchmark in values["benchmarks"]:
        before = spend.get(benchmark["name"], {"rollouts": 0, "tokens": 0})
        spend[benchmark["name"]] = {kind: before[kind] + benchmark[kind] for kind in before}
    run.eval_spend = spend


def add_to_evaluated(session: Session, run: Run, values: Mapping[str, Any], own: Collection[str]) -> None:
    """What an evaluation on demand has found: in its run's own evaluation of that step, in place of what was measured
    again, with its spend. The caller has locked the run. own: the names of the run's own benchmarks.

    Of a step that the run has not finished, as one that is trained again, only the spend is booked.
    """
    _add_eval_spend(run, values)
    found: list[dict[str, Any]] = values["benchmarks"]
    step, key = values["step"], (run.id, values["step"])
    spent = session.scalar(
        sa.select(StepMetrics.rollouts).where(StepMetrics.run_id == run.id, StepMetrics.step == step)
    )
    if spent is None and step > 0:
        return
    before = session.get(Evaluation, key, with_for_update=True, populate_existing=True)
    merged = {b["name"]: b for b in (before.benchmarks if before else [])} | {b["name"]: b for b in found}
    others = [merged.get(name) for name in own if name != found[0]["name"]]
    counted = [b for b in others if b is not None]
    whole = bool(others) and len(counted) == len(others)
    columns = {name: values[name] for name in ("greedy_accuracy", "sampled_accuracy", "stderr", "samples", "n_prompts")}
    columns["benchmarks"] = list(merged.values())
    columns["mean_accuracy"] = sum(b["accuracy"] for b in counted) / len(counted) if whole else None
    columns["mean_stderr"] = sum(b["stderr"] ** 2 for b in counted) ** 0.5 / len(counted) if whole else None
    if before is None:
        spend = {name: values[name] for name in ("eval_rollouts", "eval_tokens", "seconds", "finished_at")}
        before = Evaluation(run_id=run.id, step=step, attempt=run.attempt, rollouts_spent=spent or 0, **spend)
        session.add(before)
    for name, value in columns.items():
        setattr(before, name, value)
    session.flush()
    _refresh_accuracy(session, run)


def add_checkpoint(run: Run, attempt: Attempt, step: int) -> None:
    """A checkpoint that the run can go on from. One later than any before is progress: setbacks are forgiven."""
    if step > max(attempt.from_step or 0, attempt.saved_step or 0):
        run.setbacks = 0
    attempt.saved_step = step


def newest_checkpoint(session: Session, run: Run) -> int | None:
    """Step of the run's newest checkpoint; None when it has none."""
    return session.scalar(sa.select(sa.func.max(Attempt.saved_step)).where(Attempt.run_id == run.id))


def seconds_before(session: Session, run: Run) -> float:
    """How long the trainers of the run's finished attempts ran."""
    return session.scalar(sa.select(sa.func.sum(Attempt.seconds)).where(Attempt.run_id == run.id)) or 0.0


def finish_attempts(
    session: Session, run: Run, outcome: str, reason: str, exit_code: int | None, seconds: float | None = None
) -> None:
    """No process of the run is left: its open attempt ended so. outcome: succeeded, stopped, failed or lost.

    seconds: how long its trainer ran; None: what the lease says.
    """
    ran = sa.select(Lease.seconds).where(Lease.run_id == run.id).scalar_subquery() if seconds is None else seconds
    _book_unfinished(session, run)
    session.execute(
        sa.update(Attempt)
        .where(Attempt.run_id == run.id, Attempt.finished_at.is_(None))
        .values(finished_at=sa.func.now(), outcome=outcome, reason=_clean(reason), exit_code=exit_code, seconds=ran)
    )


def _book_unfinished(session: Session, run: Run) -> None:
    """What attempts may have sampled of the step after the run's last one is lost, and what they may have sampled of an
    evaluation is spent."""
    session.flush()
    unfinished = session.scalars(
        sa.select(Attempt)
        .where(Attempt.run_id == run.id)
        .where((Attempt.open_rollouts > 0) | (Attempt.open_evaluation != sa.literal({}, JSONB)))
        .execution_options(populate_existing=True)
    ).all()
    for attempt in unfinished:
        attempt.booked = {name: getattr(attempt, name) for name in _OPEN} | {"step": run.step + 1}
        _book(session, run, attempt.open_evaluation, 1)
        if attempt.open_rollouts:
            lost = {"rollouts": attempt.open_rollouts, "tokens": attempt.open_tokens}
            key = {"run_id": run.id, "attempt": attempt.attempt, "step": run.step + 1, "fate": "lost"}
            session.execute(sa.insert(LedgerEntry), [key | lost])
            run.rollouts += attempt.open_rollouts
            run.tokens += attempt.open_tokens
        attempt.open_rollouts, attempt.open_tokens, attempt.open_evaluation = 0, 0, {}
    if unfinished:
        run.fates = _summed(session, run)
    session.flush()


def reopen(session: Session, run: Run, attempt: Attempt) -> None:
    """The attempt was taken for over, and tells more: what was booked of its unfinished work is under way again."""
    booked = attempt.booked
    if not booked:
        return
    session.execute(
        sa.delete(LedgerEntry).where(
            LedgerEntry.run_id == run.id, LedgerEntry.attempt == attempt.attempt, LedgerEntry.fate == "lost",
            LedgerEntry.step == booked["step"],
        )
    )  # fmt: skip
    run.rollouts -= booked["open_rollouts"]
    run.tokens -= booked["open_tokens"]
    run.fates = _summed(session, run)
    _book(session, run, booked["open_evaluation"], -1)
    for name in _OPEN:
        setattr(attempt, name, booked[name])
    attempt.booked = {}


_OPEN = ("open_rollouts", "open_tokens", "open_evaluation")


def _book(session: Session, run: Run, evaluation: Mapping[str, Mapping[str, int]], sign: int) -> None:
    """With the run, and with the one that it evaluates. Order of locks: the row of an evaluation on demand, which the
    caller holds, then its run's."""
    if not evaluation:
        return
    kinds = ("rollouts", "tokens")
    most = [{"name": name, **{kind: sign * spent[kind] for kind in kinds}} for name, spent in evaluation.items()]
    values = {f"eval_{kind}": sign * sum(spent[kind] for spent in evaluation.values()) for kind in kinds}
    for spender in (run, *([runs.locked(session, run.evaluates)] if run.evaluates else [])):
        _add_eval_spend(spender, values | {"benchmarks": most})


def _summed(session: Session, run: Run) -> dict[str, list[int]]:
    """The ledger by fate."""
    rows = session.execute(
        sa.select(LedgerEntry.fate, sa.func.sum(LedgerEntry.rollouts), sa.func.sum(LedgerEntry.tokens))
        .where(LedgerEntry.run_id == run.id)
        .group_by(LedgerEntry.fate)
    )
    return {fate: [int(rollouts), int(tokens)] for fate, rollouts, tokens in rows}


def finish_run(run: Run, state: str, reason: str) -> None:
    """The run is over (until somebody resumes it)."""
    run.state, run.reason, run.setbacks = state, _clean(reason), 0
    run.finished_at = sa.func.now()


def queue_again(run: Run, reason: str) -> None:
    """The run goes on from its newest checkpoint as soon as a worker takes it."""
    run.state, run.reason = "queued", _clean(reason)
    run.setbacks += 1


_LATER_SPEND = sa.text(
    "SELECT coalesce(sum(rollouts), 0)::bigint, coalesce(sum(tokens), 0)::bigint FROM ledger "
    "WHERE run_id = :run_id AND step > :step"
)
_FORGET_LATER_STATES = sa.text(
    """
    DELETE FROM prompt_states WHERE run_id = :run_id AND prompt_id IN (
        SELECT prompt_id FROM prompt_visits WHERE run_id = :run_id AND step > :step
        UNION SELECT prompt_id FROM prompt_moves WHERE run_id = :run_id AND step > :step
    )
    """
)

# Prompt states out of the visits and moves of the steps after :after. A move happens as its step begins, before the
# step's visits.
_STATES = """
    INSERT INTO prompt_states AS s (run_id, prompt_id, bucket, step, success_rate, visits, rollouts, tokens)
    SELECT :run_id, prompt_id,
        (array_agg(bucket ORDER BY step DESC, position DESC))[1],
        max(step),
        (array_agg(success_rate ORDER BY step DESC, position DESC) FILTER (WHERE success_rate IS NOT NULL))[1],
        count(*) FILTER (WHERE position >= 0),
        coalesce(sum(n), 0),
        coalesce(sum(tokens), 0)
    FROM (
        SELECT prompt_id, step, position, bucket, success_rate, n, tokens
        FROM prompt_visits WHERE run_id = :run_id AND step > :after
        UNION ALL
        SELECT prompt_id, step, -1, bucket, NULL, 0, 0
        FROM prompt_moves WHERE run_id = :run_id AND step > :after
    ) AS changes
    """
_MERGE_STATES = sa.text(
    _STATES
    + """
    GROUP BY prompt_id
    ON CONFLICT (run_id, prompt_id) DO UPDATE SET
        bucket = excluded.bucket,
        step = excluded.step,
        success_rate = coalesce(excluded.success_rate, s.success_rate),
        visits = s.visits + excluded.visits,
        rollouts = s.rollouts + excluded.rollouts,
        tokens = s.tokens + excluded.tokens
    """
)
# Every prompt that was ever touched has a state, so those without one are those just forgotten.
_RESTORE_STATES = sa.text(
    _STATES
    + """
    WHERE prompt_id NOT IN (SELECT prompt_id FROM prompt_states WHERE run_id = :run_id)
    GROUP BY prompt_id
    """
)


def _refresh_accuracy(session: Session, run: Run) -> None:
    rows = session.execute(
        sa.select(Evaluation.step, Evaluation.sampled_accuracy)
        .where(Evaluation.run_id == run.id)
        .order_by(Evaluation.step)
    ).all()
    run.first_accuracy = rows[0][1] if rows and rows[0][0] == 0 else None
    run.accuracy = rows[-1][1] if rows else None
    run.best_accuracy = max((accuracy for _, accuracy in rows), default=None)


def _copy(session: Session, table: str, columns: str, rows: Iterable[Sequence[object]]) -> None:
    """COPY: an order of magnitude less work for the server than INSERT. As CSV, for csv writes it in C: no value may be
    an empty string, which means NULL there.
    """
    connection = session.connection().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    try:
        with (
            connection.cursor() as cursor,
            cursor.copy(f"COPY {table} ({columns}) FROM STDIN (FORMAT csv, NULL '')") as copy,
        ):
            copy.write(text.getvalue())
    except (psycopg.DataError, psycopg.IntegrityError) as error:
        raise ValueError(f"{table}: {error}") from error
    except psycopg.OperationalError as error:  # SQLAlchemy does not see this cursor's errors
        raise DatabaseUnavailable(f"The database went away while rows were written: {error}") from error


def _clean(text: str) -> str:
    """Postgres stores every character but NUL."""
    return text.replace("\x00", "\ufffd")
