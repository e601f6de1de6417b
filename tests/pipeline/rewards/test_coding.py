from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pipeline.rewards import Response, Scorer
from pipeline.rewards.coding import CodeReward, program_of, read_tests
from tests.pipeline.sandbox import prober

ADD = "assert add(1, 2) == 3\nassert add(-1, 1) == 0"
ECHO = json.dumps({"inputs": ["1 2\n", "5 5\n"], "outputs": ["3\n", "10"]})
CALL = '{"fn_name": "two", "inputs": %s, "outputs": %s}'  # as in APPS and LiveCodeBench
SUMS = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.fixture(scope="module")
def scorer():
    with Scorer(CodeReward(timeout_s=5, memory_mb=256), workers=2) as scorer:
        yield scorer


def verdict(scorer, text, answer):
    (score,) = scorer.score([Response(text, answer)])
    return score.parts["code"]


@pytest.mark.parametrize(
    ("text", "answer", "expected"),
    [
        ("def add(a, b): return a + b", ADD, 1),
        ("First:\n```python\nx\n```\nNo, so:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", ADD, 1),
        ("def add(a, b): return a - b", ADD, 0),
        ("def add(a, b): return a + b", json.dumps(["assert add(1, 2) == 3", "assert add(2, 2) == 4"]), 1),
        ("def add(a, b): retur", ADD, 0),
        ("", ADD, 0),
        (SUMS, ECHO, 1),
        ("print(3)", ECHO, 0),
        ("import sys; print(3); sys.exit(0)", json.dumps({"inputs": [""], "outputs": ["3"]}), 1),
        ("import numpy; print(numpy.arange(3).sum())", json.dumps({"inputs": [""], "outputs": ["3"]}), 1),
        ("def two(x, y): return x, y", CALL % ('["[1]\\n2"]', '["[[1], 2]"]'), 1),
        ("class Solution:\n    def two(self, x, y): return [y, x]", CALL % ("[[1, 2]]", "[[2, 1]]"), 1),
        ("def two(x, y): return x + y", CALL % ("[[1, 2], [3, 4]]", "[[3], [7]]"), 1),
        ("def two(x, y): return x + y", CALL % ("[[1, 2], [3, 4]]", "[[3], [8]]"), 0),
        ("def one(x, y): return x + y", CALL % ("[[1, 2]]", "[3]"), 0),
        ("def two(x): return x", CALL % ("[[1, 2]]", "[3]"), 0),
    ],
)
def test_code(scorer, text, answer, expected):
    got = verdict(scorer, text, answer)
    assert got.value == expected, got.why


def test_what_is_compared_and_a_time_limit_are_told_in_words(scorer):
    got = verdict(scorer, "def two(x, y): return x, y", CALL % ("[[1, [2]], [3, 4]]", '["[1, [2]]", [[3, 4]]]'))
    assert got.value == 1 and got.expected == "two(1, [2]) == [1, [2]], and 1 more"
    assert verdict(scorer, SUMS, ECHO).expected == "2 inputs with outputs"
    with Scorer(CodeReward(timeout_s=1, memory_mb=256), workers=1) as scorer:
        for tests, code in ((ADD, "while True: pass"), (ECHO, "while True: pass"), (ADD, "import time; time.sleep(9)")):
            why = verdict(scorer, code, tests).why
            assert "test 1: the time limit of 1 s was over" in why


@pytest.mark.parametrize("exit", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit", "quit()"])
def test_leaving_before_the_tests_is_no_success(scorer, exit):
    assert verdict(scorer, f"{exit}", ADD).value == 0


@pytest.mark.parametrize("answer", ["", "no tests", "[]", '{"inputs": ["1"], "outputs": []}', "{" * 10_000, "assert ("])
def test_tests_that_cannot_be_read_are_failed(answer):
    assert read_tests(answer) is None
    assert CodeReward().look(Response("print(1)", answer)).failed


def test_the_last_block_is_the_program():
    assert program_of("```python\na\n```\n```\nb\n```\n") == "b\n"
    assert program_of("a = 1") == "a = 1" and program_of("```" * 100_000) == "```" * 100_000


def test_partial_credit_is_the_share_of_tests():
    with Scorer(CodeReward(timeout_s=5, partial=True), workers=1) as scorer:
        got = verdict(scorer, "print(3)", ECHO)
        assert got.value == 0.5 and "1 of 2 tests passed; test 2: printed '3" in got.why


HOSTILE = {
    "hangs": "while True: pass",
    "sleeps": "import time; time.sleep(1000)",
    "eats memory": "x = [0] * 10**10",
    "forks": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "prints": "while True: print('x' * 10**6)",
    "fills the disk": "n = 0\nwhile True:\n    open(f'/tmp/{n}', 'w').write('x' * 10**7); n += 1",
    "fills shared memory": "n = 0\nwhile True:\n    open(f'/dev/shm/{n}', 'w').write('x' * 10**7); n += 1",
    "recurses": "def f(): f()\nf()",
    "kills everybody": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "detaches": "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(1000)\nwhile True: pass",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "null bytes": "x = '\0\x1b[31m'",
    "no Unicode": "x = '\ud800'",
}


def test_hostile_programs_are_wrong_in_time_and_leave_nothing(scorer):
    start = time.monotonic()
    with Scorer(CodeReward(timeout_s=2, memory_mb=256), workers=4) as hostile:
        scores = hostile.score([Response(code, ECHO) for code in HOSTILE.values()])
    assert {name: score.reward for name, score in zip(HOSTILE, scores, strict=True)} == dict.fromkeys(HOSTILE, 0.0)
    assert time.monotonic() - start < 60 and verdict(scorer, SUMS, ECHO).value == 1


def prints(scorer, code):
    """What the program prints, told by the tests' disagreement."""
    return verdict(scorer, code, json.dumps({"inputs": [""], "outputs": ["?"]})).why


def test_a_program_reaches_nothing_of_ours(scorer, told):
    source = Path(prober.__file__).read_text() + f"\nprint(reached(json.loads({json.dumps(told)!r})), os.getuid() != 0)"
    assert "printed '[] True" in prints(scorer, source)
    source = source.replace('told["secrets"]', '["/tmp/mine"]')
    source = source.replace("def reached", "open('/tmp/mine', 'w').write('secret-of-ours')\n\n\ndef reached")
    assert "read /tmp/mine" in prints(scorer, source), "the same question finds what may be read"
