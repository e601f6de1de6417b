"""What is wrong with a file of prompts, all of it: every fault counted, the first rows of each kind named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from pipeline.config import ConfigProblems, DataConfig, parse_reward
from pipeline.prompts.load import columns_of, read_prompts
from pipeline.prompts.mappings import LAYOUTS, Layout, layout
from pipeline.prompts.places import SetRef, find, from_here
from pipeline.prompts.tokenizer import ChatTokenizer
from pipeline.prompts.types import FaultKind, FileFault, Message, NoColumn, Prompt, RowFault
from pipeline.rewards import Response, RewardConfig, Scorer, Verdict
from pipeline.rewards.maths import MathReward
from pipeline.rewards.registry import parts_of
from pipeline.rewards.types import Question

SHOWN: Final = 20
PREVIEW: Final = 5
LENGTHS: Final = "prompt lengths"
_CUT: Final = 2000  # characters of a prompt that a preview shows

WORDS: Final[dict[FaultKind, str]] = {
    "malformed": "rows that cannot be read",
    "encoding": "rows with broken text",
    "no_prompt": "rows without a prompt",
    "no_answer": "rows without a reference answer",
    "unknown_reward": "rows with an unknown reward",
    "repeated": "prompts that come again",
    "contradicting": "prompts that come with different answers",
    "held_out": "prompts that are also in the other set",
    "alike": "prompts that differ from others in case and white space only",
    "too_long": "prompts that are too long for the model",
    "bad_answer": "reference answers that the reward cannot use, or may misread",
    "replaced": "prompts with replacement characters (U+FFFD): their text was broken before",
}
WARNINGS: Final = ("held_out", "alike", "too_long", "bad_answer", "replaced")


class FoundRow(BaseModel):
    row: str = Field(description="Its number; `3 of b.parquet` where several files are read.", examples=["17"])
    message: str = Field(examples=["has no text in 'answer' (fields there: prompt)"])


class Finding(BaseModel):
    """One kind of fault. refuses: a file with it is not accepted; else it is a warning."""

    kind: FaultKind = Field(examples=["no_answer"])
    title: str = Field(examples=["rows without a reference answer"])
    refuses: bool
    n: int = Field(description="Rows that have it, all of them.")
    rows: list[FoundRow] = Field(description="The first of them.")


class PreviewRow(BaseModel):
    """A prompt as it was read."""

    id: str = Field(examples=["5f2b8c0de1a94773"])
    text: str
    answer: str
    tags: list[str]
    reward: str | None


class PromptReport(BaseModel):
    """What is in a file of prompts. It is accepted as a whole or not at all."""

    accepted: bool
    fault: str | None = Field(description="Why the file could not be read to its end; null when it could.")
    columns: list[str] = Field([], description="Where the fault is a column that is missing: those that are there.")
    n_rows: int
    n_prompts: int = Field(description="Different prompts among them that can be used.")
    longest: int | None = Field(description="Tokens of the longest prompt, chat template included; null: not counted.")
    findings: list[Finding]
    unchecked: list[str] = Field(description="What was asked for and could not be checked, and why.")
    preview: list[PreviewRow]

    @property
    def length(self) -> str:
        """Of the longest prompt, in words."""
        if self.longest is not None:
            return f"longest prompt: {self.longest:,} tokens"
        tried = not self.n_prompts or any(what.startswith(LENGTHS) for what in self.unchecked)
        return "length: not counted" if tried else "length: not counted, no model given"

    def text(self, name: str) -> str:
        """For a terminal."""
        lines = [f"{name}: {self.n_prompts:,} prompts in {self.n_rows:,} rows"]
        lines += [f"cannot be read to its end: {self.fault}"] if self.fault else []
        lines.append(self.length)
        for finding in self.findings:
            lines += ["", f"{'refused' if finding.refuses else 'warning'}: {finding.title} ({finding.n:,})"]
            lines += [f"  row {found.row}: {found.message}" for found in finding.rows]
            lines += [f"  and {finding.n - len(finding.rows):,} more"] if finding.n > len(finding.rows) else []
        lines += [f"not checked: {what}" for what in self.unchecked]
        return "\n".join([*lines, "", "accepted" if self.accepted else "not accepted"])


@dataclass
class Questions:
    """What to look for besides the file itself. against: files of the other side (train or held-out), in the columns of
    against_by. rewards: what rows mean by the names of rewards that they give; one that is not there and is the
    name of a reward means that one with its defaults. model: a model folder, for lengths; max_tokens: unset means the
    model's context."""

    against: Sequence[Path] = ()
    against_by: Layout = LAYOUTS["plain"]
    reward: RewardConfig | None = None
    rewards: Mapping[str, RewardConfig] = field(default_factory=dict)
    model: Path | None = None
    max_tokens: int | None = None
    system: str | None = None
    template: str | None = None


