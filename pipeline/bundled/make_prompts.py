"""Makes the bundled prompt sets: real calculator expressions from GSM8K together with generated families.

    python -m pipeline.bundled.make_prompts \\
        --gsm8k-train gsm8k_calc.train.jsonl --gsm8k-test gsm8k_calc.test.jsonl

Rows are {"prompt", "answer", "tags": [family, level]}. A level says how hard a prompt is within its family,
so that there is a real spread to allocate over: some prompts are solved by the bundled policy, some are
beyond it, and most lie in between. No prompt occurs twice, neither within a set nor across sets.
"""

import argparse
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Problem(NamedTuple):
    """An integer expression that ends in '=', its value in decimal digits, and where it belongs."""

    prompt: str
    answer: str
    family: str
    level: str


# (family, level): how many prompts in the train set and in the eval set.
SIZES: dict[tuple[str, str], tuple[int, int]] = {
    ("add", "1"): (250, 25), ("add", "2"): (450, 45), ("add", "3"): (150, 15),
    ("sub", "1"): (250, 25), ("sub", "2"): (450, 45), ("sub", "3"): (150, 15),
    ("mul", "1"): (150, 15), ("mul", "2"): (220, 25), ("mul", "3"): (130, 15),
    ("chain", "1"): (300, 30), ("chain", "2"): (350, 35), ("chain", "3"): (250, 25),
}  # fmt: skip
GSM8K_SIZES = (1450, 160)
MAX_PROMPT, MAX_ANSWER = 11, 5  # characters; longer expressions are rare and would pad every batch


def generate(family: str, level: str, rng: random.Random) -> Problem:
    """One random problem of a generated family. Results are never negative."""
    n = int(level)
    if family == "add":
        a, b = (rng.randrange(10, 100), rng.randrange(1, 10)) if n == 1 else two_numbers(n, rng)
        text, value = f"{a}+{b}", a + b
    elif family == "sub":
        a, b = (rng.randrange(10, 100), rng.randrange(1, 10)) if n == 1 else sorted(two_numbers(n, rng))[::-1]
        text, value = f"{a}-{b}", a - b
    elif family == "mul":
        if n == 1:  # one digit by a round number
            a, b = rng.randrange(2, 10), rng.randrange(1, 10) * 10 ** rng.randrange(0, 4)
        else:  # two or three digits by one digit
            a, b = rng.randrange(10 ** (n - 1) + 1, 10**n), rng.randrange(2, 10)
        if n == 1 and rng.random() < 0.5:
            a, b = b, a
        text, value = f"{a}*{b}", a * b
    elif family == "chain":
        terms = [rng.randrange(1, 10) for _ in range(n + 2)]
        text, value = str(terms[0]), terms[0]
        for term in terms[1:]:
            sign = -1 if value >= term and rng.random() < 0.4 else 1
            text, value = f"{text}{'-' if sign < 0 else '+'}{term}", value + sign * term
    else:
        raise ValueError(f"no generated family {family!r}")
    return Problem(f"{text}=", str(value), family, level)


def two_numbers(digits: int, rng: random.Random) -> tuple[int, int]:
    """Two numbers of exactly `digits` digits."""
    low, high = 10 ** (digits - 1), 10**digits
    return rng.randrange(low, high), rng.randrange(low, high)


def read_gsm8k(path: Path) -> Iterator[Problem]:
    """The expressions of a gsm8k_calc file that fit; the level is the operator, 'decimal' or 'several'."""
    for line in path.read_text().splitlines():
        row = json.loads(line)
        prompt, answer = row["prompt"], row["answer"]
        if len(prompt) > MAX_PROMPT or len(answer) > MAX_ANSWER or not re.fullmatch(r"\d+", answer):
            continue
        operators = re.findall(r"[-+*/]", prompt)
        one = {"+": "plus", "-": "minus", "*": "times", "/": "over"}
        level = "decimal" if "." in prompt else one[operators[0]] if len(operators) == 1 else "several"
        yield Problem(prompt, answer, "gsm8k", level)


def build(gsm8k_train: Path, gsm8k_test: Path, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Train and eval set, disjoint, without repeats. GSM8K's split is kept: eval takes from its test file.

    Raises ValueError when a family has too few distinct prompts for its size.
    """
    rng = random.Random(seed)
    taken: set[str] = set()
    train: list[Problem] = []
    held_out: list[Problem] = []
    for part, path, size in ((train, gsm8k_train, GSM8K_SIZES[0]), (held_out, gsm8k_test, GSM8K_SIZES[1])):
        real = [p for p in {p.prompt: p for p in read_gsm8k(path)}.values() if p.prompt not in taken]
        chosen = rng.sample(real, size)
        taken |= {p.prompt for p in chosen}
        part += chosen
    # What GSM8K holds elsewhere is not generated either: the warm start may read its train file.
    taken |= {p.prompt for path in (gsm8k_train, gsm8k_test) for p in read_gsm8k(path)}
    for (family, level), sizes in SIZES.items():
        for part, size in zip((train, held_out), sizes, strict=True):
            wanted = len(part) + size
            repeats = 0
            while len(part) < wanted:
                problem = generate(family, level, rng)
                repeats += problem.prompt in taken
                if repeats > 100 * size:
                    raise ValueError(f"{family} {level} has too few distinct prompts for {sizes}")
                if problem.prompt not in taken:
                    taken.add(problem.prompt)
                    part.append(problem)
    rng.shuffle(train)
    rng.shuffle(held_out)
    return train, held_out


def write(problems: list[Problem], path: Path) -> None:
    rows = ({"prompt": p.prompt, "answer": p.answer, "tags": [p.family, p.level]} for p in problems)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[Problem]:
    rows = map(json.loads, path.read_text().splitlines())
    return [Problem(row["prompt"], row["answer"], *row["tags"]) for row in rows]


def main() -> None:
    raw_text = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw_text)
    parser.add_argument("--gsm8k-train", type=Path, required=True)
    parser.add_argument("--gsm8k-test", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    train, held_out = build(args.gsm8k_train, args.gsm8k_test, args.seed)
    write(train, HERE / "prompts.train.jsonl")
    write(held_out, HERE / "prompts.eval.jsonl")
    print(f"{len(train)} train prompts, {len(held_out)} eval prompts")


if __name__ == "__main__":
    main()
