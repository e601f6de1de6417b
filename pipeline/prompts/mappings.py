"""Which columns of a row are the prompt and its answer: the layouts that ship, by name, and how a row is read by one.

`plain` takes the columns that a config names. The others are the published sets by their published columns, and verl's
own layout. Columns inside a struct are written with dots; `a|b` means the first of these that the row has.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.config import DataConfig, MappingName
from pipeline.prompts.types import Message, Prompt, RowFault, make_prompt
from pipeline.rewards.latex import last_boxed

_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class Layout:
    """prompt, answer: columns. solution: the column whose last \\boxed{} is the answer of a row without one.
    tags: columns that become tags. reward: the column that names the row's reward. own_tags: the column of a list of
    tags. after: the answer is what follows this mark. options: the column of lettered choices, {text: [..], label:
    [..]}. unwrap: the chat is one question between a first and a last paragraph that ask for a line `Answer: $Answer`,
    another form of answer than a box; the question alone is the prompt. published: an answer is tidied: lists joined,
    27.0 as 27, dollars around the whole and space at the ends off.
    """

    title: str
    prompt: str
    answer: str
    solution: str = ""
    tags: tuple[str, ...] = ()
    own_tags: str = ""
    reward: str = ""
    after: str = ""
    options: str = ""
    unwrap: bool = False
    published: bool = True

    @property
    def columns(self) -> set[str]:
        """The top-level columns that it reads."""
        named = (self.prompt, self.answer, self.solution, *self.tags, self.own_tags, self.reward, self.options)
        return {path.split(".")[0] for name in named for path in name.split("|") if path}


LAYOUTS: dict[MappingName, Layout] = {
    "plain": Layout(
        "columns of your own; see prompt_key, answer_key, tags_key and reward_key",
        "prompt", "answer", own_tags="tags", reward="reward", published=False,
    ),
    "verl": Layout(
        "verl's own layout", "prompt", "reward_model.ground_truth",
        tags=("data_source", "ability"), own_tags="extra_info.tags", reward="extra_info.reward", published=False,
    ),
    "gsm8k": Layout("GSM8K (openai/gsm8k)", "question", "answer", after="####"),
    "math": Layout("MATH (EleutherAI/hendrycks_math)", "problem", "answer", "solution", ("type", "level")),
    "math500": Layout("MATH-500 (HuggingFaceH4/MATH-500)", "problem", "answer", "solution", ("subject", "level")),
    "aime24": Layout("AIME 2024 (HuggingFaceH4/aime_2024)", "problem|question", "answer"),
    "aime25": Layout("AIME 2025 (math-ai/aime25)", "problem|question", "answer"),
    "amc23": Layout("AMC 2023 (math-ai/amc23)", "problem|question", "answer"),
    "olympiadbench": Layout(
        "OlympiadBench (Hothan/OlympiadBench)", "question", "final_answer", tags=("subfield",)
    ),
    "minerva": Layout("Minerva (math-ai/minervamath)", "problem|question", "answer", "solution", ("type",)),
    "deepmath": Layout(
        "DeepMath-103K (zwhe99/DeepMath-103K)", "question", "final_answer", tags=("topic", "difficulty")
    ),
    "polaris": Layout(
        "Polaris-53K (POLARIS-Project/Polaris-Dataset-53K)", "problem", "answer", tags=("difficulty",)
    ),
    "dapo": Layout("DAPO-17k (BytedTsinghua-SIA/DAPO-Math-17k)", "prompt", "reward_model.ground_truth", unwrap=True),
    "sciknoweval": Layout(
        "SciKnowEval (hicai-zju/SciKnowEval)", "question", "answerKey|answer", options="choices",
        tags=("domain", "type", "details.level", "details.task"),
    ),
}  # fmt: skip


def layout(name: MappingName, data: DataConfig | None = None) -> Layout:
    """data: its keys name the columns of `plain`; the others have columns of their own."""
    if name != "plain" or data is None:
        return LAYOUTS[name]
    return dataclasses.replace(
        LAYOUTS["plain"],
        prompt=data.prompt_key, answer=data.answer_key, own_tags=data.tags_key, reward=data.reward_key,
    )  # fmt: skip


def read(row: Mapping[str, Any], by: Layout, *, flat: bool = False) -> Prompt:
    """The prompt in a row, without any system prompt or template of a config. flat: the row is of a format that has
    texts only, where a chat is JSON and tags are separated by semicolons. Raises RowFault."""
    messages = _messages(row, by, flat)
    tags = tuple(f"{path.rpartition('.')[2]}={_text(v)}" for path in by.tags if (v := find(row, path)) is not None)
    own = find(row, by.own_tags) if by.own_tags else None
    if own not in (None, ""):
        tags = _own_tags(own, by.own_tags, flat)
    reward = find(row, by.reward) if by.reward else None
    if reward is not None and not isinstance(reward, str):
        raise RowFault("malformed", f"{by.reward!r} must be the name of a reward, not {_shown(reward)}")
    answer = _answer(row, by)
    for where, text in (
        (by.prompt, "".join(m.content for m in messages)),
        (by.answer, answer),
        ("tags", "".join(tags)),
    ):
        if "\x00" in text:
            raise RowFault("encoding", f"has a NUL character in {where!r}")
        if _HALF.search(text):
            raise RowFault("encoding", f"has half of a surrogate pair in {where!r}")
    return make_prompt(messages, answer, tags, (reward or "").strip() or None)


def find(row: Mapping[str, Any], names: str) -> Any:
    """The value of the first of the columns in `a|b.c` that the row has; None when it has none."""
    for name in names.split("|"):
        place: Any = row.get(name)
        if place is None and "." in name:
            place = row
            for part in name.split("."):
                place = place.get(part) if isinstance(place, Mapping) else None
        if place is not None and place != "":
            return place
    return None


def _messages(row: Mapping[str, Any], by: Layout, flat: bool) -> tuple[Message, ...]:
    value = find(row, by.prompt)
    if flat and isinstance(value, str) and value.startswith('[{"'):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            pass  # a text that only begins like a chat
    if isinstance(value, list):
        turns = _turns(value, by.prompt)
        if not by.unwrap or len(turns) > 1:
            return turns
        value = _unwrapped(turns[0].content)
    text = _question(value, by.prompt, row, "no_prompt")
    text = text.strip() if by.published else text
    if by.options and (choices := find(row, by.options)) is not None:
        text = f"{text}\n{_options(choices, by.options)}".strip()  # some questions have none
    return (Message("user", text),)


def _unwrapped(text: str) -> str:
    paragraphs = text.split("\n\n")
    wrapped = len(paragraphs) > 2 and "Answer: $Answer" in paragraphs[0] and '"Answer:"' in paragraphs[-1]
    return "\n\n".join(paragraphs[1:-1]) if wrapped else text


def _turns(value: list[Any], name: str) -> tuple[Message, ...]:
    turns = []
    for turn in value:
        if not isinstance(turn, Mapping) or not isinstance(turn.get("content"), str) or turn.get("role") not in ROLES:
            raise RowFault(
                "malformed",
                f"{name!r} is a list, but not a chat: each turn is {{role, content}} with a role of {', '.join(ROLES)} "
                f"and a text, not {_shown(turn)}",
            )
        turns.append(Message(turn["role"], turn["content"]))
    if not turns or not turns[-1].content.strip():
        raise RowFault("no_prompt", f"has an empty chat in {name!r}")
    if turns[-1].role != "user":
        raise RowFault("malformed", f"the chat in {name!r} ends with {turns[-1].role}; the last turn is the user's")
    if any(turn.role == "system" for turn in turns[1:]):
        raise RowFault("malformed", f"the chat in {name!r} has a system prompt that is not its first turn")
    return tuple(turns)


def _options(choices: Any, name: str) -> str:
    if not isinstance(choices, Mapping):
        raise RowFault("malformed", f"{name!r} must be {{text: [...], label: [...]}}, not {_shown(choices)}")
    texts, labels = choices.get("text") or [], choices.get("label") or []
    if len(texts) != len(labels):
        raise RowFault("malformed", f"{name!r} has {len(texts)} texts for {len(labels)} labels")
    return "\n".join(f"{label}. {text}" for label, text in zip(labels, texts, strict=True))


def _answer(row: Mapping[str, Any], by: Layout) -> str:
    value = find(row, by.answer)
    if not by.published:
        return _question(value, by.answer, row, "no_answer")
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None and isinstance(solution := find(row, by.solution), str):
        value = last_boxed(solution)
    text = _question(value, by.answer, row, "no_answer").strip()
    text = text.rpartition(by.after)[2].strip() if by.after else text
    if text.startswith("$") and text.endswith("$") and text.count("$") == 2:
        text = text[1:-1].strip()
    return text if text else _question(None, by.answer, row, "no_answer")


def _question(value: Any, name: str, row: Mapping[str, Any], kind: Literal["no_prompt", "no_answer"]) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = _text(value)
    if value is not None and not isinstance(value, str):
        accepted = "a text or a number" if kind == "no_answer" else "a text or a chat"
        raise RowFault("malformed", f"{name!r} must be {accepted}, not {_shown(value)}")
    if value is None or not value.strip():
        present = ", ".join(sorted(map(str, row))) or "none"
        raise RowFault(kind, f"has no text in {name!r} (fields there: {present[:300]})")
    return value


def _own_tags(value: Any, name: str, flat: bool) -> tuple[str, ...]:
    if flat and isinstance(value, str):
        value = [tag.strip() for tag in value.split(";") if tag.strip()]
    if not isinstance(value, list) or not all(isinstance(tag, str) for tag in value):
        raise RowFault("malformed", f"{name!r} must be a list of strings, not {_shown(value)}")
    return tuple(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # an integer of thousands of digits
        raise RowFault("malformed", "has a number of thousands of digits; write it as text") from None


def _shown(value: Any) -> str:
    return ascii(value)[:120]
