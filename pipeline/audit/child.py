"""An audit in a child process with hard limits: of time, memory and files. For logs that came from elsewhere: whatever
reading them does, the process that asked goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from pipeline.audit.report import AuditSettings, Report
from pipeline.audit.rows import BadLog
from pipeline.sandbox import ROOT, clean_environment
from pipeline.sandbox.limits import Limits


@dataclass(frozen=True, slots=True)
class Bounds:
    """seconds: by the clock, and of the processor. memory_mb: address space."""

    seconds: int = 300
    memory_mb: int = 4096


def bounded(path: Path, settings: AuditSettings, bounds: Bounds = Bounds()) -> Report:
    """The report. Raises BadLog: also when it takes too long or too much. Ends with the thread that asked."""
    limits = Limits(memory_mb=bounds.memory_mb, files_mb=1, cpu_s=bounds.seconds)
    told = {
        "path": str(path),
        "settings": settings.model_dump(),
        "limits": asdict(limits),
        "parent": os.getpid(),
    }
    # -I: neither the current folder nor PYTHONPATH decide what it imports.
    start = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pipeline.audit.child import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", start], input=json.dumps(told).encode(), capture_output=True,
            env=clean_environment(), timeout=bounds.seconds, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise BadLog(_too_much(f"takes more than {bounds.seconds} s")) from None
    try:
        answer = json.loads(done.stdout)
    except ValueError:  # killed by a limit, or by what it read
        raise BadLog(_too_much(f"ended without an answer (status {done.returncode})")) from None
    if "error" in answer:
        raise BadLog(answer["error"])
    return Report.model_validate(answer)


def _too_much(what: str) -> str:
    return f"the audit of this log {what}; give fewer files or fewer replays, or run `./pilot audit` on your machine"


def main() -> None:
    """The inside of the child."""
    from pipeline.lifeline import die_with
    from pipeline.sandbox.limits import enter

    told = json.loads(sys.stdin.buffer.read())
    die_with(told["parent"])
    limits = Limits(**told["limits"])
    enter(limits)
    try:
        from pipeline.audit.study import study

        answer = study(Path(told["path"]), AuditSettings.model_validate(told["settings"])).model_dump_json()
    except BadLog as error:
        answer = json.dumps({"error": str(error)})
    except MemoryError:
        answer = json.dumps({"error": _too_much(f"takes more than {limits.memory_mb:,} MiB")})
    sys.stdout.write(answer)
