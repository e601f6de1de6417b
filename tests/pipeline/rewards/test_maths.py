from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from pipeline.rewards import Response, Scorer, tried
from pipeline.rewards.latex import final_boxes, last_boxed
from pipeline.rewards.maths import MathReward, compare_plainly, serve
from pipeline.rewards.values import differ


@pytest.fixture(scope="module")
def scorer():
    with Scorer(MathReward(timeout_s=20), workers=2) as scorer:
        yield scorer


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1}, no, \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed {7}", "7"),
        (r"$\boxed 7$", "7"),
        (r"\boxed{1} and then \boxed{2", "1"),
        (r"\fbox{3}", "3"),
        (r"\boxed", None),
        ("nothing", None),
    ],
)
def test_the_last_closed_box_counts(text, inside):
    assert last_boxed(text) == inside


def test_boxes_that_belong_together():
    assert final_boxes(r"first \boxed{9}. Then $\boxed{1}$, $\boxed{2}$ and $\boxed{3}$.") == ["1", "2", "3"]
    assert final_boxes(r"\(\boxed{1}\) \quad \text{and} \quad \(\boxed{-2}\).") == ["1", "-2"]
    assert final_boxes("\\boxed{4}\n\n**Final**\n\\boxed{4}") == ["4"] == final_boxes("\\boxed{3}. \\boxed{4}")
    assert final_boxes(r"\boxed{1} is one root, so the answer is \boxed{2}") == ["2"]


@pytest.mark.parametrize(
    ("response", "answer", "expected"),
    [
        (r"\boxed{42}", "42", 1),
        (r"\boxed{42.0}", "42", 1),
        (r"\boxed{1,234}", "1234", 1),
        (r"\boxed{\dfrac{1}{2}}", r"\frac12", 1),
        (r"\boxed{0.5}", r"\frac{1}{2}", 1),
        (r"\boxed{\frac{2}{4}}", "1/2", 1),
        (r"\boxed{0.333333}", r"\frac{1}{3}", 1),
        (r"\boxed{0.33}", r"\frac{1}{3}", 0),
        (r"\boxed{2\sqrt{2}}", r"\sqrt{8}", 1),
        (r"\boxed{(x+1)^2}", "x^2+2x+1", 1),
        (r"\boxed{(x+1)^2}", "x^2+1", 0),
        (r"\boxed{90}", r"90^\circ", 1),
        (r"\boxed{(1,2)}", "(2,1)", 0),
        (r"\boxed{1,2}", "2,1", 1),
        (r"\boxed{1} and \boxed{2}", "1,2", 1),
        (r"\boxed{1}, wait, no: \boxed{2}", "1", 0),
        (r"\boxed{x=5}", "5", 1),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", 1),
        (r"\boxed{\text{Carla}}", r"\text{Evelyn}", 0),
        ("The answer is 42.", "42", 1),
        ("The answer is $\\frac{1}{2}$.", "0.5", 1),
        ("No idea.", "42", 0),
        ("", "42", 0),
        (r"\boxed{}", "42", 0),
        (r"\boxed{42}", r"$\boxed{42}$", 1),
        (r"\boxed{42}", "$42$", 1),
        (r"\boxed{\$36}", r"\$36", 1),
        (r"\boxed{36}", r"\$36", 1),
        (r"\boxed{025}", "25", 1),
        (r"\boxed{32, 349}", "32349", 0),
        ("28 percent", r"$28\%$", 1),
        ("It is at $12:00$", "$12:00$", 1),
        (r"\boxed{1,2}", "12", 0),
        (r"\boxed{-\frac{1}{2}}", "-1/2", 1),
        (r"\boxed{\frac{1}{0}}", "1", 0),
        (r"\boxed{\left( 3, \frac{\pi}{2} \right)}", r"(3,\frac{\pi}{2})", 1),
        (r"\boxed{\text{Evelyn}}", "Evelyn", 1),
        (r"\boxed{\sqrt2}", r"\sqrt{2}", 1),
        (r"\boxed{1 + x}", "x + 1", 1),
        (r"\boxed{\{1, 2\}}", r"\{ 1,2 \}", 1),
        (r"\boxed{42}", r"so it is \boxed{42}", 1),
    ],
)
def test_math(scorer, response, answer, expected):
    (score,) = scorer.score([Response(response, answer)])
    assert score.reward == score.accuracy == expected, score.parts["math"].why
    assert score.parts["math"].expected


@pytest.mark.parametrize("response", ["42", r"\boxed{42", r"\boxed", "", r"\boxed{" + "{" * 5000])
def test_a_box_may_be_asked_for(response):
    verdict = MathReward(boxed_only=True).look(Response(response, "42"))
    assert verdict.value == 0


def test_a_reference_without_mathematics_is_failed(scorer):
    for answer in ("", " ", "7" * 3000):
        assert scorer.score([Response(r"\boxed{7}", answer)])[0].failed


BROKEN = [r"\frac{1}{", r"\sqrt", r"\frac{}{}", "((", "???", "-", "$", "x=", "x>", "x^", r"\begin{cases}"]
TEXT = ["np.arcsin(10/13)", "E_{1},E_{2}", "t(0,4]", r"m_{\max }=n^{2}-n-1", "The proof is trivial", "½", "A+"]