@dataclass
class _Findings:
    found: dict[FaultKind, tuple[int, list[FoundRow]]] = field(default_factory=dict)

    def add(self, kind: FaultKind, row: str, message: str) -> None:
        n, rows = self.found.get(kind, (0, []))
        if n < SHOWN:
            rows.append(FoundRow(row=row, message=message[:500]))
        self.found[kind] = n + 1, rows

    def told(self) -> list[Finding]:
        kinds = [kind for kind in WORDS if kind in self.found]
        return [
            Finding(
                kind=kind, title=WORDS[kind], refuses=kind not in WARNINGS, n=self.found[kind][0],
                rows=self.found[kind][1],
            )
            for kind in kinds
        ]  # fmt: skip


def examine(paths: Sequence[Path], by: Layout, ask: Questions) -> tuple[PromptReport, list[Prompt]]:
    """The report, and the prompts that can be used, each once. Raises nothing: what is wrong is in the report."""
    findings, unchecked, fault, n_rows = _Findings(), [], None, 0
    columns: list[str] = []
    first: dict[tuple[Message, ...] | str, tuple[str, Prompt]] = {}  # chat -> where it came first
    keys: dict[str, str] = {}
    try:
        for row, prompt in read_prompts(paths, by, ask.system, ask.template):
            n_rows += 1
            if isinstance(prompt, RowFault):
                findings.add(prompt.kind, row, str(prompt))
                continue
            chat = prompt.messages or prompt.text
            if chat in first:
                where, other = first[chat]
                same = other.answer == prompt.answer
                words = "the same answer" if same else f"the answer {other.answer[:80]!r}, here {prompt.answer[:80]!r}"
                findings.add("repeated" if same else "contradicting", row, f"is in row {where}, too, with {words}")
                continue
            first[chat] = row, prompt
            if (where := keys.setdefault(key_of(prompt), row)) != row:
                findings.add("alike", row, f"reads like row {where}")
            if "\ufffd" in prompt.text or "\ufffd" in prompt.answer:
                findings.add("replaced", row, "has a U+FFFD in its prompt or answer")
    except FileFault as error:
        fault = str(error)
        columns = error.columns if isinstance(error, NoColumn) else []
    if not first and fault is None and not findings.found:
        fault = "has no prompts; a prompt set needs at least one"
    placed = list(first.values())
    longest = None
    for check in (_held_out, _too_long, _bad_answers):
        try:
            longest = check(placed, ask, findings) or longest
        except FileFault as error:
            unchecked.append(str(error))
    told = findings.told()
    report = PromptReport(
        accepted=fault is None and not any(finding.refuses for finding in told),
        fault=fault,
        columns=columns,
        n_rows=n_rows,
        n_prompts=len(first),
        longest=longest,
        findings=told,
        unchecked=unchecked,
        preview=[preview(prompt) for _, prompt in placed[:PREVIEW]],
    )
    return report, [prompt for _, prompt in placed]


def examine_source(
    data: DataConfig,
    against: str | None,
    *,
    model: Path | None,
    max_tokens: int | None,
    reward: RewardConfig | None,
    rewards: Mapping[str, RewardConfig],
) -> PromptReport:
    """`pilot data validate`: of data.train, read as data says. against: as data.eval. Paths are taken from the current
    folder. Raises FileFault for a source that is not there."""
    ask = Questions(
        against=find(from_here(against))[1] if against is not None else (),
        against_by=columns_of(against or "", data, data.eval_mapping or data.mapping),
        reward=reward,
        rewards=rewards,
        model=model,
        max_tokens=max_tokens,
    )
    return examine(find(from_here(data.train))[1], columns_of(data.train, data, data.mapping), ask)[0]


def preview(prompt: Prompt) -> PreviewRow:
    return PreviewRow(
        id=prompt.id, text=prompt.text[:_CUT], answer=prompt.answer[:_CUT], tags=list(prompt.tags), reward=prompt.reward
    )


