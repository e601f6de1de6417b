"""The words of prompt sets. Every file of this folder is written in terms of these."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

FaultKind = Literal[
    "malformed", "encoding", "no_prompt", "no_answer", "unknown_reward", "repeated", "contradicting",
    "held_out", "alike", "too_long", "bad_answer", "replaced",
]  # fmt: skip


class Message(NamedTuple):
    """One turn of a chat. role: system, user or assistant."""

    role: str
    content: str


class RowFault(ValueError):
    """Why a row is no prompt: the kind, and in words what is wrong with which field."""

    def __init__(self, kind: FaultKind, message: str) -> None:
        self.kind: FaultKind = kind
        super().__init__(message)


class FileFault(ValueError):
    """Why a file cannot be read at all, or not beyond a point: what follows "the file ..."."""


class NoColumn(FileFault):
    """A file declares its columns, and one that was asked for is not among them."""

    def __init__(self, wanted: Sequence[str], columns: Sequence[str]) -> None:
        self.columns = list(columns)
        there = ", ".join(columns)[:300] or "none"
        super().__init__(f"has no column {' or '.join(map(repr, wanted))}; columns there: {there}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """text: what is asked, as people and rewards see it: the user's words; of a longer chat every turn, named by its
    role, the system prompt left out. messages: the chat that the policy gets; empty means `text` as the only turn.
    reward: which of the config's `rewards` scores it; None means `reward`.
    """

    id: str
    text: str
    answer: str
    tags: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    reward: str | None = None

    @property
    def chat(self) -> list[dict[str, str]]:
        """What goes into the model's chat template, on every engine."""
        return [message._asdict() for message in self.messages or (Message("user", self.text),)]


@dataclass(frozen=True, slots=True)
class PromptSet:
    """Prompts in the order of their ids, so that the same content gives the same pool, whatever the file's order."""

    name: str
    prompts: tuple[Prompt, ...]

    @property
    def digest(self) -> str:
        """Content hash of the whole set, 16 hex digits."""
        joined = "\n".join(p.id if p.reward is None else f"{p.id} {p.reward}" for p in self.prompts)
        return hashlib.sha256(joined.encode()).hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.prompts)


def prompt_id(text: str, answer: str) -> str:
    """16 hex digits from prompt and answer; the separator keeps ("ab", "c") and ("a", "bc") apart."""
    return hashlib.sha256(f"{text}\x1f{answer}".encode()).hexdigest()[:16]


def make_prompt(
    messages: tuple[Message, ...], answer: str, tags: tuple[str, ...] = (), reward: str | None = None
) -> Prompt:
    """The prompt of a chat. A chat of one user turn is that text: written either way it has the same id."""
    match messages:
        case (Message(role="user", content=text),):
            return Prompt(prompt_id(text, answer), text, answer, tags, (), reward)
    spoken = [m for m in messages if m.role != "system"]
    text = spoken[0].content if len(spoken) == 1 else "\n\n".join(f"{m.role}: {m.content}" for m in spoken)
    written = json.dumps([list(m) for m in messages], ensure_ascii=False, separators=(",", ":"))
    return Prompt(prompt_id(written, answer), text, answer, tags, messages, reward)
