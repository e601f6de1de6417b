"""What becomes of a run whose trainer is gone."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pipeline.events import AttemptFinished

MAX_SETBACKS: Final = 3
SHUT_DOWN: Final = "the platform was shut down; resume to go on"


class Outcome(NamedTuple):
    """attempt: how the attempt ended. run: the state that the run goes to. reason: for a person."""

    attempt: Literal["succeeded", "stopped", "failed", "lost"]
    run: Literal["queued", "succeeded", "stopped", "failed"]
    reason: str


class Death(NamedTuple):
    """A trainer that ended without a word. words: how, for a person. details: the end of its log.

    chance: it did not end by itself (a signal, a lost host), so trying again may well help.
    """

    words: str
    chance: bool
    details: str = ""


def judge(
    end: AttemptFinished | Death,
    *,
    stop_asked: bool,
    shut_down: bool,
    checkpoint: int | None,
    setbacks: int,
) -> Outcome:
    """checkpoint: step of the newest one, if any. setbacks: times queued again since a checkpoint was saved."""
    if isinstance(end, AttemptFinished):
        reason = SHUT_DOWN if shut_down and not stop_asked and end.outcome == "stopped" else end.reason
        return Outcome(end.outcome, end.outcome, reason)
    rest = f"the checkpoint of step {checkpoint}" if checkpoint is not None else "the beginning"
    if stop_asked:
        return Outcome("lost", "stopped", f"stopped, but {end.words}; resume goes on from {rest}")
    if shut_down:
        return Outcome("lost", "stopped", SHUT_DOWN)
    told = f"\nThe end of its log:\n{end.details}" if end.details else ""
    if checkpoint is None and not end.chance:
        return Outcome("failed", "failed", f"{end.words}{told}")
    if setbacks >= MAX_SETBACKS:
        words = f"{end.words}, for the {setbacks + 1}th time since it last saved a checkpoint"
        return Outcome("failed", "failed", f"{words}; resume tries again from {rest}{told}")
    return Outcome("lost", "queued", f"{end.words}; it goes on from {rest}")