def rows_of_set(ref: SetRef) -> Iterator[PreviewRow]:
    """Its prompts in the order of their ids, read as they are asked for. Raises FileFault."""
    for _, prompt in read_prompts([ref.path], layout("plain")):
        if isinstance(prompt, Prompt):
            yield preview(prompt)


def key_of(prompt: Prompt) -> str:
    """What prompts have in common that read alike."""
    return " ".join(prompt.text.casefold().split())


_Placed = Sequence[tuple[str, Prompt]]


def _held_out(placed: _Placed, ask: Questions, findings: _Findings) -> None:
    if not ask.against:
        return
    other: dict[str, str] = {}
    try:
        for row, prompt in read_prompts(ask.against, ask.against_by, ask.system, ask.template):
            if isinstance(prompt, Prompt):
                other.setdefault(key_of(prompt), row)
    except FileFault as error:
        raise FileFault(f"prompts that are also in the other set: that set: {error}") from None
    for row, prompt in placed:
        if (where := other.get(key_of(prompt))) is not None:
            findings.add("held_out", row, f"is row {where} of the other set: {prompt.text[:80]!r}")


def _too_long(placed: _Placed, ask: Questions, findings: _Findings) -> int | None:
    """The longest prompt's tokens."""
    if ask.model is None:
        return None
    try:
        tokenizer = ChatTokenizer(ask.model)
        prompts = [prompt for _, prompt in placed]
        some = (prompts[start : start + 1000] for start in range(0, len(prompts), 1000))  # not all tokens at once
        counts = [len(tokens) for part in some for tokens in tokenizer.encode(part)]
    except FileFault as error:
        raise FileFault(f"{LENGTHS}: {error}") from None
    limit = ask.max_tokens or tokenizer.limit
    for (row, _), n in zip(placed, counts, strict=True):
        if limit is not None and n > limit:
            findings.add("too_long", row, f"has {n:,} tokens, chat template included; accepted are {limit:,}")
    return max(counts, default=None)


def _bad_answers(placed: _Placed, ask: Questions, findings: _Findings) -> None:
    """Each answer by the reward that its row names, else by `ask.reward`."""
    by_reward: dict[str | None, list[tuple[str, Prompt]]] = {}
    for row, prompt in placed:
        by_reward.setdefault(prompt.reward, []).append((row, prompt))
    unknown = []
    for name, own in by_reward.items():
        reward = ask.reward if name is None else ask.rewards.get(name) or _usual(name)
        if reward is None:
            unknown += [f"{len(own):,} name {name!r}"] if name is not None else []
            continue
        by = "" if name is None else f"by the reward {name!r}: "
        for (row, prompt), why in zip(own, unusable(reward, [p.answer for _, p in own]), strict=True):
            if why is not None:
                findings.add("bad_answer", row, f"{by}{why}: {prompt.answer[:120]!r}")
    if unknown:
        named = ", ".join(unknown[:5])
        raise FileFault(f"reference answers of rows whose reward is not known here ({named}); give letter=choice")


def _usual(name: str) -> RewardConfig | None:
    """The reward of that name with its defaults; None when there is none."""
    try:
        return parse_reward({"name": name})
    except ConfigProblems:
        return None


def unusable(reward: RewardConfig, answers: Sequence[str]) -> list[str | None]:
    """Why the reward can't use each reference answer, or what is doubtful about it; None where nothing is. No response
    was ever right or wrong here: a verdict on one that no reference equals is failed exactly where the reference itself
    is at fault."""
    reasons: list[str | None] = [None] * len(answers)
    for part in parts_of(reward)[0]:
        # A look says what is wrong with a reference; code and tasks are not run for that.
        looks = [part.reward.look(Response("\\boxed{7919.7919}", answer)) for answer in answers]
        reasons = [reason or _why(look) for reason, look in zip(reasons, looks, strict=True)]
        # Mathematics that is more than a number or a plain formula has to be parsed.
        if isinstance(part.reward, MathReward) and (left := [i for i, v in enumerate(looks) if isinstance(v, tuple)]):
            with Scorer(part.reward, workers=min(8, os.cpu_count() or 1)) as scorer:
                scores = scorer.score([Response("\\boxed{\\operatorname{nothing}_{7919}}", answers[i]) for i in left])
            for i, score in zip(left, scores, strict=True):
                reasons[i] = reasons[i] or _why(score.parts["math"])
    return reasons


def _why(look: Verdict | Question) -> str | None:
    if not isinstance(look, Verdict):
        return None
    return look.why if look.failed else look.doubt
