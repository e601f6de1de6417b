"""Scoring many responses at once."""

from __future__ import annotations

import math
import os
import time
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from pipeline.rewards.registry import RewardConfig, parts_of
from pipeline.rewards.types import Desk, Question, Response, Reward, Score, Verdict

_REMEMBERED = 200_000  # verdicts


class Scorer:
    """A run's rewards, ready to score. Most verdicts take a look; what takes longer is asked at the parts' desks, each
    question once, all of a batch side by side. Close it, or use it as a context: it may own processes."""

    def __init__(
        self, config: RewardConfig, workers: int | None = None, named: Mapping[str, RewardConfig] | None = None
    ) -> None:
        """workers: reward processes per part; unset means one a core. named: what scores responses that name a reward.
        Raises ValueError when a part can't start."""
        workers = workers or os.cpu_count() or 1
        self.rules: dict[str | None, Rule] = {}
        for name, reward in [(None, config), *(named or {}).items()]:
            self.rules[name] = Rule(reward, workers)
        asking = [asking for rule in self.rules.values() for asking in rule.asking.values()]
        self.close = weakref.finalize(self, _close, asking)

    def score(self, responses: Sequence[Response]) -> list[Score]:
        """One score per response, in order. Raises KeyError for a reward that is not among those named."""
        places: dict[str | None, list[int]] = {}
        for i, response in enumerate(responses):
            places.setdefault(response.reward, []).append(i)
        # All are asked before any is waited for.
        asked = {name: self.rules[name].ask([responses[i] for i in own]) for name, own in places.items()}
        scores: dict[int, Score] = {}
        for name, own in places.items():
            scores |= zip(own, self.rules[name].scores(asked[name]), strict=True)
        return [scores[i] for i in range(len(responses))]

    def __enter__(self) -> Scorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_Asked = dict[str, list[Verdict | Future[Verdict]]]


class Rule:
    """One reward: its parts, and how their verdicts add up."""

    def __init__(self, config: RewardConfig, workers: int) -> None:
        self.parts, self.judging = parts_of(config)
        self.asking: dict[str, Asking] = {part.reward.name: Asking(part.reward, workers) for part in self.parts}

    def ask(self, responses: Sequence[Response]) -> _Asked:
        """Of each part a verdict per response, or the promise of one."""
        return {name: asking.ask(responses) for name, asking in self.asking.items()}

    def scores(self, asked: _Asked) -> list[Score]:
        verdicts = {name: [f if isinstance(f, Verdict) else f.result() for f in found] for name, found in asked.items()}
        columns = zip(*verdicts.values(), strict=True)
        return [self.summed(dict(zip(verdicts, column, strict=True))) for column in columns]

    def summed(self, verdicts: dict[str, Verdict]) -> Score:
        # A failed part is NaN, and so is every sum with it.
        reward = math.fsum(part.weight * verdicts[part.reward.name].value for part in self.parts)
        judge = verdicts[self.judging]
        return Score(reward, judge.judged, verdicts, judge.extracted)


class Asking:
    """One part of a reward, its desk, and the questions that were answered before."""

    def __init__(self, reward: Reward, workers: int) -> None:
        self.reward = reward
        self.desk: Desk | None = reward.open_desk(workers)
        self.threads = ThreadPoolExecutor(self.desk.workers, "reward") if self.desk is not None else None
        self._known: dict[Question, Verdict] = {}

    def ask(self, responses: Sequence[Response]) -> list[Verdict | Future[Verdict]]:
        """A verdict each, or the promise of one."""
        promised: dict[Question, Future[Verdict]] = {}
        found: list[Verdict | Future[Verdict]] = []
        for response in responses:
            seen = self.reward.look(response)
            if isinstance(seen, Verdict):
                found.append(seen)
            elif (known := self._known.get(seen)) is not None:
                found.append(known)
            elif (promise := promised.get(seen)) is not None:
                found.append(promise)
            else:
                promise = self._promise(seen)
                found.append(promise)
                if self.reward.remembers:
                    promised[seen] = promise
        return found

    def _promise(self, question: Question) -> Future[Verdict]:
        assert self.threads is not None and self.desk is not None, f"reward {self.reward.name} opened no desk"
        promise = self.threads.submit(self._answer, self.desk, question)
        if self.reward.remembers:
            promise.add_done_callback(lambda done: self._remember(question, done))
        return promise

    @staticmethod
    def _answer(desk: Desk, question: Question) -> Verdict:
        start = time.monotonic()
        verdict = desk.answer(question)
        return verdict if verdict.seconds else replace(verdict, seconds=time.monotonic() - start)

    def _remember(self, question: Question, done: Future[Verdict]) -> None:
        # A failure may have been bad luck, such as a busy machine: the next batch asks again.
        if done.cancelled() or done.exception() is not None or done.result().failed:
            return
        if len(self._known) > _REMEMBERED:
            self._known.clear()
        self._known[question] = done.result()


def _close(asking: list[Asking]) -> None:
    for part in asking:
        if part.threads is not None and part.desk is not None:
            part.threads.shutdown(wait=False, cancel_futures=True)
            part.desk.close()
