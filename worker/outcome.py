"""What becomes of a run whose trainer is gone."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from pipeline.events import AttemptFinished

MAX_SETBACKS: Final = 3


class Outcome(NamedTuple):
    """attempt: how the attempt ended. run: the state that the run goes to. reason: for a person."""

    attempt: Literal["succeeded", "stopped", "failed", "lost"]
    run: Literal["queued", "succeeded", "stopped", "failed"]
    reason: str


class Death(NamedTuple):
    """A trainer that ended without a word. words: how, for a person. details: the end of its log.

    chance: it did not end by itself (a signal, a lost host), so trying again may well help.
    early: SIGTERM ended it before its first event, as it could not listen to signals yet.
    hopeless: trying again would end the same way, whatever has been saved.
    """

    words: str
    chance: bool
    details: str = ""
    early: bool = False
    hopeless: bool = False


def judge(
    end: AttemptFinished | Death,
    *,
    stop_asked: bool,
    shut_down: bool,
    checkpoint: int | None,
    setbacks: int,
    passed: str | None = None,
    evaluation: bool = False,
) -> Outcome:
    """stop_asked: by a user. checkpoint: step of the newest one, if any. setbacks: times queued again since then.

    passed: the bound of the budget for which the supervisor ended the trainer. evaluation: it did not train but measure
    a checkpoint: nothing can be resumed, it begins again or somebody asks again.
    """
    if evaluation:
        return _judge_evaluation(end, stop_asked, shut_down, setbacks)
    if isinstance(end, AttemptFinished):
        # The trainer knows only that a signal asked it to stop, not who sent it.
        if end.outcome == "stopped" and shut_down and not stop_asked:
            return Outcome("stopped", "stopped", f"the platform was shut down after step {end.step}; resume to go on")
        became, told = end.outcome, end.reason
        if end.outcome == "stopped" and passed and not stop_asked:
            became, told = "succeeded", f"{passed}; it was ended after step {end.step}"
        if became == "succeeded" and end.step == 0:  # else a check of a CI pipeline passes with a policy as it was
            return Outcome("failed", "failed", f"{told}; not one step was trained: clone it with a larger budget")
        return Outcome(became, became, told)
    rest = f"the checkpoint of step {checkpoint}" if checkpoint is not None else "the beginning"
    if end.early and (stop_asked or shut_down):
        before = "the first step" if checkpoint is None else f"it went on from {rest}"
        what = "stopped" if stop_asked else "the platform was shut down"
        return Outcome("stopped", "stopped", f"{what} before {before}; resume to go on")
    if stop_asked:
        return Outcome("lost", "stopped", f"stopped, but {end.words}; resume goes on from {rest}")
    if shut_down:
        return Outcome("lost", "stopped", f"the platform was shut down; resume goes on from {rest}")
    if passed:
        saved = f"its last save is {rest}; clone it with a larger budget"
        return Outcome("failed", "failed", f"{passed}, and {end.words}; {saved}")
    log = f"\nThe end of its log:\n{end.details}" if end.details else ""
    if end.hopeless or (checkpoint is None and not end.chance):
        return Outcome("failed", "failed", f"{end.words}{log}")
    if setbacks >= MAX_SETBACKS:
        words = f"{end.words}, for the {setbacks + 1}th time since it last saved a checkpoint"
        return Outcome("failed", "failed", f"{words}; resume tries again from {rest}{log}")
    return Outcome("lost", "queued", f"{end.words}; it goes on from {rest}")


def _judge_evaluation(end: AttemptFinished | Death, stop_asked: bool, shut_down: bool, setbacks: int) -> Outcome:
    shut = "the platform was shut down; ask for the evaluation again"
    if isinstance(end, AttemptFinished):
        reason = shut if end.outcome == "stopped" and shut_down and not stop_asked else end.reason
        return Outcome(end.outcome, end.outcome, reason)
    if stop_asked or shut_down:
        return Outcome("stopped" if end.early else "lost", "stopped", "stopped on request" if stop_asked else shut)
    told = f"\nThe end of its log:\n{end.details}" if end.details else ""
    if end.hopeless or not end.chance:
        return Outcome("failed", "failed", f"{end.words}{told}")
    if setbacks >= MAX_SETBACKS:
        return Outcome("failed", "failed", f"{end.words}, for the {setbacks + 1}th time{told}")
    return Outcome("lost", "queued", f"{end.words}; it begins again")
