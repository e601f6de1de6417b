"""Events into tables: each exactly once, and books that balance when steps are repeated after a crash."""

from __future__ import annotations

import datetime as dt
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from db import ingest as tables
from db import leases, marks
from db.models import (
    Evaluation,
    LedgerEntry,
    Prompt,
    PromptMark,
    PromptMove,
    PromptState,
    PromptVisit,
    Run,
    StepMetrics,
)
from pipeline.events import AnyEvent, Count, MarkRecord, MarksApplied
from tests.worker import logs
from tests.worker.logs import number, visit
from worker.ingest import EventLogBroken, ingest

ALL = (StepMetrics, PromptVisit, PromptMove, PromptState, LedgerEntry, Evaluation, Prompt)


@pytest.fixture
def run_id(session: Session) -> uuid.UUID:
    run = Run(name="r", config={}, config_digest="d", method="pilot_commit", model="m")
    session.add(run)
    session.flush()
    assert leases.claim(session, run.id, "host:1:1", dt.timedelta(minutes=1)) == 1
    assert tables.begin_attempt(session, leases.owned(session, run.id, 1), 1, "host") == 1
    return run.id


def first_attempt() -> list[AnyEvent]:
    return number(
        [
            logs.started(1),
            logs.prompts(),
            logs.evaluation(0, 0.2),
            logs.step(1, [visit("p0", "ready"), visit("p1", "evicted", p=1.0), visit("p2", "deferred", p=0.0)]),
            logs.checkpoint(1),
            logs.step(2, [visit("p0", "committed", stage="commit", n=8, p=0.25), visit("p3", "ready")], before=12),
            logs.evaluation(2, 0.5),
            logs.step(
                3, [visit("p2", "skipped", p=0.9), visit("p3", "ready", p=None)], before=24, moves={"p3": "unseen"}
            ),
            logs.step(
                4, [visit("p4", "ready"), visit("p4", "committed", stage="commit")], before=32, moves={"p1": "unseen"}
            ),
        ]
    )


def dump(session: Session) -> dict[str, list[tuple[object, ...]]]:
    """Everything that ingest writes."""
    session.expire_all()
    rows = {t.__tablename__: sorted(map(tuple, session.execute(sa.select(*t.__table__.c))), key=str) for t in ALL}
    run = Run.__table__.c
    rows["runs"] = [tuple(session.execute(sa.select(*run)).one())]
    return rows


def test_marks_are_booked_with_their_step_and_wait_again_when_it_is_taken_back(
    session: Session, run_id: uuid.UUID
) -> None:
    def steps() -> dict[str, int | None]:
        session.expire_all()
        return {row.prompt_id: row.applied_step for row in session.scalars(sa.select(PromptMark))}

    events = first_attempt()
    ingest(session, run_id, 1, 1, events[:4])  # until after step 1
    marks.wish(session, run_id, ["p0"], "exclude", "ada")
    marks.wish(session, run_id, ["p1", "p2"], "retest", "ada")
    p0, *others = [MarkRecord(*wish) for wish in marks.pending(session, run_id)]
    assert [m.prompt_id for m in (p0, *others)] == ["p0", "p1", "p2"]
    told = [MarksApplied(step=2, marks=[p0]), *events[5:7], MarksApplied(step=3, marks=others), events[7]]
    ingest(session, run_id, 1, 1, number([*events[:5], *told]))
    assert steps() == {"p0": 2, "p1": 3, "p2": 3} and marks.pending(session, run_id) == []
    run = leases.owned(session, run_id, 1)
    tables.begin_attempt(session, run, 1, "host")
    ingest(session, run_id, 2, 1, number([logs.started(2, from_step=2, lost=Count(rollouts=8, tokens=80))]))
    assert steps() == {"p0": 2, "p1": None, "p2": None}, "the trainer has yet to do step 3 again"
    assert [wish.prompt_id for wish in marks.pending(session, run_id)] == ["p1", "p2"]


def spent(session: Session, run_id: uuid.UUID) -> tuple[int, int]:
    """Sum over the fates; must be what the run says that it sampled."""
    run = session.get_one(Run, run_id, populate_existing=True)
    total = session.execute(sa.select(sa.func.sum(LedgerEntry.rollouts), sa.func.sum(LedgerEntry.tokens))).one()
    assert (int(total[0]), int(total[1])) == (run.rollouts, run.tokens)
    fates = dict.fromkeys(session.scalars(sa.select(LedgerEntry.fate)), (0, 0))
    for entry in session.scalars(sa.select(LedgerEntry)):
        rollouts, tokens = fates[entry.fate]
        fates[entry.fate] = rollouts + entry.rollouts, tokens + entry.tokens
    assert run.fates == {fate: list(both) for fate, both in fates.items()}, "the ledger's sums"
    return run.rollouts, run.tokens


