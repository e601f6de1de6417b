"""Files from outside are read in a process of their own: bounded in memory and time, without our environment. Whatever
a file does to the reader, the process that asked goes on."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel

from pipeline.config import ROOT, MappingName, parse_reward
from pipeline.lifeline import die_with
from pipeline.prompts.convert import write_jsonl
from pipeline.prompts.mappings import layout
from pipeline.prompts.report import PromptReport, Questions, examine
from pipeline.prompts.types import FileFault
from pipeline.sandbox import clean_environment
from pipeline.sandbox.limits import Limits, enter

MEMORY_MB = 4096
SECONDS = 300.0
_MAX_REPLY = 1 << 22


class Job(BaseModel):
    """path: the file, whose name's ending tells its format. out: where the prompts are written if they are accepted, as
    JSONL in our columns, sorted by id. against, model: as in report.Questions; reward: a reward section of a config."""

    path: Path
    mapping: MappingName = "plain"
    prompt_key: str = "prompt"
    answer_key: str = "answer"
    tags_key: str = "tags"
    reward_key: str = "reward"
    out: Path | None = None
    against: Path | None = None
    reward: dict[str, object] | None = None
    model: Path | None = None
    parent: int = 0


class Read(BaseModel):
    """version: 16 hex digits of what was written, the same for equal prompts in any format and order."""

    report: PromptReport
    version: str | None = None
    n_bytes: int = 0


def read(job: Job) -> Read:
    """In a child. Raises FileFault: it took too long, too much memory, or the reader broke down."""
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.prompts.child import main; main()"
    told = job.model_copy(update={"parent": os.getpid()}).model_dump_json()
    with tempfile.TemporaryFile() as reply:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", start], stdin=subprocess.PIPE, stdout=reply, stderr=subprocess.DEVNULL,
            env=clean_environment(), start_new_session=True,
        )  # fmt: skip
        try:
            process.communicate(told.encode(), timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise FileFault(f"takes over {SECONDS:g} s to read; split it") from None
        reply.seek(0)
        answer = reply.read(_MAX_REPLY)
    if process.returncode != 0:
        raise FileFault("broke the reader, or needs more memory than a file may take; split it") from None
    return Read.model_validate_json(answer)


def main() -> None:
    job = Job.model_validate_json(sys.stdin.buffer.read())
    die_with(job.parent)
    enter(Limits(memory_mb=MEMORY_MB, files_mb=2048, cpu_s=int(SECONDS)))
    by = dataclasses.replace(layout("plain"), prompt=job.prompt_key, answer=job.answer_key, own_tags=job.tags_key,
                             reward=job.reward_key) if job.mapping == "plain" else layout(job.mapping)  # fmt: skip
    ask = Questions(
        against=[job.against] if job.against else (),
        reward=parse_reward(job.reward) if job.reward else None,
        model=job.model,
    )
    report, prompts = examine([job.path], by, ask)
    done = Read(report=report)
    if report.accepted and job.out is not None:
        write_jsonl(tuple(prompts), job.out)
        content = job.out.read_bytes()
        done = Read(report=report, version=hashlib.sha256(content).hexdigest()[:16], n_bytes=len(content))
    sys.stdout.write(json.dumps(done.model_dump(mode="json")))
