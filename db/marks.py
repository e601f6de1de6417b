"""Marks of prompts: what people wish for the prompts of a run, and from which step on its trainer honours that.

Each wish is a row that stays. The newest one of a prompt counts; a re-test is on top of the pin that it finds. Whoever
adds rows holds the run's row locked, so that a wish with a higher number is never seen before one with a lower.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from db.models import Prompt, PromptMark, Run
from db.runs import WrongState, locked

Mark = Literal["pin", "exclude", "clear", "retest"]
Marked = Literal["pin", "exclude", "clear", "retest", "any"]


class PromptsRefused(Exception):
    """Some of the prompts cannot have the mark; nothing was changed. `message` says why, of each in `ids`."""

    def __init__(self, ids: list[str], message: str) -> None:
        self.ids, self.message = ids, message
        super().__init__(message)


class Wish(NamedTuple):
    """A mark as the trainer gets it."""

    id: int
    mark: str
    prompt_id: str


def wish(session: Session, run_id: uuid.UUID, prompt_ids: Iterable[str], mark: Mark, by: str) -> dict[str, str]:
    """Wish it for these prompts. Returns those for which it was not wished already, each with its pin, exclusion or
    `clear` before; wishing twice changes nothing.

    Raises RunNotFound, WrongState when no step of the run will come or its prompts are not known yet, and
    PromptsRefused for prompts that it does not train on and for a re-test of excluded ones.
    """
    run = locked(session, run_id)
    if run.state == "succeeded":
        raise WrongState(run.state, "the run has succeeded: no further step will come that could honour a mark")
    if run.dataset_id is None:
        raise WrongState(run.state, "the run has not read its prompts yet; mark them when it lists them")
    ids = list(dict.fromkeys(prompt_ids))
    given = sa.cast(ids, ARRAY(sa.Text))
    known = set(
        session.scalars(sa.select(Prompt.id).where(Prompt.dataset_id == run.dataset_id, Prompt.id == sa.any_(given)))
    )
    if unknown := [id for id in ids if id not in known]:
        raise PromptsRefused(unknown, "the run trains on no such prompt")
    rows = session.execute(
        sa.select(PromptMark.prompt_id, PromptMark.mark, PromptMark.applied_step)
        .where(PromptMark.run_id == run_id, PromptMark.prompt_id == sa.any_(given))
        .order_by(PromptMark.id)
    )
    newest: dict[str, tuple[str, int | None]] = {}
    standing: dict[str, str] = {}
    for id, before, step in rows:
        newest[id] = (before, step)
        if before != "retest":
            standing[id] = before
    if mark == "retest":
        if excluded := [id for id in ids if standing.get(id) == "exclude"]:
            raise PromptsRefused(excluded, "it is excluded; include it first (mark it `clear`), or leave it out")
        new = [id for id in ids if newest.get(id) != ("retest", None)]
    else:
        new = [id for id in ids if newest.get(id, ("clear", None))[0] != mark]
    if new:
        session.execute(
            sa.insert(PromptMark), [{"run_id": run_id, "prompt_id": id, "mark": mark, "wished_by": by} for id in new]
        )
    return {id: standing.get(id, "clear") for id in new}


def pending(session: Session, run_id: uuid.UUID) -> list[Wish]:
    """What the trainer has not told that it applied, in the order in which it was wished."""
    rows = session.execute(
        sa.select(PromptMark.id, PromptMark.mark, PromptMark.prompt_id)
        .where(PromptMark.run_id == run_id, PromptMark.applied_step.is_(None))
        .order_by(PromptMark.id)
    )
    return [Wish(*row) for row in rows]


def applied(session: Session, run: Run, step: int, ids: Sequence[int]) -> None:
    """The trainer honours these wishes from `step` on."""
    session.execute(
        sa.update(PromptMark)
        .where(PromptMark.run_id == run.id, PromptMark.id == sa.any_(sa.cast(list(ids), ARRAY(sa.BigInteger))))
        .values(applied_step=step)
        .execution_options(synchronize_session=False)
    )


def take_back(session: Session, run: Run, step: int) -> None:
    """The trainer goes on from `step`: what it applied for later ones, it has yet to apply again."""
    session.execute(
        sa.update(PromptMark)
        .where(PromptMark.run_id == run.id, PromptMark.applied_step > step)
        .values(applied_step=None)
        .execution_options(synchronize_session=False)
    )


def of_prompt(session: Session, run_id: uuid.UUID, prompt_id: str, limit: int = 200) -> Sequence[PromptMark]:
    """All wishes for one prompt, the newest first."""
    return session.scalars(
        sa.select(PromptMark)
        .where(PromptMark.run_id == run_id, PromptMark.prompt_id == prompt_id)
        .order_by(PromptMark.id.desc())
        .limit(limit)
    ).all()


def current(session: Session, run_id: uuid.UUID, prompt_ids: Sequence[str]) -> dict[str, list[PromptMark]]:
    """What holds or is to come, of those of the prompts that have such marks."""
    among = PromptMark.prompt_id == sa.any_(sa.cast(list(prompt_ids), ARRAY(sa.Text)))
    found: dict[str, list[PromptMark]] = {}
    ids = sa.select(_current(run_id, among).c.id)
    for row in session.scalars(sa.select(PromptMark).where(PromptMark.id.in_(ids)).order_by(PromptMark.id)):
        found.setdefault(row.prompt_id, []).append(row)
    return found


def marked(run_id: uuid.UUID, which: Marked) -> sa.Select[tuple[str]]:
    """The ids of the prompts of a run that have such a mark, or any."""
    found = _current(run_id)
    ids = sa.select(found.c.prompt_id)
    return ids if which == "any" else ids.where(found.c.mark == which)


def _current(run_id: uuid.UUID, *among: sa.ColumnElement[bool]) -> sa.Subquery:
    """Of each prompt its newest pin or exclusion, a `clear` that is still to come, and a re-test that is."""
    newest = sa.func.max(PromptMark.id).over(partition_by=PromptMark.prompt_id)
    standing = sa.func.max(PromptMark.id).filter(PromptMark.mark != "retest").over(partition_by=PromptMark.prompt_id)
    all = (
        sa.select(PromptMark.id, PromptMark.prompt_id, PromptMark.mark, PromptMark.applied_step)
        .add_columns((PromptMark.id == standing).label("stands"), (PromptMark.id == newest).label("newest"))
        .where(PromptMark.run_id == run_id, *among)
        .subquery()
    )
    to_come = all.c.applied_step.is_(None)
    holds = all.c.stands & ((all.c.mark != "clear") | to_come)
    holds |= all.c.newest & (all.c.mark == "retest") & to_come
    return sa.select(all.c.id, all.c.prompt_id, all.c.mark).where(holds).subquery()
