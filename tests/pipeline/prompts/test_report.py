"""The report: every fault counted, lengths as the engines count them; and data sets of the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cli.data import converted, described, fetched, validated
from cli.failure import Failure
from pipeline.config import ConfigProblems, DataConfig
from pipeline.prompts import load_prompts
from pipeline.prompts.report import unusable
from pipeline.rewards.choice import ChoiceReward
from pipeline.rewards.coding import CodeReward
from pipeline.rewards.maths import MathReward
from pipeline.rewards.numeric import NumericReward
from tests.hub import Hub

POLICY = Path(__file__).parents[3] / "pipeline" / "bundled" / "policy"
ROWS = [
    {"prompt": "1+1=", "answer": "2"},
    {"prompt": "What is  TWO?", "answer": "2"},
    {"prompt": "what is two?", "answer": "two"},
    {"prompt": "caf\ufffd", "answer": "3"},
    {"prompt": "long " * 100, "answer": "4"},
    {"prompt": "1+1=", "answer": "2"},
    {"prompt": "1+1=", "answer": "3"},
    {"prompt": "none"},
]


def write(path: Path, rows: Sequence[Mapping[str, str]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return str(path)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    source, other = (
        write(tmp_path / "a.jsonl", ROWS),
        write(tmp_path / "b.jsonl", [{"prompt": "WHAT IS two?", "answer": "2"}]),
    )
    report = validated(described(source, "plain"), other, POLICY, 256, ["numeric"])
    assert {f.kind: [row.row for row in f.rows] for f in report.findings} == {
        "no_answer": ["8"], "repeated": ["6"], "contradicting": ["7"], "held_out": ["2", "3"], "alike": ["3"],
        "too_long": ["5"], "bad_answer": ["3"], "replaced": ["4"],
    }  # fmt: skip
    assert not report.accepted and (report.n_rows, report.n_prompts) == (8, 5)
    words = report.text("a.jsonl")
    assert "\nlongest prompt: " in words
    assert "\nlength: not counted, no model given\n" in validated(
        described(source, "plain"), None, None, None, []
    ).text("a")
    assert "row 7: is in row 1, too, with the answer '2', here '3'" in words and words.endswith("\n\nnot accepted")
    warned = described(write(tmp_path / "c.jsonl", ROWS[:5]), "plain")
    only_warnings = validated(warned, other, POLICY, 256, ["numeric"])
    assert only_warnings.accepted and not any(f.refuses for f in only_warnings.findings)
    with pytest.raises(Failure, match="unknown; known: plain, verl"):
        described(source, "mnist")
    assert "not checked: prompt lengths: the model's tokenizer cannot be read" in validated(
        described(source, "plain"), None, tmp_path, None, []
    ).text("a")


def test_answers_that_a_reward_cannot_use() -> None:
    assert [w is None for w in unusable(NumericReward(), ["4", "four"])] == [True, False]
    assert [w is None for w in unusable(ChoiceReward(), ["B", "(c)", "7"])] == [True, True, False]
    assert [w is None for w in unusable(CodeReward(), ["assert f() == 1", "{"])] == [True, False]
    assert [w is None for w in unusable(MathReward(timeout_s=20), ["\\frac{1}{2}", "x" * 1001])] == [True, False]
    answers = ["\\text{Evelyn}", "B", "\\frac{1}{", "???", "x=", "see figure", "The proof is trivial", "1+"]
    reasons = unusable(MathReward(timeout_s=20), answers)
    assert [why is None for why in reasons] == [True, True, *6 * [False]]
    assert "its braces do not match" in str(reasons[2]) and "write words as \\text{...}" in str(reasons[5])


def test_rows_that_name_a_reward_are_checked_by_it(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": "four"}, {"prompt": "b", "answer": "B", "reward": "letter"},
            {"prompt": "c", "answer": "7", "reward": "letter"}, {"prompt": "d", "answer": "no", "reward": "code"},
            {"prompt": "e", "answer": "1", "reward": "mine"}]  # fmt: skip
    source = write(tmp_path / "a.jsonl", rows)
    report = validated(described(source, "plain"), None, None, None, ["numeric", "letter=choice"])
    (found,) = report.findings
    assert report.accepted and [row.row for row in found.rows] == ["1", "3", "4"]
    assert "by the reward 'letter': the reference answer has no letter" in found.rows[1].message
    assert "not known here (1 name 'mine'); give letter=choice" in report.unchecked[0]
    alone = validated(described(source, "plain"), None, None, None, [])
    assert [row.row for row in alone.findings[0].rows] == ["4"], "a name that is a reward's own needs no explanation"
    with pytest.raises(Failure, match="unknown reward 'chioce'"):
        validated(described(source, "plain"), None, None, None, ["letter=chioce"])


def test_converted_by_the_command(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", ROWS[:2])
    assert converted(described(source, "plain"), tmp_path / "b.parquet") == f"{tmp_path / 'b.parquet'}: 2 prompts"
    with pytest.raises(Failure, match="no {prompt}"):
        described(source, "plain", template="x")


def test_a_data_set_of_the_hub(home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for shard in range(2):
        row = {"question": f"{shard}+1?", "answer": f"so\n#### {shard + 1}"}
        hub[f"a/b:main/train-0000{shard}-of-00002.jsonl"] = json.dumps(row).encode()
    hub["a/b:other/train.jsonl"] = b"{}"
    hub["a/b:README.md"] = b""
    data = DataConfig(train="t", eval="e", mapping="gsm8k")
    with pytest.raises(Failure, match="several splits 'train'; there are: main/train, other/train"):
        fetched("hub:a/b")
    with pytest.raises(Failure, match="no split 'test'"):
        fetched("hub:a/b:test")
    pinned = fetched("hub:a/b:main/train")
    assert pinned == f"hub:a/b@{'a' * 40}:main/train"
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # no network from here on
    assert {p.answer for p in load_prompts(pinned, data, "data.train").prompts} == {"1", "2"}
    for source, message in (
        ("hub:a/b:main/train", "names no commit"),
        (f"hub:a/b@{'b' * 40}", "has not been fetched here: `pilot data fetch"),
        ("hub:../../etc", "is not hub:OWNER/NAME"),
        ("set:../../x@0123456789abcdef", "is not set:NAME@VERSION"),
        ("set:x@0123456789abcdef", "there is no such prompt set"),
    ):
        with pytest.raises(ConfigProblems, match=message):
            load_prompts(source, data, "data.train")
    with pytest.raises(Failure, match="hub:a/b could not be fetched: no answer from the hub at http://127.0.0.1:1"):
        fetched("hub:a/b")