def test_a_whole_log(session: Session, run_id: uuid.UUID) -> None:
    events = first_attempt()
    assert ingest(session, run_id, 1, 1, events) == len(events)
    run = session.get_one(Run, run_id, populate_existing=True)
    assert (run.state, run.step, run.dataset_id) == ("running", 4, "d1")
    assert (run.first_accuracy, run.accuracy, run.best_accuracy) == (0.2, 0.5, 0.5)
    assert (run.eval_rollouts, run.eval_tokens, run.eval_seconds) == (16, 160, 1.0)
    assert run.eval_spend == {"held-out": {"rollouts": 12, "tokens": 120}, "aime24": {"rollouts": 4, "tokens": 40}}
    measured = session.scalars(sa.select(Evaluation).order_by(Evaluation.step)).all()
    assert [[(b["name"], b["accuracy"]) for b in e.benchmarks] for e in measured] == [
        [("held-out", 0.2), ("aime24", 0.1)],
        [("held-out", 0.5), ("aime24", 0.25)],
    ]
    assert [(e.mean_accuracy, e.benchmarks[1]["pass_at"]) for e in measured] == [
        (0.1, {"1": 0.1, "2": None}),
        (0.25, {"1": 0.25, "2": None}),
    ]
    assert run.buckets == {"unseen": 2, "committed": 4}
    assert spent(session, run_id) == (40, 400)
    assert tables.attempt(session, run, 1).last_seq == len(events)
    assert tables.attempt(session, run, 1).saved_step == 1
    states = {s.prompt_id: s for s in session.scalars(sa.select(PromptState))}
    assert {p: s.bucket for p, s in states.items()} == {
        "p0": "committed",
        "p1": "unseen",  # moved without a visit
        "p2": "skipped",
        "p3": "ready",  # a move comes before the visits of its step
        "p4": "committed",
    }
    p0, p3 = states["p0"], states["p3"]
    assert (p0.step, p0.success_rate, p0.visits, p0.rollouts, p0.tokens) == (2, 0.25, 2, 12, 120)
    assert (p3.step, p3.success_rate, p3.visits) == (3, 0.5, 2), "a visit without rewards keeps the last rate"
    text, tags = session.execute(sa.select(Prompt.text, Prompt.tags).where(Prompt.id == "p0")).one()
    assert (text, tags) == ("p0 \ufffd?", ["easy", "add"])
    visits = session.scalars(sa.select(PromptVisit).order_by(PromptVisit.step, PromptVisit.position)).all()
    assert [(v.step, v.prompt_id, v.stage) for v in visits][:4] == [
        (1, "p0", "pilot"),
        (1, "p1", "pilot"),
        (1, "p2", "pilot"),
        (2, "p0", "commit"),
    ]
    assert len(visits) == 9


def test_replaying_changes_nothing(session: Session, run_id: uuid.UUID) -> None:
    events = first_attempt()
    ingest(session, run_id, 1, 1, events)
    once = dump(session)
    assert ingest(session, run_id, 1, 1, events) == 0
    assert ingest(session, run_id, 1, 1, events[:4]) == 0
    assert ingest(session, run_id, 1, 1, []) == 0
    assert dump(session) == once


