from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pipeline.rewards import Response, Scorer
from pipeline.rewards.function import FunctionReward
from tests.pipeline.sandbox import prober

MINE = """
import os, pathlib, time, socket

def score(response, answer): return float(response == answer)
def both(response, answer, n_tokens=None): return -1.0 * n_tokens, 0.5
def with_prompt(*, prompt, answer, response, other=3): return float(prompt == "p")
def out_of_range(response, answer): return 7
def text(response, answer): return "good"
def nan(response, answer): return float("nan")
def raises(response, answer): raise KeyError("no")
def prints(response, answer):
    print("x" * 100000, flush=True)
    return 1.0
def hangs(response, answer):
    while response == "hang": pass
    return 1.0
def dies(response, answer): os._exit(3) if response == "die" else None; return 1.0
def reached(response, answer):
    import json, prober
    found = prober.reached(json.loads(answer))
    return 1.0 if not found else str(found)
async def later(response, answer): return 1.0
def wrong(solution, answer): return 1.0
def needy(response, answer, more): return 1.0
def few(response): return 1.0
number = 3
# secret-of-ours: what may be read
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewards")
    folder.chmod(0o755)
    (folder / "mine.py").write_text(MINE)
    (folder / "prober.py").write_text(Path(prober.__file__).read_text())
    return str(folder)


def scores(folder, name, *responses, timeout_s=5):
    with Scorer(FunctionReward(folder=folder, path=f"mine:{name}", timeout_s=timeout_s), workers=1) as scorer:
        return scorer.score([Response(*r) for r in responses])


def test_a_function_of_your_own(folder):
    right, wrong = scores(folder, "score", ("a", "a"), ("b", "a"))
    assert (right.reward, right.accuracy, wrong.reward) == (1, 1, 0)
    (score,) = scores(folder, "both", ("a", "a", "p", 7))
    assert (score.reward, score.accuracy) == (-7, 0.5)
    assert scores(folder, "with_prompt", ("a", "a", "p"))[0].reward == 1
    assert scores(folder, "prints", ("a", "a"))[0].reward == 1, "what it prints disturbs nobody"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("out_of_range", "0 <= accuracy <= 1"),
        ("text", "returned 'good'; give a number"),
        ("nan", "returned nan"),
        ("raises", "KeyError: 'no'"),
    ],
)
def test_what_it_returns_wrongly_is_failed(folder, name, told):
    (score,) = scores(folder, name, ("a", "a"))
    assert score.failed and told in score.parts["function"].why


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("later", "it is a coroutine function"),
        ("wrong", "it has the argument 'solution'"),
        ("needy", "it has the argument 'more'"),
        ("few", "it lacks answer"),
        ("number", "it is no function"),
        ("missing", "module mine has no missing"),
    ],
)
def test_a_signature_is_checked_before_the_run(folder, name, told):
    with pytest.raises(ValueError, match=told):
        scores(folder, name)


def test_what_is_not_there_is_told_before_the_run(folder):
    with pytest.raises(ValueError, match="path 'nothing:score' has no module nothing.py in the folder"):
        Scorer(FunctionReward(folder=folder, path="nothing:score"))
    with pytest.raises(ValueError, match="is no folder"):
        Scorer(FunctionReward(folder=f"{folder}/nothing", path="mine:score"))


def test_one_that_hangs_or_dies_fails_only_its_answer(folder):
    values = [s.reward for s in scores(folder, "hangs", ("a", ""), ("hang", ""), ("b", ""), timeout_s=1)]
    assert values[0] == values[2] == 1 and math.isnan(values[1])
    values = [s.reward for s in scores(folder, "dies", ("die", ""), ("b", ""))]
    assert math.isnan(values[0]) and values[1] == 1


def test_it_reaches_nothing_of_ours(folder, told):
    (folder_of_it := Path(folder)).joinpath("link").symlink_to(told["secrets"][0])
    told["secrets"].append(str(folder_of_it / "link"))
    told["folders"].append(folder)
    (score,) = scores(folder, "reached", ("", json.dumps(told)))
    assert score.reward == 1, score.parts["function"].why
    told["secrets"] = [str(folder_of_it / "mine.py")]
    (score,) = scores(folder, "reached", ("", json.dumps(told)))
    assert "read" in score.parts["function"].why, "the same question finds what may be read"


@pytest.mark.parametrize("place", [".", "/", "..", "~"])
def test_a_folder_with_files_of_ours_is_refused(place, home):
    folder = str(home.parent) if place == "~" else place
    with pytest.raises(ValueError, match="give one with the module alone"):
        Scorer(FunctionReward(folder=folder, path="mine:score"))
