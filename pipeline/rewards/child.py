"""The inside of a reward process: limits itself, then answers questions until its parent is gone."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TextIO

from pipeline.lifeline import die_with
from pipeline.rewards.types import Verdict, failed, shown
from pipeline.sandbox.limits import Limits, enter

SERVED_BY = {"math": "maths", "function": "function", "reasoning_gym": "gym"}
"""Reward -> the module of this folder whose `serve(settings)` gives the function that answers its questions."""

_NO_MORE, _TIRED = 0, 75  # exit statuses of the fork that answers
_MOST_ANSWERS = 5000


def main() -> None:
    job = json.loads(sys.argv[1])
    settings = job["settings"]
    if job["parent"]:
        die_with(job["parent"])
    enter(Limits(**job["limits"]), job["user"])
    questions, replies = _take_pipes()
    try:
        module = importlib.import_module(f"pipeline.rewards.{SERVED_BY[settings['name']]}")
        answer: Callable[..., Verdict] = module.serve(settings)
    except Exception as error:
        _write(replies, {"error": shown(f"{type(error).__name__}: {error}")})
        return
    _write(replies, {})
    # Answers are found in a fork, which has everything loaded: when one is lost, the next starts in no time.
    while True:
        us = os.getpid()
        fork = os.fork()
        if fork == 0:
            die_with(us)
            os._exit(_answer_all(answer, questions, replies))
        code = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        if code == _NO_MORE:
            return
        if code != _TIRED:
            if code == -signal.SIGALRM:
                _write(replies, {"late": True})
                continue
            ending = f"signal {-code}" if code < 0 else f"exit status {code}"
            _write(replies, dataclasses.asdict(failed(f"the reward process died ({ending})")))


def _answer_all(answer: Callable[..., Verdict], questions: TextIO, replies: TextIO) -> int:
    """Returns _NO_MORE, or _TIRED after so many answers that what libraries have piled up meanwhile is thrown away."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for _ in range(_MOST_ANSWERS):
        line = questions.readline()
        if not line:
            return _NO_MORE
        limit_s, question = json.loads(line)
        # The kernel ends this process when the alarm rings, whatever it is busy with: no handler has to run.
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            verdict = answer(*question)
        except Exception as error:  # an answer that makes the reward raise is that answer's trouble alone
            verdict = failed(shown(f"{type(error).__name__}: {error}"))
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(replies, dataclasses.asdict(verdict))
    return _TIRED


def _write(replies: TextIO, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


def _take_pipes() -> tuple[TextIO, TextIO]:
    """Our pipes for ourselves; what rewards read or print goes nowhere."""
    questions, replies = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    return questions, replies