@pytest.mark.parametrize("cut", [1, 3, 5, 7])
def test_any_cut_gives_the_same_rows(session: Session, run_id: uuid.UUID, cut: int) -> None:
    events = first_attempt()
    savepoint = session.begin_nested()
    ingest(session, run_id, 1, 1, events)
    whole = dump(session)
    savepoint.rollback()
    assert ingest(session, run_id, 1, 1, events[:cut]) == cut
    assert ingest(session, run_id, 1, 1, events[cut // 2 : cut + 1]) == 1, "overlaps what is there"
    for event in events[cut + 1 :]:
        assert ingest(session, run_id, 1, 1, [event]) == 1
    assert dump(session) == whole


def test_a_missing_event_is_refused(session: Session, run_id: uuid.UUID) -> None:
    events = first_attempt()
    ingest(session, run_id, 1, 1, events[:4])
    with pytest.raises(EventLogBroken, match="event 5 of attempt 1 is missing; 6"):
        ingest(session, run_id, 1, 1, events[5:])
    with pytest.raises(EventLogBroken, match="event 6 of attempt 1 is missing; 7"):
        ingest(session, run_id, 1, 1, [*events[4:5], *events[6:]])


def test_a_missing_step_is_refused(session: Session, run_id: uuid.UUID) -> None:
    with pytest.raises(EventLogBroken, match="step 2"):
        ingest(session, run_id, 1, 1, number([logs.started(1), logs.step(2, [])]))


def test_without_the_lease_nothing_is_written(session: Session, run_id: uuid.UUID) -> None:
    with pytest.raises(leases.LeaseLost):
        ingest(session, run_id, 1, 2, first_attempt())
    assert not any(rows for table, rows in dump(session).items() if table != "runs")


def test_resuming_takes_back_later_steps_and_books_them_as_lost(session: Session, run_id: uuid.UUID) -> None:
    events = first_attempt()
    savepoint = session.begin_nested()
    ingest(session, run_id, 1, 1, events[:5])
    at_checkpoint = dump(session)
    savepoint.rollback()

    ingest(session, run_id, 1, 1, events)
    before = spent(session, run_id)
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    lost = Count(rollouts=28, tokens=280)
    ingest(session, run_id, 2, 1, number([logs.started(2, from_step=1, lost=lost)]))

    assert spent(session, run_id) == before, "what was sampled stays sampled"
    after = dump(session)
    for table in ("step_metrics", "prompt_visits", "prompt_moves", "prompt_states", "evaluations"):
        assert after[table] == at_checkpoint[table], table
    booked = session.execute(
        sa.select(LedgerEntry.step, LedgerEntry.rollouts, LedgerEntry.tokens).where(LedgerEntry.fate == "lost")
    )
    assert booked.all() == [(1, 28, 280)]
    run = session.get_one(Run, run_id, populate_existing=True)
    assert (run.step, run.accuracy, run.buckets) == (1, 0.2, {"unseen": 5, "committed": 1})

    # Again, from the very beginning this time: lost ones are not lost twice.
    ingest(
        session,
        run_id,
        2,
        1,
        [e.model_copy(update={"seq": 2}) for e in [logs.step(2, [visit("p5", "ready")], before=40)]],
    )
    assert spent(session, run_id) == (44, 440)
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    ingest(session, run_id, 3, 1, number([logs.started(3, from_step=0)]))
    assert spent(session, run_id) == (44, 440)
    left = session.execute(sa.select(LedgerEntry.attempt, LedgerEntry.step, LedgerEntry.fate, LedgerEntry.rollouts))
    assert left.all() == [(3, 0, "lost", 44)]
    assert session.scalar(sa.select(sa.func.count()).select_from(PromptState)) == 0
    run = session.get_one(Run, run_id, populate_existing=True)
    assert (run.step, run.buckets["unseen"], run.buckets["ready"]) == (0, 6, 0)


def test_an_older_attempt_adds_nothing_once_a_later_one_began(session: Session, run_id: uuid.UUID) -> None:
    events = first_attempt()
    ingest(session, run_id, 1, 1, events[:5])
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    assert ingest(session, run_id, 1, 1, events[:5]) == 0
    with pytest.raises(EventLogBroken, match="attempt 2 has begun"):
        ingest(session, run_id, 1, 1, events)


def test_a_repeated_evaluation_of_the_same_step_replaces_the_first(session: Session, run_id: uuid.UUID) -> None:
    ingest(session, run_id, 1, 1, number([logs.started(1), logs.evaluation(0, 0.2)]))
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    ingest(session, run_id, 2, 1, number([logs.started(2), logs.evaluation(0, 0.3)]))
    run = session.get_one(Run, run_id, populate_existing=True)
    assert (run.first_accuracy, run.accuracy, run.eval_rollouts) == (0.3, 0.3, 16), "both were paid for"
    assert run.eval_seconds == 2 * 0.5, "and took their time"
    assert sum(spend["rollouts"] for spend in run.eval_spend.values()) == run.eval_rollouts
    (left,) = session.scalars(sa.select(Evaluation)).all()
    assert [b["accuracy"] for b in left.benchmarks] == [0.3, 0.15], "one result per benchmark"


def test_an_evaluation_that_never_finished_is_paid_for_at_most_as_it_told(session: Session, run_id: uuid.UUID) -> None:
    under_way = [logs.evaluation_progress(0, held=9), logs.evaluation_progress(0, held=6, amc=90)]
    ingest(session, run_id, 1, 1, number([logs.started(1), *under_way]))
    run = session.get_one(Run, run_id, populate_existing=True)
    assert run.eval_rollouts == 0, "it may finish yet, and tell what it sampled"
    tables.finish_attempts(session, run, "lost", "killed", None)
    for _ in range(2):
        assert (run.eval_rollouts, run.eval_tokens) == (96, 960)
        assert run.eval_spend == {"held": {"rollouts": 6, "tokens": 60}, "amc": {"rollouts": 90, "tokens": 900}}
        assert run.rollouts == 0 and run.fates == {}, "training spent nothing"
        tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")  # once, whoever ends it
    ingest(session, run_id, 3, 1, number([logs.started(3), under_way[0], logs.evaluation(0, 0.3)]))
    tables.finish_attempts(session, run, "succeeded", "done", 0)
    assert run.eval_rollouts == 96 + 8, "of one that finished what it told then"
    assert run.eval_seconds == 0.5, "nobody has told how long the other took"


def test_an_attempt_that_was_taken_for_over_and_tells_more_is_booked_as_it_tells(
    session: Session, run_id: uuid.UUID
) -> None:
    """The trainer of a host that was cut off writes on, until a supervisor comes to it again."""
    step = logs.step(1, [logs.visit("p0", "committed", n=6), logs.visit("p1", "ready", n=6)])
    log = number(
        [
            logs.started(1), logs.sampling(1), logs.evaluation_progress(0, held=9),
            logs.evaluation_progress(0, held=6, amc=90), logs.evaluation(0, 0.3), step, logs.sampling(2),
        ]
    )  # fmt: skip
    for known, of_evaluation, sampled in ((2, 0, 8), (3, 9, 8), (4, 96, 8), (5, 8, 8), (6, 8, step.rollouts)):
        ingest(session, run_id, 1, 1, log[:known])
        run = session.get_one(Run, run_id, populate_existing=True)
        for _ in range(2):  # by the sweep, then by somebody else
            tables.finish_attempts(session, run, "lost", "its host was gone", None)
            assert (run.eval_rollouts, run.eval_tokens) == (of_evaluation, 10 * of_evaluation)
            assert sum(spend["rollouts"] for spend in run.eval_spend.values()) == of_evaluation
            assert spent(session, run_id) == (sampled, 10 * sampled)
    ingest(session, run_id, 1, 1, log)
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    assert spent(session, run_id) == (step.rollouts + 8, 10 * (step.rollouts + 8)) and run.fates["lost"] == [8, 80]


def test_two_runs_share_a_data_set(session: Session, run_id: uuid.UUID) -> None:
    ingest(session, run_id, 1, 1, number([logs.started(1), logs.prompts()]))
    other = Run(name="s", config={}, config_digest="d", method="grpo", model="m")
    session.add(other)
    session.flush()
    leases.claim(session, other.id, "host:2:2", dt.timedelta(minutes=1))
    tables.begin_attempt(session, leases.owned(session, other.id, 1), 1, "host")
    ingest(session, other.id, 1, 1, number([logs.started(1), logs.prompts()]))
    assert session.scalar(sa.select(sa.func.count()).select_from(Prompt)) == len(logs.POOL)


def test_progress_forgives_setbacks(session: Session, run_id: uuid.UUID) -> None:
    run = leases.owned(session, run_id, 1)
    tables.queue_again(run, "the trainer died")
    tables.queue_again(run, "the trainer died")
    session.flush()
    ingest(session, run_id, 1, 1, first_attempt()[:4])
    assert session.get_one(Run, run_id, populate_existing=True).setbacks == 2
    ingest(session, run_id, 1, 1, first_attempt()[:5])
    assert session.get_one(Run, run_id, populate_existing=True).setbacks == 0


def test_what_a_step_may_have_sampled_when_its_attempt_died_is_lost(session: Session, run_id: uuid.UUID) -> None:
    events = number(
        [
            logs.started(1),
            logs.sampling(1),
            logs.step(1, [visit("p0", "ready"), visit("p1", "ready")]),
            logs.checkpoint(1),
            logs.sampling(2),
            logs.step(2, [visit("p0", "ready"), visit("p1", "ready")], before=8),
            logs.sampling(3),
            logs.sampling(3, 5),
        ]
    )
    for cut in (3, 7):
        ingest(session, run_id, 1, 1, events[:cut])
    assert spent(session, run_id) == (16, 160), "it may finish the step yet"
    ingest(session, run_id, 1, 1, events)
    tables.finish_attempts(session, leases.owned(session, run_id, 1), "lost", "killed", None)
    assert spent(session, run_id) == (29, 290)
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    lost = Count(rollouts=21, tokens=210)
    ingest(session, run_id, 2, 1, number([logs.started(2, from_step=1, lost=lost), logs.sampling(2)]))
    assert spent(session, run_id) == (29, 290)
    booked = sa.select(LedgerEntry.step, LedgerEntry.rollouts, LedgerEntry.tokens).where(LedgerEntry.fate == "lost")
    assert session.execute(booked).all() == [(1, 21, 210)], "the steps that are repeated, and the unfinished one"
    tables.begin_attempt(session, leases.owned(session, run_id, 1), 1, "host")
    assert spent(session, run_id) == (37, 370), "an attempt that nobody finished"
