from __future__ import annotations

import json
import subprocess
import sys

from api.schemas import RewardResult


def pilot(*arguments, stdin=""):
    command = [sys.executable, "-m", "cli", "reward", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=240)


def test_a_score_is_explained():
    done = pilot("test", "math", "--response", "So it is $\\boxed{\\frac{2}{4}}$.", "--answer", "0.5")
    assert done.returncode == 0, done.stderr
    for words in ("reward    1", "accuracy  1", "math: 1, the numbers are equal", "\\frac{2}{4}", "compared   0.5"):
        assert words in done.stdout


def test_the_reward_of_a_config_with_a_change(tmp_path):
    config = tmp_path / "run.yaml"
    config.write_text("reward: {name: sum, parts: [{reward: {name: numeric}}, {weight: 0.5, reward: {name: format, "
                      "shape: think}}, {reward: {name: overlong, max_tokens: 100, cache: 50}}]}")  # fmt: skip
    done = pilot("test", str(config), "--response", "-", "--answer", "4", "--tokens", "75", "--json", stdin="it is 4")
    assert done.returncode == 0, done.stderr
    score = json.loads(done.stdout)
    assert (score["reward"], score["accuracy"]) == (0.5, 1.0)
    assert [(p["name"], p["value"], p["weight"], p["judges"]) for p in score["parts"]] == [
        ("numeric", 1.0, 1.0, True),
        ("format", 0.0, 0.5, False),
        ("overlong", -0.5, 1.0, False),
    ]
    assert RewardResult.model_validate(score, strict=True).model_dump() == score, "as the API gives it"
    done = pilot("test", "numeric", "--set", "tolerance=0.5", "--response", "4.2", "--answer", "4")
    assert done.returncode == 0 and "reward    1" in done.stdout


def test_a_failed_reward_is_an_exit_status_and_null():
    done = pilot("test", "numeric", "--response", "4", "--answer", "four", "--json")
    assert done.returncode == 1 and json.loads(done.stdout)["reward"] is None


def test_what_is_asked_wrongly_is_told():
    done = pilot("test", "maths", "--response", "4")
    assert done.returncode == 2 and "unknown reward 'maths'; known: exact, numeric" in done.stderr
    done = pilot("test", "math", "--set", "timeout=4", "--response", "4")
    assert done.returncode == 2 and "reward.timeout: unknown field 'timeout'; did you mean 'timeout_s'?" in done.stderr
    done = pilot("test", "judge", "--set", "url=http://x/v1", "--set", "model=m", "--set", "key_env=JUDGE_NONE",
                 "--response", "4")  # fmt: skip
    assert done.returncode == 1 and "JUDGE_NONE" in done.stderr and "Traceback" not in done.stderr
    assert pilot("test", "math", "--response", "@/nothing/there").returncode == 2
    done = pilot("test", "overlong", "--response", "4")
    assert done.returncode == 2 and "use it as a part of the reward 'sum'" in done.stderr


def test_the_rewards_are_listed():
    done = pilot("list")
    assert done.returncode == 0
    assert {line.split()[0] for line in done.stdout.splitlines()} >= {
        "exact",
        "math",
        "code",
        "function",
        "judge",
        "sum",
    }
    assert [line.split()[0] for line in done.stdout.splitlines() if "Only as a part of a sum" in line] == ["overlong"]
