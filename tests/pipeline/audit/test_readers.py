"""Every format is read as its writer writes it, and what is broken is named."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.allocation import Group, Request, Rollouts, Stage
from pipeline.audit import AuditSettings, BadLog, audit
from pipeline.audit.figures import groups_of
from pipeline.audit.log import Log, read_log
from pipeline.prompts import Prompt, PromptSet
from pipeline.rollouts import write_rollouts
from tests.pipeline.audit import logs
from tests.pipeline.audit.logs import Rolled

ROLLED = logs.stream(3, 4, 8, (0, 3, 8, 5))


def told(log: Log) -> Counter[tuple[int, str, tuple[float, ...]]]:
    """Every group by step, text and rewards."""
    groups = np.split(log.rewards, log.start[1:-1])
    return Counter(
        (int(step), log.texts[prompt], tuple(sorted(rewards)))
        for step, prompt, rewards in zip(log.step, log.prompt, groups, strict=True)
    )


def expected(rolled: list[Rolled]) -> Counter[tuple[int, str, tuple[float, ...]]]:
    return Counter((r.step, r.prompt, tuple(sorted(r.rewards))) for r in rolled)


def read(path: Path, **given: object) -> Log:
    return read_log(path, AuditSettings.model_validate(given))


def test_verl(tmp_path: Path) -> None:
    log = read(logs.verl(tmp_path, ROLLED))
    assert log.format == "verl" and log.tokens is None and told(log) == expected(ROLLED)
    assert "it is the success as well" in log.reward


def test_verl_with_an_accuracy_beside_the_score(tmp_path: Path) -> None:
    """DAPO's reward manager scores -1 and 1 and puts what it found right into acc; str() makes np.True_ "True"."""
    signed = [r._replace(rewards=[2 * x - 1 for x in r.rewards]) for r in ROLLED]
    assert "two values, so right when it is 1" in read(logs.verl(tmp_path / "a", signed)).reward
    log = read(logs.verl(tmp_path / "b", signed, acc=np.True_, request_id="7"))
    assert log.reward.endswith("success as logged") and (log.success == 1.0).all() and log.rewards.min() == -1


def test_texts_are_such_as_can_be_printed(tmp_path: Path) -> None:
    """JSON may hold halves of characters, which no encoder takes, and commands to a terminal."""
    rows = '{"input": "\\ud800\\u001b[2Jx", "score": %d, "step": 1}\n'
    (tmp_path / "1.jsonl").write_text(rows % 1 + rows % 0)
    assert read(tmp_path).texts == ["\ufffd\ufffd[2Jx"]


def test_the_same_question_with_another_answer_is_another_prompt(tmp_path: Path) -> None:
    logs.verl(tmp_path, [Rolled(1, "1+1=", [0, 1])])
    with (tmp_path / "1.jsonl").open("a") as file:
        file.write(json.dumps({"input": "1+1=", "gts": "5", "score": 1, "step": 1}) + "\n")
    assert len(read(tmp_path).texts) == 2


@pytest.mark.parametrize("chat", [False, True])
def test_trl(tmp_path: Path, chat: bool) -> None:
    log = read(logs.trl(tmp_path, ROLLED, chat=chat))
    assert log.format == "trl" and told(log) == expected(ROLLED)
    assert log.reward.startswith("reward: accuracy_reward + format_reward;"), "not the advantage, and no text"
    assert told(read(tmp_path / "completions")) == told(log)
    assert told(read(tmp_path, reward=["accuracy_reward"])) == told(log)


def test_a_batch_that_trl_logged_twice_counts_once(tmp_path: Path) -> None:
    """Its deque keeps the newest generation batch: a batch that trains for two steps is in both files."""
    logs.trl(tmp_path, ROLLED)
    folder = tmp_path / "completions"
    again = pd.read_parquet(folder / "completions_00003.parquet").assign(step=4)
    again.to_parquet(folder / "completions_00004.parquet")
    log = read(tmp_path)
    assert told(log) == expected(ROLLED) and "1 of 4 files repeat" in log.notes[0]
    again.assign(completion="another").to_parquet(folder / "completions_00004.parquet")
    assert log.step.max() == 3 and read(tmp_path).step.max() == 4


def test_trl_rewards_that_came_back_as_none(tmp_path: Path) -> None:
    (tmp_path / "completions").mkdir()
    frame = pd.DataFrame(
        {
            "step": ["1"] * 4,  # older releases write texts
            "prompt": ["p"] * 4,
            "completion": ["c"] * 4,
            "a": [1.0, 0.5, None, None],
            "b": [None, 0.5, None, 0.0],
            "advantage": [0.0] * 4,
        }
    )
    frame.to_parquet(tmp_path / "completions" / "completions_00001.parquet")
    log = read(tmp_path)
    assert log.rewards.tolist()[:2] == [1.0, 1.0] and log.rewards[3] == 0.0 and math.isnan(log.rewards[2])


