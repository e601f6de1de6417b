"""An audit apart (pipeline.sandbox.apart): in the sandbox, with limits of time and memory. For logs that came from
elsewhere: whatever reading them does, the process that asked goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from pipeline.audit.report import AuditSettings, Report
from pipeline.audit.rows import BadLog
from pipeline.sandbox.apart import ReaderFailed, read_apart
from pipeline.sandbox.limits import Limits


@dataclass(frozen=True, slots=True)
class Bounds:
    """seconds: by the clock, and of the processor. memory_mb: address space."""

    seconds: int = 300
    memory_mb: int = 4096


def bounded(path: Path, settings: AuditSettings, bounds: Bounds = Bounds()) -> Report:
    """The report. Raises BadLog: also when it takes too long or too much. Ends with the thread that asked.

    When we are root the files have to be readable for everyone: who reads them is not us. Raises NoSandbox."""
    limits = Limits(bounds.memory_mb, processes=64, files_mb=16, open_files=4096, cpu_s=bounds.seconds + 1)
    work = json.dumps({"path": str(path.absolute()), "settings": settings.model_dump()})
    readable = [path] if path.exists() else []  # what is not there is told by the reader, too
    try:
        answer = json.loads(read_apart("pipeline.audit.child", work, readable, limits, bounds.seconds))
    except ReaderFailed as error:
        what = "ended without an answer" if error.seconds is None else f"takes more than {error.seconds:g} s"
        raise BadLog(_too_much(what)) from None
    except ValueError:
        raise BadLog(_too_much("ended without an answer")) from None
    if "error" in answer:
        raise BadLog(answer["error"])
    return Report.model_validate(answer)


def _too_much(what: str) -> str:
    return f"the audit of this log {what}; give fewer files or fewer replays, or run `./pilot audit` on your machine"


def inside(work: str, _: IO[bytes]) -> str:
    """In the sandbox."""
    told = json.loads(work)
    try:
        from pipeline.audit.study import study

        return study(Path(told["path"]), AuditSettings.model_validate(told["settings"])).model_dump_json()
    except BadLog as error:
        return json.dumps({"error": str(error)})
    except MemoryError:
        return json.dumps({"error": _too_much("takes more memory than it may have")})
