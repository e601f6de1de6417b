"""How our rewards agree with math-verify and with GSM8K's reference answers, over a folder of published data.

    python bench/reward_agreement.py DATA [--json]

DATA holds gsm8k.{train,test}.jsonl, math500.test.jsonl, aime24.test.jsonl, amc23.test.jsonl, olympiadbench.test.jsonl
and minerva_math.test.jsonl. GSM8K: every reference solution must score 1, and 0 with its final number changed; by the
gsm8k and by the math reward. The others: the reference solution or answer must score 1, the next prompt's answer is
compared as well, and each verdict is set beside math-verify's own, called as its documentation shows. Exits 1 when a
GSM8K solution is misjudged. Every disagreement is printed; docs/rewards.md judges them.
"""

import argparse
import importlib
import json
import logging
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import math_verify

from bench.verdict import finish
from pipeline.rewards import Response, Scorer, last_boxed
from pipeline.rewards.gsm8k import Gsm8kReward
from pipeline.rewards.maths import MathReward


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def changed(solution: str) -> str:
    """The solution with another final number."""
    body, _, final = solution.rpartition("####")
    number = final.strip().replace(",", "")
    return f"{body}#### {int(number) + 1}"


def gsm8k(folder: Path, scorer: Scorer, as_box: bool) -> dict[str, int]:
    """Misjudged reference solutions; as_box writes the final number the way a policy is asked to."""
    counts = {"solutions": 0, "right_misjudged": 0, "changed_misjudged": 0}
    for name in ("train", "test"):
        solutions = [row["answer"] for row in rows_of(folder / f"gsm8k.{name}.jsonl")]
        answers = [solution.rpartition("####")[2].strip() for solution in solutions]
        for texts, expected, key in (
            (solutions, 1.0, "right_misjudged"),
            ([changed(s) for s in solutions], 0.0, "changed_misjudged"),
        ):
            if as_box:
                texts = [re.sub(r"#### (.*)$", r"So the answer is \\boxed{\1}.", text) for text in texts]
            scores = scorer.score([Response(t, a) for t, a in zip(texts, answers, strict=True)])
            for text, answer, score in zip(texts, answers, scores, strict=True):
                if score.reward != expected:
                    counts[key] += 1
                    print(f"gsm8k: {score.reward} for {text[-60:]!r}, reference {answer!r}")
        counts["solutions"] += len(solutions)
    return counts


def pairs(folder: Path) -> Iterator[tuple[str, str, str, float]]:
    """(data set, response, reference, what must come out) of the other sets."""
    for name, solution_of, answer_of in (
        ("math500", lambda r: r["solution"], lambda r: r["answer"]),
        ("aime24", lambda r: f"So it is \\boxed{{{r['answer']}}}.", lambda r: str(r["answer"])),
        ("amc23", lambda r: f"So it is \\boxed{{{r['answer']:g}}}.", lambda r: str(r["answer"])),
        ("olympiadbench", lambda r: f"So it is \\boxed{{{bare(r)}}}.", lambda r: r["final_answer"][0]),
        ("minerva_math", lambda r: r["solution"], lambda r: last_boxed(r["solution"]) or ""),
    ):
        rows = rows_of(folder / f"{name}.test.jsonl")
        for row, other in zip(rows, rows[1:] + rows[:1], strict=True):
            yield name, solution_of(row), answer_of(row), 1.0
            yield name, solution_of(other), answer_of(row), 0.0


def bare(row: dict[str, Any]) -> str:
    return str(row["final_answer"][0]).strip().strip("$")


def library(response: str, reference: str) -> bool:
    """math-verify as its documentation shows it, with its own limits."""
    gold = math_verify.parse(reference if "$" in reference else f"${reference}$", parsing_timeout=10)
    return bool(math_verify.verify(gold, math_verify.parse(response, parsing_timeout=10), timeout_seconds=10))