def test_csv(tmp_path: Path) -> None:
    assert told(read(logs.table(tmp_path / "log.csv", ROLLED))) == expected(ROLLED)
    path = tmp_path / "more.csv"
    path.write_text('\ufeffprompt,step,reward,success,tokens\n"a, b",1,3.5,1,7\n"a, b",1,,,9\n"a, b",1,-2,0,8\n')
    log = read(path)
    assert log.tokens is not None and log.tokens.tolist() == [7, 9, 8]
    assert log.success[[0, 2]].tolist() == [1, 0] and np.isnan(log.success[1]) and log.texts == ["a, b"]


def test_a_run_of_ours(tmp_path: Path) -> None:
    prompts = PromptSet("p", (Prompt("id1", "1+1=", "2"), Prompt("id2", "2+2=", "4")))
    for step in (1, 2):
        rewards = np.array([1.0, 0.0, math.nan])
        data = [{"text": "x", "logprob": -1.0}] * 3
        columns = Rollouts(rewards, rewards, np.array([3, 4, 5]), np.full(3, step), data)
        write_rollouts(tmp_path, step, [Group(Request(i, Stage.COMMIT, 3), columns) for i in (0, 1)], prompts)
    log = read(tmp_path)
    assert log.format == "pilot" and log.tokens is not None and log.tokens.sum() == 48 and log.texts == ["id1", "id2"]
    assert groups_of(log).n_failed.tolist() == [1] * 4 and groups_of(log).mixed.all()
    events = tmp_path / "attempts" / "1" / "events.jsonl"
    events.parent.mkdir(parents=True)
    told_prompts = [{"id": p.id, "text": p.text} for p in prompts.prompts]
    events.write_text(
        'not JSON\n[1]\n{"prompts": 3}\n' + json.dumps({"type": "prompts_loaded", "prompts": told_prompts})
    )
    assert read(tmp_path / "rollouts").texts == ["1+1=", "2+2="]
    assert read(tmp_path / "rollouts" / "step_000001.parquet").step.tolist() == [1, 1]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from("abcd"), st.sampled_from([0.0, 0.25, 1.0, None])), min_size=1
    )
)
def test_groups_are_the_rows_of_one_prompt_in_one_step(
    rows: list[tuple[int, str, float | None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "log.csv"
    lines = [f"{step},{prompt},{'' if reward is None else reward}" for step, prompt, reward in rows]
    path.write_text("step,prompt,reward\n" + "\n".join(lines) + "\n")
    if all(reward is None for *_, reward in rows):
        with pytest.raises(BadLog, match="no rollout has a reward"):
            read(path)
        return
    log = read(path)
    groups = groups_of(log)
    assert (np.diff(log.step) >= 0).all() and log.start[-1] == len(rows)
    assert len(set(zip(groups.step.tolist(), groups.prompt.tolist(), strict=True))) == len(groups.step)
    wanted: dict[tuple[int, str], list[float | None]] = {}
    for step, prompt, reward in rows:
        wanted.setdefault((step, prompt), []).append(reward)
    for i, (step, prompt) in enumerate(zip(groups.step.tolist(), groups.prompt.tolist(), strict=True)):
        rewards = wanted.pop((step, log.texts[prompt]))
        known = [r for r in rewards if r is not None]
        assert (groups.n[i], groups.n_failed[i]) == (len(known), len(rewards) - len(known))
        assert groups.mixed[i] == (len(set(known)) > 1)
        if known:
            assert groups.success_rate[i] == pytest.approx(np.mean(known))
            assert groups.variance[i] == pytest.approx(np.var(known))
    assert not wanted


# What is broken


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "is not JSON"), ("[]", "is a list, not an object"),
        ("{}", "has no 'input', 'step', 'score'; it has nothing"),
        ('{"input": 3, "score": 1, "step": 1}', "'input' is not a text"),
        ('{"input": "a", "score": "high", "step": 1}', "'score' is 'high', not a number"),
        ('{"input": "a", "score": 1e999, "step": 1}', "'score' is inf, not a finite number"),
        ('{"input": "a", "score": [1], "step": 1}', "not a number"),
        ('{"input": "a", "score": 1, "step": -1}', "'step' is -1, not a whole number"),
        ('{"input": "a", "score": 1, "step": 1.5}', "not a whole number"),
        ('{"input": "a", "score": 1, "step": null}', "not a whole number"),
        ('{"input": "a", "score": 1, "step": 1, "acc": 2}', "'acc' is 2; success lies between"),
        ('{"input": "a", "score": 1, "step": 1, "x": ' + "[" * 100_000, "row 3: is n"),
        ("\x00\x80\xff", "is not JSON"),
    ],
)  # fmt: skip
def test_bad_rows_are_named_or_left_out(tmp_path: Path, line: str, why: str) -> None:
    good = '{"input": "a", "score": 1, "step": 1, "acc": 1}\n'
    (tmp_path / "7.jsonl").write_text(f"{good}{good}{line}\n{good}", encoding="latin-1")
    with pytest.raises(BadLog, match="1 bad row: 7.jsonl, row 3: .*--skip-bad") as refused:
        read(tmp_path)
    assert why in str(refused.value)
    log = read(tmp_path, skip_bad=True)
    assert (len(log.rewards), log.bad_rows) == (3, 1) and log.bad[0].startswith("7.jsonl, row 3: ")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.csv", "", "no column 'step', 'prompt', 'reward'; it has none"),
        ("a.csv", "step,prompt\n1,a\n", "no column 'reward'"),
        ("a.csv", "step,prompt,reward\n", "there are no rows"),
        ("a.csv", "step,prompt,reward\n1,a\n", "row 1: has not the 3 fields"),
        ("a.csv", "step,prompt,reward\n1,a,1,2\n", "row 1: has not the 3 fields"),
        ("a.csv", 'step,prompt,reward\n1,"a,1\n', "a.csv: unexpected end of data"),
        ("a.csv", "step,prompt,reward\n1,a,5\n1,a,6\n1,a,7\n", "rewards go from 5 to 7"),
        ("a.csv", "step,prompt,reward\n1,a,1\n2,a,0\n", "no groups to look at"),
        ("a.csv", "step,prompt,reward\n1,\udcff,1\n", "a.csv: 'utf-8' codec can't decode"),
        ("a.parquet", "PAR1 but not really", "a.parquet: "),
        ("a.txt", "step", "is of no known format"),
    ],
)  # fmt: skip
def test_what_cannot_be_audited_is_told(tmp_path: Path, name: str, content: str, why: str) -> None:
    (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(BadLog) as refused:
        audit(tmp_path / name, AuditSettings(replays=1))
    assert why in str(refused.value)
    assert ("--skip-bad" in str(refused.value)) == ("row 1" in why), "only where rows can be left out"


def test_places_without_a_log(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for place, why in (("empty", "has no log. Give verl's"), ("nowhere", "No such file"), ("pipe", "neither a file")):
        with pytest.raises(BadLog, match=why):
            read(tmp_path / place)
    logs.table(logs.verl(tmp_path, ROLLED) / "log.csv", ROLLED)
    with pytest.raises(BadLog, match="several formats .verl, csv.; name one with --format"):
        read(tmp_path)
    assert read(tmp_path, format="csv").format == "csv" and read(tmp_path, format="verl").format == "verl"
    with pytest.raises(BadLog, match="no files of this format"):
        read(tmp_path, format="trl")


def test_parquet_of_other_columns(tmp_path: Path) -> None:
    for columns, why in (({"x": [1]}, "no known format"), ({"completion": ["a"]}, "no column 'step', 'prompt'")):
        pq.write_table(pa.table(columns), tmp_path / "a.parquet")
        with pytest.raises(BadLog, match=why):
            read(tmp_path / "a.parquet")
    frame = pa.table({"step": [1, 1], "prompt": [None, "a"], "completion": ["", ""], "r": [1.0, 0.0]})
    pq.write_table(frame, tmp_path / "a.parquet")
    with pytest.raises(BadLog, match="a.parquet, row 1: 'prompt' is None, neither a text"):
        read(tmp_path / "a.parquet")


def test_memory_follows_the_rollouts_and_not_the_size_of_the_log(tmp_path: Path) -> None:
    """64 MB of responses, in a process that may have 40 MB more than what it has when everything is imported."""
    row = {"input": "p", "output": "x" * 8_000, "gts": "1", "score": 1.0, "step": 1}
    with (tmp_path / "1.jsonl").open("w") as file:
        for i in range(8_000):
            file.write(json.dumps(row | {"input": f"p{i // 8}", "score": float(i % 3 == 0)}) + "\n")
    program = (
        "import resource, sys; from pathlib import Path; from pipeline.audit.log import read_log; "
        "from pipeline.audit import AuditSettings; import pyarrow; "
        "size = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize(); "
        "resource.setrlimit(resource.RLIMIT_AS, (size + (40 << 20),) * 2); "
        "log = read_log(Path(sys.argv[1]), AuditSettings()); print(len(log.rewards), len(log.texts))"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["8000", "1000"], done.stderr[-500:]
