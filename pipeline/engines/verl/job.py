"""Inside a Ray job: `python -m pipeline.engines.verl.job FILE --log LOG --patience S -- COMMAND...`.

Runs the trainer's command, its output in LOG, and listens to its follower (`submit.py`), which speaks through FILE;
both are on shared storage. A trainer that hangs in the middle of anything is killed all the same: this process does
nothing else. Its exit status is the trainer's, 128 + n when signal n ended it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

from pipeline.lifeline import die_with

MARK = "PILOT_RAY_JOB"  # in the environment of every process of the job, on whatever node
POLL_S = 0.5

Word = Literal["go", "stop"]


def say(file: Path, word: Word) -> None:
    """The follower's word. Each time it differs: clocks of two machines need not agree."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({"word": word, "time": time.time_ns()}), encoding="utf-8")
    draft.replace(file)


def run(file: Path, log: Path, patience_s: float, command: list[str]) -> int:
    """Run the command until it ends. Returns its exit status as subprocess has it."""
    parent = os.getpid()
    with log.open("ab", buffering=0) as output:
        trainer = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, preexec_fn=lambda: die_with(parent)
        )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: trainer.send_signal(received))
    heard, heard_at, asked = "", time.monotonic(), False
    while True:
        try:
            return trainer.wait(POLL_S)
        except subprocess.TimeoutExpired:
            pass
        try:
            said = file.read_text(encoding="utf-8")
        except OSError as error:  # storage that is away is silence
            said = heard
            print(f"{file} cannot be read: {error}", flush=True)
        if said != heard:
            heard, heard_at = said, time.monotonic()
        elif time.monotonic() > heard_at + patience_s:
            print(f"Nobody has followed this job for {patience_s:g} s: the trainer is killed", flush=True)
            trainer.kill()
            continue
        if not asked and heard and json.loads(heard)["word"] == "stop":
            trainer.terminate()
            asked = True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pipeline.engines.verl.job")
    parser.add_argument("file", type=Path)
    parser.add_argument("--log", type=Path, required=True, help="file for the command's output")
    parser.add_argument("--patience", type=float, required=True, help="seconds without a new word from the follower")
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    if not arguments.log.parent.is_dir():
        where = f"{arguments.log.parent} is not on {socket.gethostname()}"
        parser.error(f"{where}: run directories (PILOT_HOME) must be on storage that the cluster's nodes share")
    code = run(arguments.file, arguments.log, arguments.patience, arguments.command)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