def own_tests(folder: Path) -> list[tuple[str, str, bool]]:
    """(reference, response, verdict) of the cases in math-verify's tests that use its default settings."""
    sys.path.insert(0, str(folder))
    cases = []
    for path in sorted((folder / "tests").glob("test_*.py")):
        module = importlib.import_module(f"tests.{path.stem}")
        for test in vars(module).values():
            for mark in getattr(test, "pytestmark", ()):
                names = mark.args[0].replace(" ", "").split(",")
                if mark.name == "parametrize" and names in (["gold", "pred", "expected"], ["gold", "pred", "result"]):
                    cases += [(gold, pred, bool(right)) for gold, pred, right in mark.args[1]]
    return cases


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="folder with the data sets")
    parser.add_argument("--tests", type=Path, help="math-verify's repository: its tests' cases are judged as well")
    parser.add_argument("--quick", action="store_true", help="GSM8K only")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    args = parser.parse_args()
    if args.data is None:
        print("not measured: it needs the published data sets; give their folder")
        return 0
    logging.disable(logging.CRITICAL)
    begin = time.monotonic()
    result: dict[str, Any] = {}
    with Scorer(Gsm8kReward()) as scorer:
        result["gsm8k by gsm8k"] = gsm8k(args.data, scorer, as_box=False)
    with Scorer(MathReward(timeout_s=20)) as scorer:
        result["gsm8k by math"] = gsm8k(args.data, scorer, as_box=True)
        cases = [] if args.quick else list(pairs(args.data))
        scores = scorer.score([Response(response, reference) for _, response, reference, _ in cases])
    for (name, response, reference, expected), score in zip(cases, scores, strict=True):
        counts = result.setdefault(
            name, {"pairs": 0, "failed": 0, "own_solution_0": 0, "other_solution_1": 0, "unlike_math_verify": 0}
        )
        counts["pairs"] += 1
        counts["failed"] += score.failed
        counts["own_solution_0"] += expected == 1 and score.reward == 0
        counts["other_solution_1"] += expected == 0 and score.reward == 1
        theirs = library(response, reference)
        if theirs != (score.reward == 1):
            counts["unlike_math_verify"] += 1
        if theirs != (score.reward == 1) or score.failed or (expected == 1 and score.reward == 0):
            verdict = score.parts["math"]
            print(f"{name}: ours {score.reward:g}, math-verify {theirs:d}: {reference[:100]!r} <- {verdict.extracted!r:.120} ({verdict.why[:80]})")  # fmt: skip # noqa: E501
    if args.tests:
        tests = own_tests(args.tests)
        with Scorer(MathReward(timeout_s=20)) as scorer:
            scores = scorer.score([Response(pred, gold) for gold, pred, _ in tests])
        result["its own tests"] = {"cases": len(tests), "failed": 0, "unlike_the_test": 0, "unlike_math_verify": 0}
        for (gold, pred, right), score in zip(tests, scores, strict=True):
            theirs = bool(math_verify.verify(math_verify.parse(gold), math_verify.parse(pred)))
            ours = score.reward == 1
            result["its own tests"]["failed"] += score.failed
            result["its own tests"]["unlike_the_test"] += ours != right
            result["its own tests"]["unlike_math_verify"] += ours != theirs
            if ours != right:
                why = score.parts["math"].why
                told = f"{gold[-120:]!r} <- {pred[-120:]!r} ({why})"
                print(f"its tests: ours {score.reward:g}, test {right:d}, now {theirs:d}: {told}")
    for name, counts in result.items():
        print(f"{name:<16} " + "  ".join(f"{key} {value:,}" for key, value in counts.items()))
    print(f"{time.monotonic() - begin:.0f} s")
    misjudged = sum(
        result[f"gsm8k by {r}"][k] for r in ("gsm8k", "math") for k in ("right_misjudged", "changed_misjudged")
    )
    missed = [f"{misjudged} GSM8K solutions misjudged"] if misjudged else []
    return finish(result, missed, args.json)


if __name__ == "__main__":
    sys.exit(main())
