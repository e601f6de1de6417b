"""What becomes of a run whose trainer is gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.worker import logs
from worker.outcome import MAX_SETBACKS, Death, Outcome, judge

CRASH = Death("the trainer ended with status 1 without saying why", chance=False, details="Traceback")
KILL = Death("the trainer was ended by SIGKILL", chance=True)
EARLY = Death("the trainer was ended by SIGTERM", chance=True, early=True)


def outcome(end: Any, **given: Any) -> Outcome:
    calm: dict[str, Any] = {"stop_asked": False, "shut_down": False, "checkpoint": None, "setbacks": 0}
    return judge(end, **calm | given)


@pytest.mark.parametrize("told", ["succeeded", "stopped", "failed"])
def test_the_trainers_own_word_counts(told: str) -> None:
    assert outcome(logs.finished(3, told)) == (told, told, "all steps done")
    assert outcome(logs.finished(3, told), stop_asked=True) == (told, told, "all steps done")


def test_a_stop_by_the_platforms_end_says_so() -> None:
    said = "the platform was shut down after step 3; resume to go on"
    assert outcome(logs.finished(3, "stopped"), shut_down=True) == ("stopped", "stopped", said)
    assert outcome(logs.finished(3, "succeeded"), shut_down=True).run == "succeeded"
    killed = outcome(KILL, shut_down=True, checkpoint=2)
    assert killed == ("lost", "stopped", "the platform was shut down; resume goes on from the checkpoint of step 2")
    assert outcome(logs.finished(3, "stopped"), shut_down=True, stop_asked=True).reason == "all steps done"


def test_a_stop_that_came_before_the_trainer_could_listen_is_no_death() -> None:
    stopped = ("stopped", "stopped", "stopped before the first step; resume to go on")
    assert outcome(EARLY, stop_asked=True) == stopped
    assert outcome(EARLY, stop_asked=True, shut_down=True) == stopped
    shut_down = outcome(EARLY, shut_down=True, checkpoint=20)
    assert shut_down[:2] == ("stopped", "stopped")
    assert shut_down.reason == (
        "the platform was shut down before it went on from the checkpoint of step 20; resume to go on"
    )
    assert outcome(EARLY).run == "queued", "nobody asked"


def test_a_crash_goes_on_from_the_checkpoint() -> None:
    again = outcome(CRASH, checkpoint=20)
    assert (again.attempt, again.run) == ("lost", "queued")
    assert "checkpoint of step 20" in again.reason


def test_a_crash_without_a_checkpoint_fails_with_its_log() -> None:
    failed = outcome(CRASH)
    assert (failed.attempt, failed.run) == ("failed", "failed")
    assert failed.reason.endswith("The end of its log:\nTraceback")


def test_what_was_killed_from_outside_starts_again_even_without_a_checkpoint() -> None:
    assert outcome(KILL).run == "queued"


def test_without_progress_it_ends() -> None:
    assert outcome(CRASH, checkpoint=2, setbacks=MAX_SETBACKS - 1).run == "queued"
    failed = outcome(CRASH, checkpoint=2, setbacks=MAX_SETBACKS)
    assert failed.run == "failed" and "4th time" in failed.reason and "Traceback" in failed.reason


def test_a_stop_is_never_tried_again() -> None:
    stopped = outcome(KILL, stop_asked=True, checkpoint=2)
    assert (stopped.attempt, stopped.run) == ("lost", "stopped")
    assert "SIGKILL" in stopped.reason and "checkpoint of step 2" in stopped.reason


def test_a_passed_budget_is_an_end_if_the_trainer_stops_and_a_failure_if_it_does_not() -> None:
    told = outcome(logs.finished(3, "stopped"), passed="time budget: 9 s of 8 s used")
    assert told == ("succeeded", "succeeded", "time budget: 9 s of 8 s used; it was ended after step 3")
    assert outcome(logs.finished(3, "succeeded"), passed="x").reason == "all steps done"
    hung = outcome(KILL, passed="time budget: 9 s of 8 s used", checkpoint=2)
    assert hung.run == "failed" and "SIGKILL; its last save is the checkpoint of step 2" in hung.reason
    assert outcome(logs.finished(3, "stopped"), passed="x", stop_asked=True).run == "stopped"


def test_a_budget_that_ends_before_the_first_step_is_a_failure() -> None:
    for told in (
        outcome(logs.finished(0, "succeeded")),
        outcome(logs.finished(0, "stopped"), passed="time budget: 3 s of 2 s used"),
    ):
        assert told[:2] == ("failed", "failed") and "not one step was trained: clone it" in told.reason
    assert outcome(logs.finished(0, "stopped"), stop_asked=True).run == "stopped", "somebody wanted it"


def test_what_would_end_the_same_way_is_not_tried_again() -> None:
    assert outcome(Death("the disk is full", chance=False, hopeless=True), checkpoint=2).run == "failed"


def test_an_evaluation_begins_again_or_is_asked_for_again() -> None:
    """It has nothing to resume."""

    def of(end: Any, **given: Any) -> Outcome:
        return outcome(end, evaluation=True, **given)

    shut = "the platform was shut down; ask for the evaluation again"
    assert of(logs.finished(3)) == ("succeeded", "succeeded", "all steps done")
    assert of(logs.finished(3, "stopped"), shut_down=True) == ("stopped", "stopped", shut)
    assert of(logs.finished(3, "stopped"), shut_down=True, stop_asked=True).reason == "all steps done"
    assert of(KILL, shut_down=True) == ("lost", "stopped", shut)
    assert of(EARLY, stop_asked=True) == ("stopped", "stopped", "stopped on request")
    assert of(KILL) == ("lost", "queued", "the trainer was ended by SIGKILL; it begins again")
    assert of(KILL, setbacks=MAX_SETBACKS) == ("failed", "failed", "the trainer was ended by SIGKILL, for the 4th time")
    assert of(CRASH).run == "failed" and of(CRASH).reason.endswith("The end of its log:\nTraceback")
