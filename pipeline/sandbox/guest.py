"""A program for the inside of a sandbox: `guest.py ROOT LIMITS USER`. Runs foreign code against its tests.

Reads {"code", "inputs", "asserts", "seconds"} from stdin. Each test runs in a fork of its own. Prints `ready`, then a
list with {"output"} or {"error"} for each test. What is printed is compared outside, where the program has never been.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import signal
import sys
import tempfile
import time
import traceback
from typing import Any

_MOST_OUTPUT = 1 << 18


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    from pipeline.sandbox.limits import Limits, enter

    enter(Limits(**json.loads(sys.argv[2])), int(sys.argv[3]))
    work = json.loads(sys.stdin.buffer.read())
    reply = os.fdopen(os.dup(1), "w")
    reply.write("ready\n")
    reply.flush()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    end = time.monotonic() + work["seconds"]
    over = f"the time limit of {work['seconds']:g} s was over"
    results = [_run(work["code"], given, None, end, over) for given in work["inputs"]]
    results += [_run(work["code"], "", test, end, over) for test in work["asserts"]]
    reply.write(json.dumps(results))
    reply.flush()


def _run(code: str, given: str, test: str | None, end: float, over: str) -> dict[str, Any]:
    """One test: the program reads `given`; with `test`, that runs after it."""
    left = end - time.monotonic()
    if left <= 0:
        return {"error": f"not run: {over}"}
    read, write = os.pipe()
    word = secrets.token_hex(16)
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stdout:
        stdin.write(given.encode(errors="surrogateescape"))
        stdin.seek(0)
        fork = os.fork()
        if fork == 0:
            os.close(read)
            os.setsid()
            os.dup2(stdin.fileno(), 0)
            os.dup2(stdout.fileno(), 1)
            _be_the_program(code, test, write, word)
        os.close(write)
        told, late = b"", False
        while select.select([read], [], [], max(0.0, end - time.monotonic()))[0]:
            chunk = os.read(read, 4096)
            told += chunk
            if not chunk or len(told) > 65536:
                break
        else:
            late = True
        os.close(read)
        try:
            os.killpg(fork, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(fork, 0)
        stdout.seek(0)
        output = stdout.read(_MOST_OUTPUT).decode(errors="replace")
    if late:
        return {"error": over}
    message = told.decode(errors="replace")
    # The word says that the end was reached: a program that just exits in good order has passed nothing.
    if message == word or (test is None and message in ("", "exit")):
        return {"output": output}
    return {"error": message[-300:] or "ended before the test was over"}


def _be_the_program(code: str, test: str | None, write: int, word: str) -> None:
    """Never returns."""
    told = word
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    try:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(code, "program", "exec"), names)
        if test is not None:
            exec(compile(test, "test", "exec"), names)
        sys.stdout.flush()
    except SystemExit:
        sys.stdout.flush()
        told = "exit" if test is None else "the program exited"
    except BaseException as error:
        told = "".join(traceback.format_exception_only(error)).strip() or type(error).__name__
    try:
        os.write(write, told.encode(errors="replace")[-4000:])
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
