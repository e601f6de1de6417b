"""Math answers scored per second, and whether an answer that hangs holds up the others.

    python bench/rewards.py [--quick] [--json] [--workers 2]

Ordinary answers: groups of 16 responses of about 2,000 characters that end in \\boxed{}. The reference answers are
made in the kinds and shares of MATH-500 (64% plain numbers, 10% fractions, 14% roots, tuples and polynomials, 12%
intervals, degrees, sets, equations, matrices and words). Half of a group is right, every other one of these written in
another way; the other half has one of four wrong answers of the same kind. Every group is new to the scorer.

Bounds: 2,000 answers/s with two reward processes; with another answer hanging until its time limit, the same batch
takes at most four times as long (the hanging one has a reward process and a core for itself). Exits 1 naming what was
missed. The start of the reward processes, once a run, is not counted. --data FOLDER takes the reference answers of
math500.test.jsonl instead of made ones: a group's wrong answers are then those of the four next prompts.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.verdict import finish
from pipeline.rewards import Response, Scorer
from pipeline.rewards.maths import MathReward

LEAST_RATE, MOST_DELAY = 2000.0, 4.0
GROUP, WRONG = 16, 4
HANG = Response("So it is \\boxed{5^{5^{5^{5^5}}}}.", "7")


def number(r: random.Random) -> list[str]:
    n = r.randint(-99, 9999)
    return [str(n), f"{n}.0" if r.random() < 0.5 else f" {n} "]


def fraction(r: random.Random) -> list[str]:
    a, b = r.randint(1, 99), r.randint(2, 99)
    return [f"\\frac{{{a}}}{{{b}}}", f"\\dfrac{{{a}}}{{{b}}}"]


def closed(r: random.Random) -> list[str]:
    a, b, c = r.randint(2, 30), r.randint(2, 30), r.randint(2, 30)
    return r.choice([
        [f"{a}\\sqrt{{{b}}}", f"{a} \\sqrt {{{b}}}"],
        [f"\\left( {a}, \\frac{{\\pi}}{{{b}}} \\right)", f"({a},\\dfrac{{\\pi}}{{{b}}})"],
        [f"{a}x^2 + {b}x - {c}", f"{b}x+{a}x^2-{c}"],
        [f"\\frac{{{a}\\sqrt{{{b}}}}}{{{c}}}", f"\\frac{{{a}}}{{{c}}}\\sqrt{{{b}}}"],
    ])  # fmt: skip


def other(r: random.Random) -> list[str]:
    a, b = sorted(r.sample(range(2, 99), 2))
    return r.choice([
        [f"({a},{b}]", f"\\left({a}, {b}\\right]"],
        [f"{a}^\\circ", f"{a}"],
        [f"{a},-{b}", f"-{b}, {a}"],
        [f"x={a}", f"{a}"],
        [f"\\begin{{pmatrix}} {a} \\\\ {b} \\end{{pmatrix}}", f"\\begin{{pmatrix}}{a}\\\\{b}\\end{{pmatrix}}"],
        [f"\\text{{{r.choice(['even', 'odd', 'east', 'Evelyn', 'ellipse'])}}}"] * 2,
    ])  # fmt: skip


KINDS, SHARES = (number, fraction, closed, other), (64, 10, 14, 12)


def group(r: random.Random) -> list[Response]:
    kind = r.choices(KINDS, SHARES)[0]
    right, twin = kind(r)
    wrong = [kind(r)[0] for _ in range(WRONG)]
    reasoning = "We consider the cases one by one, and substitute $x = 3y$ into the equation.\n" * 26
    answers = [right, twin] * (GROUP // 4) + wrong * (GROUP // 2 // WRONG)
    return [Response(f"{reasoning}Therefore the answer is $\\boxed{{{answer}}}$.", right) for answer in answers]


def groups_of_math500(folder: Path) -> list[list[Response]]:
    rows = [json.loads(line) for line in (folder / "math500.test.jsonl").read_text().splitlines()]
    answers = [row["answer"] for row in rows]
    found = []
    for i, row in enumerate(rows):
        wrong = [f"Therefore $\\boxed{{{answers[(i + k) % len(rows)]}}}$." for k in range(1, WRONG + 1)]
        texts = [row["solution"]] * (GROUP // 2) + wrong * (GROUP // 2 // WRONG)
        found.append([Response(text, row["answer"]) for text in texts])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three batches instead of ten")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    parser.add_argument("--data", type=Path, help="folder with math500.test.jsonl")
    parser.add_argument("--workers", type=int, default=2, help="reward processes")
    args = parser.parse_args()
    r = random.Random(0)
    if args.data:
        every = groups_of_math500(args.data)
        batches = [[x for g in every[i : i + 100] for x in g] for i in range(0, len(every), 100)]
    else:
        batches = [[x for _ in range(256) for x in group(r)] for _ in range(3 if args.quick else 10)]

    def seconds(scorer: Scorer, responses: list[Response]) -> float:
        begin = time.perf_counter()
        scores = scorer.score(responses)
        taken = time.perf_counter() - begin
        assert not any(s.failed for s in scores), "an ordinary answer failed"
        return taken

    with Scorer(MathReward(timeout_s=20), args.workers) as scorer:
        scorer.score([x for _ in range(8) for x in group(random.Random(1))])
        start = scorer.score([Response(f"\\boxed{{{i} < x}}", "x \\ge 2") for i in range(4 * args.workers)])
        assert not any(s.failed for s in start)
        times = [seconds(scorer, batch) for batch in batches]
    with Scorer(MathReward(timeout_s=20), args.workers) as scorer:
        scorer.score([Response(f"\\boxed{{{i} < x}}", "x \\ge 2") for i in range(4 * args.workers)])
        hanging = threading.Thread(target=scorer.score, args=([HANG],))
        hanging.start()
        held_up = seconds(scorer, batches[0])
        assert hanging.is_alive(), "the hanging answer was done before the others"
    hanging.join()

    rate = statistics.median(len(b) / t for b, t in zip(batches, times, strict=True))
    delay = held_up / times[0]
    result = {
        "answers": sum(map(len, batches)),
        "workers": args.workers,
        "answers_per_s": round(rate, 1),
        "least_answers_per_s": LEAST_RATE,
        "delay_by_a_hanging_answer": round(delay, 2),
        "most_delay": MOST_DELAY,
    }
    missed = []
    if rate < LEAST_RATE:
        missed.append(f"answers_per_s {rate:.0f} < {LEAST_RATE:.0f}")
    if delay > MOST_DELAY:
        missed.append(f"delay_by_a_hanging_answer {delay:.2f} > {MOST_DELAY}")
    print(f"{result['answers']:,} answers in groups of {GROUP}, {args.workers} reward processes")
    print(f"math answers/s           {result['answers_per_s']:>9,}")
    print(f"time beside a hang       {result['delay_by_a_hanging_answer']:>9} x")
    return finish(result | {"passed": not missed}, missed, args.json)


if __name__ == "__main__":
    sys.exit(main())
