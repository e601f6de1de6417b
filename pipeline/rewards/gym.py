from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from typing import Any, Literal

from pydantic import Field

from pipeline import sandbox
from pipeline.rewards.latex import last_boxed
from pipeline.rewards.processes import Job, Processes
from pipeline.rewards.types import Question, Response, Reward, Verdict, failed, shown
from pipeline.sandbox.limits import Limits


class ReasoningGymReward(Reward):
    """What reasoning-gym's own scorer of the task gives, 0 to 1; the accuracy is 1 only for a full score.

    The reference answer is the task's entry as reasoning-gym writes it: JSON with `answer` and `metadata`, which names
    its `source_dataset`. Taken is what stands in the last <answer></answer>, else in the last \\boxed{}, else the whole
    response. Some of its scorers evaluate what a response says, so they run in the sandbox.
    """

    name: Literal["reasoning_gym"] = "reasoning_gym"
    timeout_s: float = Field(10.0, gt=0, le=300, description="Seconds that one response may take.")

    def look(self, response: Response) -> Verdict | Question:
        if entry_of(response.answer) is None:
            why = "the reference answer is no entry of reasoning-gym: JSON with answer and metadata.source_dataset"
            return failed(why, expected=shown(response.answer))
        return given_in(response.text), response.answer

    def open_desk(self, workers: int) -> Processes:
        if importlib.util.find_spec("reasoning_gym") is None:
            raise ValueError(
                "reward 'reasoning_gym' needs reasoning-gym: pip install --no-deps -r requirements/reasoning-gym.txt"
            )
        sandbox.check()
        limits = Limits(memory_mb=2048, processes=64, files_mb=16, open_files=256)
        desk = Processes(
            Job(self, self.timeout_s, limits, lambda: (sandbox.command(limits), sandbox.new_user())), workers
        )
        desk.start_one()
        return desk


def entry_of(answer: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    metadata = entry.get("metadata") if isinstance(entry, dict) else None
    named = isinstance(metadata, dict) and isinstance(metadata.get("source_dataset"), str)
    return entry if named and "answer" in entry else None


def given_in(text: str) -> str:
    end = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, max(0, end))
    if start >= 0:
        return text[start + len("<answer>") : end].strip()
    boxed = last_boxed(text)
    return text.strip() if boxed is None else boxed.strip()


def serve(settings: dict[str, Any]) -> Callable[[str, str], Verdict]:
    """In a reward process, sandboxed."""
    import reasoning_gym

    def score(given: str, answer: str) -> Verdict:
        entry = entry_of(answer)
        assert entry is not None, "a question is only asked about an entry that can be read"
        task, expected = entry["metadata"]["source_dataset"], shown(str(entry["answer"]))
        try:
            scorer = reasoning_gym.get_score_answer_fn(task)
        except ValueError:
            return failed(f"reasoning-gym has no task {shown(task)}", shown(given), expected)
        value = max(0.0, min(1.0, float(scorer(given, entry))))
        return Verdict(value, f"by reasoning-gym's scorer of {shown(task)}", shown(given), expected, float(value >= 1))

    return score
