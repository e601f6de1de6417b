"""Marks of prompts on their way to the trainer: RUN_DIR/marks.json, which the supervisor writes anew as wishes come.

The trainer looks at it before each step and tells what it applies (pipeline.events.MarksApplied). A wish stays in the
file until that was heard, so one that was applied already is passed over, by its id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ValidationError

from pipeline.events import MarkRecord
from pipeline.prompts import Prompt
from pipeline.rundir import MARKS


class WishFile(BaseModel):
    marks: list[MarkRecord]


class Wishes:
    """Those that this run has not applied yet. applied: ids of those that it has."""

    def __init__(self, run_dir: Path, prompts: Sequence[Prompt], applied: Iterable[int] = ()) -> None:
        self._path, self._prompts = run_dir / MARKS, prompts
        self._seen = set(applied)
        self._trouble = ""

    @cached_property
    def place(self) -> dict[str, int]:
        """Of each prompt in the pool, by its id."""
        return {prompt.id: i for i, prompt in enumerate(self._prompts)}

    def new(self) -> list[MarkRecord]:
        """In the order in which they were wished. Each is given out once; what cannot be done is printed.

        A file that cannot be read is asked again at the next call: training does not depend on it.
        """
        try:
            wished = WishFile.model_validate_json(self._path.read_bytes()).marks
        except FileNotFoundError:
            return []
        except (OSError, ValidationError) as error:
            if str(error) != self._trouble:
                print(f"{self._path} cannot be read, the marks in it wait: {error}", flush=True)
            self._trouble = str(error)
            return []
        new = sorted((mark for mark in wished if mark.id not in self._seen), key=lambda mark: mark.id)
        self._seen.update(mark.id for mark in new)
        for mark in new:
            if mark.prompt_id not in self.place:
                print(f"mark {mark.id}: the training set has no prompt {mark.prompt_id!r}", flush=True)
        return [mark for mark in new if mark.prompt_id in self.place]
