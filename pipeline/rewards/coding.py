from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from tempfile import TemporaryFile
from typing import Any, Literal, NamedTuple

from pydantic import Field

from pipeline import sandbox
from pipeline.rewards.types import Desk, Question, Response, Reward, Verdict, failed, shown
from pipeline.sandbox import ROOT, clean_environment
from pipeline.sandbox.limits import Limits

_BLOCK = re.compile(r"```(?:python|py|Python)?[ \t]*\n(.*?)```", re.DOTALL)
_MOST_CODE = 200_000
_READY = b"ready\n"
_START_S = 10.0  # of a sandbox on a busy machine
_GUEST = ROOT / "pipeline" / "sandbox" / "guest.py"


class Tests(NamedTuple):
    """inputs and outputs: what the program reads and must print. asserts: Python that runs after the program. first:
    the first of these in words, where they are calls."""

    inputs: list[str]
    outputs: list[str]
    asserts: list[str]
    first: str = ""


class CodeReward(Reward):
    """1 when the Python program in the response passes all unit tests of the reference answer, else 0.

    The program is the last ```python block, else the whole response. The reference answer is Python with asserts, a
    JSON list of asserts, or JSON {"inputs": [...], "outputs": [...]} of a program that reads and prints; with "fn_name"
    beside them, of a function that is called. Every response runs in a sandbox of its own, without network. Too slow,
    too big or crashed is wrong; a test that can't be read is failed, and so is every response if the sandbox can't be
    kept up.
    """

    name: Literal["code"] = "code"
    timeout_s: float = Field(10.0, gt=0, le=600, description="Seconds that all tests of a response may take together.")
    memory_mb: int = Field(512, ge=64, description="Memory of each of its processes, and of its files together.")
    processes: int = Field(8, ge=1, le=256, description="Processes and threads at a time.")
    partial: bool = Field(False, description="The share of tests passed instead of all or nothing.")

    def look(self, response: Response) -> Verdict | Question:
        if (tests := read_tests(response.answer)) is None:
            return failed("the reference answer has no tests that can be read", expected=shown(response.answer))
        code = program_of(response.text)
        if not code.strip() or len(code) > _MOST_CODE:
            why = f"the program has {len(code):,} characters; accepted are 1 to {_MOST_CODE:,}"
            return Verdict(0.0, why, expected=_words(tests))
        return code, response.answer

    def open_desk(self, workers: int) -> Desk:
        sandbox.check()
        return Sandboxes(self, workers)


class Sandboxes:
    """Runs programs, each in a fresh sandbox."""

    def __init__(self, reward: CodeReward, workers: int) -> None:
        self.workers, self._reward, self._closed = workers, reward, False
        self._running: set[subprocess.Popen[bytes]] = set()

    def answer(self, question: Question) -> Verdict:
        code, answer = question
        tests = read_tests(answer)
        assert tests is not None, "a question is only asked about tests that can be read"
        work = {"code": code, "inputs": tests.inputs, "asserts": tests.asserts, "seconds": self._reward.timeout_s}
        try:
            reply = self._run(json.dumps(work).encode())
        except (ValueError, OSError) as error:
            return failed(shown(str(error)), shown(code), _words(tests))
        return self._judge(reply, code, tests)

    def _run(self, work: bytes) -> list[dict[str, Any]] | None:
        """What each test gave, in order; None when the time was up or the guest was ended. Raises ValueError when the
        sandbox did not start."""
        if self._closed:
            raise ValueError("the reward is closed")
        reward = self._reward
        cpu_s = int(reward.timeout_s * reward.processes) + 1
        limits = Limits(reward.memory_mb, reward.processes, files_mb=16, open_files=64, cpu_s=cpu_s)
        guest = [sys.executable, "-I", str(_GUEST), str(ROOT), json.dumps(asdict(limits)), str(sandbox.new_user())]
        # Files, not pipes: the limit on files then bounds what the guest can make us read.
        with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
            given.write(work)
            given.seek(0)
            process = subprocess.Popen(
                [*sandbox.command(limits), *guest], stdin=given, stdout=out, stderr=err, env=clean_environment()
            )
            self._running.add(process)
            try:
                process.wait(timeout=reward.timeout_s + _START_S)
            except subprocess.TimeoutExpired:
                return None
            finally:
                process.kill()
                process.wait()
                self._running.discard(process)
            out.seek(0)
            err.seek(0)
            told = out.read()
            if not told.startswith(_READY):
                raise ValueError(f"the sandbox did not start: {err.read(300).decode(errors='replace').strip()}")
        try:
            return list(json.loads(told[len(_READY) :]))
        except (ValueError, TypeError):
            return None  # ended from inside, or by a limit

    def _judge(self, reply: list[dict[str, Any]] | None, code: str, tests: Tests) -> Verdict:
        n = len(tests.inputs) + len(tests.asserts)
        if reply is None:
            return Verdict(0.0, f"not done within {self._reward.timeout_s:g} s, or ended", shown(code), _words(tests))
        passed, first = 0, ""
        for i, result in enumerate(reply[:n]):
            wanted = tests.outputs[i] if i < len(tests.inputs) else None
            why = str(result.get("error", ""))
            if not why and wanted is not None and not same_output(str(result.get("output", "")), wanted):
                why = f"printed {str(result.get('output', ''))!r}, wanted {wanted!r}"
            passed += not why
            if why and not first:
                first = f"; test {i + 1}: {shown(why)}"
        value = passed / n if self._reward.partial else float(passed == n)
        return Verdict(value, f"{passed} of {n} tests passed{first}", shown(code), _words(tests))

    def close(self) -> None:
        self._closed = True
        for process in list(self._running):
            process.kill()