@pytest.mark.parametrize("answer", BROKEN)
def test_a_reference_that_is_no_answer_is_failed_whatever_the_response(scorer, answer):
    for response in (r"\boxed{3}", f"\\boxed{{{answer}}}", "It is 3."):
        (score,) = scorer.score([Response(response, answer)])
        assert score.failed and "reference answer" in score.parts["math"].why, score.parts["math"].why


def test_a_reference_that_is_only_text_or_letters_still_counts_and_is_doubted(scorer):
    """Names, choices and formulas that math-verify can't read, as published data has them."""
    sure = [r"\text{Evelyn}", r"\text{east}", "B", "(C)", r"\text{(C)}", r"\infty", "[1, 2)", r"\{\}", "10 cm", "0^+"]
    for answer in [*TEXT, "see figure", "Evelyn", "(1, 2", "2^", *sure]:
        alike, other = scorer.score([Response(f"\\boxed{{{answer}}}", answer), Response("\\boxed{7919}", answer)])
        assert (alike.reward, other.reward) == (1, 0), answer
        doubt = other.parts["math"].doubt
        assert (doubt is None) == (answer in sure) and (doubt or "") in other.parts["math"].why, (answer, doubt)


def test_what_a_look_settles_is_what_math_verify_says():
    """The short cut only ever says what the library says, over answers of every kind it settles."""
    r = random.Random(1)

    def some():
        a, b, c = r.randint(1, 12), r.randint(2, 12), r.randint(-4, 4)
        return r.choice(
            [
                f"{a}", f"{c}", f"{a}.{b}", f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}", f"\\sqrt{{{a}}}", f"{a}\\sqrt{{{b}}}",
                f"{a}x+{b}", f"x^{{{b}}}", f"({a},{c})", f"[{a},{b})", f"{c},{a}", f"{a}\\pi",
                f"-\\frac{{\\pi}}{{{b}}}", f"x={a}", f"\\text{{{r.choice(['even', 'odd'])}}}",
                f"{a}^\\circ", f"2^{{{b}}}", f"({a}x+1)(x-{b})",
            ]
        )  # fmt: skip

    compare = serve({})
    settled = 0
    for _ in range(150):
        given, reference = some(), some()
        if r.random() < 0.2:
            given = reference
        verdict = compare_plainly(given, reference)
        if verdict is not None:
            settled += 1
            assert verdict.value == compare(f"\\boxed{{{given}}}", reference).value, (given, reference)
    assert settled > 100


def test_no_value_where_a_formula_is_not_plainly_one_thing():
    for text in (
        "2\\frac{1}{2}",
        "1/2x",
        "x^10",
        "f(2)",
        "1,000",
        "e^2",
        "3 4",
        "\\sqrt12",
        "((((",
        "",
        "1+",
        "2^{9999}",
    ):
        assert not differ(text, "77"), text
    assert differ("1", "(1,2)") and not differ("1,1,2", "1,2,2") and not differ("(1,2)", "[1,2]")


BOMBS = [
    r"\boxed{5^{5^{5^{5^5}}}}",
    r"\boxed{1000000000!}",
    r"\boxed{\sum_{n=1}^{10000000} n^{n}}",
    r"\boxed{(x+y+z)^{3000}}",
]
HOSTILE = [
    r"\boxed{" + "(" * 5000 + "1" + ")" * 5000 + "}",
    r"\boxed{" + "(" * 400 + "1" + ")" * 400 + "}",
    r"\boxed{" + r"\frac{1}{" * 80 + "1" + "}" * 80 + "}",
    r"\boxed{" + "{" * 400 + "}" * 400 + "}",
    "9" * 1_000_000,
    r"\boxed{" + "9" * 1_000_000 + "}",
    r"\boxed{" + "9" * 900 + "}",
    "\\boxed{\x1b[2J\x00 1}",
    "\\boxed{\ud800}",
    "\\boxed{" * 100_000,
    "{" * 1_000_000,
    "$" * 1_000_000,
    "the answer is " * 100_000,
    r"\boxed{\input{/etc/passwd}}",
    r"\boxed{__import__('os').system('touch /tmp/pilot-was-here')}",
    *BOMBS,
]


def test_hostile_answers_get_a_verdict_and_harm_nobody():
    with Scorer(MathReward(timeout_s=2), workers=2) as scorer:
        scorer.score([Response("\\boxed{x < 2}", "x > 2")] * 2)  # the processes are up
        start = time.monotonic()
        scores = scorer.score([Response(hostile, "x+y^2") for hostile in HOSTILE])
        assert time.monotonic() - start < 15 + 2 * len(BOMBS)
        for hostile, score in zip(HOSTILE, scores, strict=True):
            verdict = score.parts["math"]
            assert verdict.value == 0 or verdict.failed, hostile[:40]
            assert f"{verdict.why}{verdict.extracted}{verdict.expected}".isprintable()
            if hostile in BOMBS:
                assert verdict.failed and verdict.why == "no verdict within 2 s"
        assert scorer.score([Response("\\boxed{x+1-x < x}", "1 < x")])[0].reward == 1
    assert not os.path.exists("/tmp/pilot-was-here")


