"""Files from outside are read apart (pipeline.sandbox.apart), in the sandbox. Whatever a file does to the reader, the
process that asked goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ValidationError

from pipeline.config import MappingName, parse_reward
from pipeline.prompts.convert import line_of
from pipeline.prompts.mappings import layout
from pipeline.prompts.report import PromptReport, Questions, examine
from pipeline.prompts.tokenizer import FILES
from pipeline.prompts.types import FileFault
from pipeline.sandbox.apart import ReaderFailed, read_apart
from pipeline.sandbox.limits import Limits

MEMORY_MB = 4096
SECONDS = 300.0


class Job(BaseModel):
    """paths: the files, whose names' endings tell their formats. out: where the prompts are written if they are
    accepted, as JSONL in our columns, sorted by id. against, model: as in report.Questions; reward, rewards: as in
    configs."""

    paths: list[Path]
    mapping: MappingName = "plain"
    prompt_key: str = "prompt"
    answer_key: str = "answer"
    tags_key: str = "tags"
    reward_key: str = "reward"
    out: Path | None = None
    against: Path | None = None
    reward: dict[str, object] | None = None
    rewards: dict[str, dict[str, object]] = {}
    model: Path | None = None


class Read(BaseModel):
    """version: 16 hex digits of what was written, the same for equal prompts in any format and order."""

    report: PromptReport
    version: str | None = None
    n_bytes: int = 0


def read(job: Job) -> Read:
    """Apart: the reader sees the files, `against` and the files of a tokenizer in `model`, and nothing else of ours.

    Raises FileFault: it took too long, too much memory, or the reader broke down. Raises NoSandbox, OSError.
    """
    readable = [*job.paths, *([job.against] if job.against else [])]
    if job.model is not None:
        readable += [job.model / name for name in FILES if os.path.isfile(job.model / name)]
    for path in job.paths:
        if not path.stat().st_mode & 0o004:
            path.chmod(0o644)  # when we are root, who reads it is not us
    limits = Limits(memory_mb=MEMORY_MB, processes=256, files_mb=2048, open_files=1024, cpu_s=int(SECONDS) + 1)
    try:
        told = read_apart("pipeline.prompts.child", job.model_dump_json(), readable, limits, SECONDS, job.out)
        report = PromptReport.model_validate_json(told)
    except ReaderFailed as error:
        if error.seconds is not None:
            raise FileFault(f"takes over {error.seconds:g} s to read; split it") from None
        raise FileFault("broke the reader, or needs more memory than a file may take; split it") from None
    except ValidationError:
        raise FileFault("broke the reader") from None
    if job.out is None or not report.accepted:
        return Read(report=report)
    with job.out.open("rb") as written:
        version = hashlib.file_digest(written, "sha256").hexdigest()[:16]
    return Read(report=report, version=version, n_bytes=job.out.stat().st_size)


def inside(work: str, out: IO[bytes]) -> str:
    """In the sandbox: the report as JSON; accepted prompts go to `out`, sorted by id, so that equal sets are equal."""
    job = Job.model_validate_json(work)
    by = dataclasses.replace(layout("plain"), prompt=job.prompt_key, answer=job.answer_key, own_tags=job.tags_key,
                             reward=job.reward_key) if job.mapping == "plain" else layout(job.mapping)  # fmt: skip
    ask = Questions(
        against=[job.against] if job.against else (),
        reward=parse_reward(job.reward) if job.reward else None,
        rewards={name: parse_reward(reward) for name, reward in job.rewards.items()},
        model=job.model,
    )
    report, prompts = examine(job.paths, by, ask)
    if report.accepted:
        for prompt in sorted(prompts, key=lambda p: p.id):
            out.write(line_of(prompt).encode() + b"\n")
    return report.model_dump_json()