def program_of(text: str) -> str:
    """The last block of Python in the response, else the whole of it."""
    start = text.rfind("```", 0, text.rfind("```"))
    blocks = _BLOCK.findall(text, max(0, start)) if start >= 0 else []
    return str(blocks[-1]) if blocks else text


def read_tests(answer: str) -> Tests | None:
    """None when there are no tests, or they are in no form that we know."""
    try:
        given = json.loads(answer)
    except (ValueError, RecursionError):
        try:
            compile(answer, "tests", "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return Tests([], [], [answer]) if "assert" in answer else None
    if isinstance(given, list) and given and all(isinstance(t, str) for t in given):
        return Tests([], [], given)
    if not isinstance(given, dict):
        return None
    inputs, outputs = given.get("inputs"), given.get("outputs")
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        return None
    if given.get("fn_name"):
        return _calls(given["fn_name"], inputs, outputs)
    if not all(isinstance(text, str) for text in inputs + outputs):
        return None
    return Tests(inputs, outputs, [])


_CALL = """
import json as _json
_arguments, _wanted = _json.loads({arguments!r}), _json.loads({wanted!r})
_found = (Solution().{name} if "Solution" in globals() else {name})(*_arguments)
_found = _json.loads(_json.dumps(_found))
assert _found in _wanted, f"{name} returned {{_found!r}}, wanted {{_wanted[0]!r}}"
"""


def _calls(name: object, inputs: list[Any], outputs: list[Any]) -> Tests | None:
    """Tests that call a function, or a method of the class Solution, as in APPS and LiveCodeBench.

    An input is the list of its arguments, or text with one argument in JSON a line; an output is the value, the value
    in a list of its own (APPS), or JSON text of it. Tuples and lists are the same.
    """
    if not isinstance(name, str) or not name.isidentifier():
        return None
    asserts: list[str] = []
    first = ""
    try:
        for given, wanted in zip(inputs, outputs, strict=True):
            arguments = [json.loads(line) for line in given.splitlines()] if isinstance(given, str) else given
            if not isinstance(arguments, list):
                return None
            values = [json.loads(wanted)] if isinstance(wanted, str) else [wanted]
            if isinstance(wanted, list) and len(wanted) == 1:
                values += wanted
            first = first or f"{name}({', '.join(map(repr, arguments))}) == {values[-1]!r}"
            asserts.append(_CALL.format(name=name, arguments=json.dumps(arguments), wanted=json.dumps(values)))
    except (ValueError, RecursionError):
        return None
    return Tests([], [], asserts, first)


def same_output(given: str, wanted: str) -> bool:
    """Line by line, without the white space at line ends and at the end."""
    lines, theirs = given.rstrip().splitlines(), wanted.rstrip().splitlines()
    return [line.rstrip() for line in lines] == [line.rstrip() for line in theirs]


def _words(tests: Tests) -> str:
    if not tests.asserts:
        return f"{len(tests.inputs)} inputs with outputs"
    more = f", and {len(tests.asserts) - 1} more" if len(tests.asserts) > 1 else ""
    return shown(tests.first or tests.asserts[0]) + more