def test_a_hanging_answer_delays_nobody():
    with Scorer(MathReward(timeout_s=30), workers=2) as scorer:
        scorer.score([Response(f"\\boxed{{{i} < x}}", "x > 2") for i in range(4)])
        hang = scorer.rules[None].asking["math"].threads.submit(scorer.score, [Response(BOMBS[0], "x+y^2")])
        others = scorer.score([Response(f"\\boxed{{{i} \\le x}}", "x \\ge 3") for i in range(20)])
        assert [s.reward for s in others].index(1.0) == 3 and sum(s.reward for s in others) == 1
        assert not hang.done()


def test_a_process_is_bounded_knows_no_secrets_and_when_it_dies_fails_only_its_answer(monkeypatch):
    """Killed over a question: that one is failed, the next is answered; killed while idle: nobody notices."""
    for name in ("DATABASE_URL", "REDIS_URL", "HF_TOKEN", "OPENAI_API_KEY", "PILOT_HOME"):
        monkeypatch.setenv(name, "secret-of-ours")
    monkeypatch.setenv("PILOT_SUPERVISED_RUN", "run:1")
    with Scorer(MathReward(timeout_s=60), workers=1) as scorer, ThreadPoolExecutor(1) as meanwhile:
        assert scorer.score([Response("\\boxed{1 < x}", "x > 2")])[0].reward == 0
        (process,) = scorer.rules[None].asking["math"].desk._all
        for member in (found := psutil.Process(process._process.pid), *found.children()):
            environment = member.environ()
            assert "secret-of-ours" not in environment.values() and environment["PILOT_SUPERVISED_RUN"] == "run:1"
            assert member.rlimit(psutil.RLIMIT_AS) == (2048 << 20, 2048 << 20)
        asked = meanwhile.submit(scorer.score, [Response(BOMBS[0], "x+y^2")])
        (fork,) = found.children()
        while fork.cpu_times().user < 0.2:
            time.sleep(0.05)
        fork.kill()
        (score,) = asked.result(timeout=60)
        assert score.failed and score.parts["math"].why == "the reward process died (signal 9)"
        assert scorer.score([Response("\\boxed{3 < x}", "x > 3")])[0].reward == 1
        assert process.usable
        process._process.kill()
        process._process.wait()
        assert scorer.score([Response("\\boxed{4 < x}", "x > 4")])[0].reward == 1


def test_reward_processes_die_with_a_trainer_that_is_killed():
    """Even one that is lost in a computation, which would never notice that its pipe is closed."""
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from pipeline.rewards import *; from pipeline.rewards.maths import MathReward\n"
        "scorer = Scorer(MathReward(timeout_s=300), workers=1)\n"
        "scorer.score([Response('\\\\boxed{1 < x}', 'x > 2')]); print('up', flush=True)\n"
        f"scorer.score([Response({BOMBS[0]!r}, 'x+y^2')])\n"
    )
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert trainer.stdout.readline() == b"up\n"
        family = psutil.Process(trainer.pid).children(recursive=True)
        assert len(family) == 2
        while max(p.cpu_times().user for p in family if p.is_running()) < 0.5:
            time.sleep(0.05)
    finally:
        trainer.send_signal(signal.SIGKILL)
        trainer.wait()
    gone, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


def test_a_failed_verdict_tells_what_it_was_about_and_the_limit_that_was_applied():
    """Tried alone with its own limit; `seconds` are those of the comparison, not of starting a process."""
    (result,) = tried(MathReward(timeout_s=2), [Response(f"So {BOMBS[0]}.", "x+y^2")])
    (part,) = result.parts
    assert result.failed and result.reward is part.value is None and part.why == "no verdict within 2 s"
    assert (part.extracted, part.expected) == ("5^{5^{5^{5^5}}}", "x+y^2")
    assert 2 <= result.seconds < 3.5
    (result,) = tried(MathReward(), [Response("\\boxed{y > 3}", "y > 3")])
    assert result.reward == 1 and not result.failed and result.seconds < 1


def test_many_hanging_answers_delay_no_other_that_is_tried_with_them():
    hanging = [f"\\boxed{{{i}^{{5^{{5^{{5^5}}}}}}}}" for i in range(5, 13)]
    ordinary = ["\\boxed{y^2+x}", *(f"\\boxed{{{i} < x}}" for i in range(6)), "\\boxed{}"]
    responses = [Response(text, "x+y^2") for text in (*hanging, *ordinary)]
    start = time.monotonic()
    results = tried(MathReward(timeout_s=4), responses, workers=2, all_s=14)
    assert time.monotonic() - start < 30
    assert [r.reward for r in results] == [None] * 8 + [1] + [0] * 7
    assert results[0].why == "no verdict within 4 s" and 4 <= results[0].seconds < 6
    assert "no verdict within 1 s, and the 14 s of this request were over" in [r.why for r in results]
    assert all(r.parts[0].extracted and r.parts[0].expected == "x+y^2" for r in results[:-1])
