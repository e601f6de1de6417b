from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from pipeline.config import PROTOCOLS, ROOT, ConfigProblems, DataConfig, parse_config
from pipeline.prompts import count_run_prompts, load_prompts, load_run_prompts, preflight
from pipeline.prompts import load as loading

DATA = DataConfig(train="t", eval="e")


def write(path, rows):
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n", encoding="utf-8")
    return path


def load(path):
    return load_prompts(path, DATA, "data.train")


def test_ids_come_from_the_content_not_from_the_row(tmp_path):
    rows = [{"prompt": f"{i}+1=", "answer": i + 1, "tags": ["add"]} for i in range(20)]
    first = load(write(tmp_path / "a.jsonl", rows))
    random.Random(0).shuffle(rows)
    second = load(write(tmp_path / "b.jsonl", ["", *rows]))
    assert first.prompts == second.prompts and first.digest == second.digest
    assert len({p.id for p in first.prompts}) == 20
    changed = load(write(tmp_path / "c.jsonl", [{**rows[0], "answer": "x"}, *rows[1:]]))
    assert changed.digest != first.digest and len({p.id for p in changed.prompts} & {p.id for p in first.prompts}) == 19


def test_line_separators_inside_a_text_do_not_break_a_row(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a\u2028b\u0085c", "answer": "1"}\n', encoding="utf-8")
    assert load(path).prompts[0].text == "a\u2028b\u0085c"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "has no prompts"),
        (["", "  "], "has no prompts"),
        ([{"prompt": "a", "answer": "1"}, "{oops"], r"row 2: is not JSON"),
        (["[1]"], "row 1: is a list, not an object"),
        ([{"prompt": "a"}], r"row 1: has no text in 'answer' \(fields there: prompt\)"),
        ([{"prompt": " ", "answer": "1"}], "has no text in 'prompt'"),
        ([{"prompt": "a\0", "answer": "1"}], "NUL character in 'prompt'"),
        ([{"prompt": "a", "answer": "1", "tags": "x"}], "'tags' must be a list of strings"),
        ([{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "1"}, {"prompt": "a", "answer": "2"}], "rows 1, 3"),
    ],
)  # fmt: skip
def test_nothing_is_accepted_half(tmp_path, rows, message):
    with pytest.raises(ConfigProblems, match=message) as caught:
        load(write(tmp_path / "a.jsonl", rows))
    assert caught.value.problems[0].field == "data.train"


def test_missing_and_undecodable_files(tmp_path):
    with pytest.raises(ConfigProblems, match="no such file"):
        load(tmp_path / "absent.jsonl")
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9", "answer": "1"}\n')
    with pytest.raises(ConfigProblems, match="UTF-8"):
        load(tmp_path / "latin.jsonl")
    for special in (tmp_path, Path("/dev/zero")):
        with pytest.raises(ConfigProblems, match="is not a regular file"):
            load(special)
    with pytest.raises(ConfigProblems, match="cannot be read"):
        load(tmp_path / ("x" * 300))


def test_a_protocol_without_its_files_says_how_to_make_them(tmp_path):
    write(tmp_path / "train.jsonl", [{"prompt": "a", "answer": "1"}])
    write(tmp_path / "eval.jsonl", [{"prompt": "b", "answer": "1"}])
    config = {
        "model": {"path": "m"},
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "eval.jsonl")},
        "evaluation": {"protocol": "math-7", "protocol_folder": str(tmp_path / "math-7")},
    }
    with pytest.raises(ConfigProblems) as caught:
        load_run_prompts(parse_config(config))
    (problem,) = caught.value.problems
    assert problem.field == "evaluation.protocol_folder" and problem.message == (
        "lacks aime24.jsonl, aime25.jsonl, amc23.jsonl, math500.jsonl, minerva.jsonl, olympiadbench.jsonl, "
        f"deepmath500.jsonl: `pilot data prepare math-7 --out {tmp_path / 'math-7'}` makes them; "
        "evaluation.protocol=null measures without"
    )
    (tmp_path / "math-7").mkdir()
    for name in PROTOCOLS["math-7"]:
        write(tmp_path / "math-7" / f"{name}.jsonl", [{"prompt": name, "answer": "1"}])
    assert len(load_run_prompts(parse_config(config))[1]) == 8
    (tmp_path / "math-7" / "amc23.jsonl").unlink()
    with pytest.raises(ConfigProblems, match="lacks amc23.jsonl: `pilot"):
        count_run_prompts(parse_config(config))


def test_preflight_names_every_fault_at_once(tmp_path):
    write(tmp_path / "train.jsonl", [{"prompt": "a", "answer": "1"}])
    config = {
        "model": {"path": str(tmp_path / "no-model")},
        "data": {"train": str(tmp_path / "train.jsonl"), "eval": str(tmp_path / "none.jsonl")},
    }
    with pytest.raises(ConfigProblems) as caught:
        preflight(parse_config(config))
    assert {p.field for p in caught.value.problems} == {"model.path", "data.eval"}
    (tmp_path / "no-model").mkdir()
    write(tmp_path / "none.jsonl", [{"prompt": "a", "answer": "3"}])
    with pytest.raises(ConfigProblems) as caught:
        preflight(parse_config(config))
    messages = {p.field: p.message for p in caught.value.problems}
    assert messages["model.path"] == "lacks config.json, tokenizer_config.json, *.safetensors"
    assert "1 held-out prompt also among the training prompts: 'a'" in messages["data.eval"]


def test_preflight_names_a_function_that_cannot_be_had(tmp_path):
    bundled = "pipeline/bundled/"
    (tmp_path / "rewards" / "deep").mkdir(parents=True)
    (tmp_path / "rewards" / "mine.py").write_text("raise RuntimeError('it is not run')")
    (tmp_path / "rewards" / "deep" / "__init__.py").write_text("")
    folder = str(tmp_path / "rewards")
    good = [{"name": "function", "folder": folder, "path": f"{module}:b"} for module in ("mine", "deep")]
    bad = {"name": "function", "folder": folder, "path": "deep.more:b"}
    config = {
        "model": {"path": bundled + "policy"},
        "data": {"train": bundled + "prompts.train.jsonl", "eval": bundled + "prompts.eval.jsonl"},
        "reward": good[0],
        "rewards": {"own": good[1]},
    }
    preflight(parse_config(config))
    benchmark = {"name": "more", "data": bundled + "prompts.eval.jsonl", "reward": bad}
    config |= {
        "reward": {"name": "sum", "parts": [{"reward": {"name": "exact"}}, {"reward": bad | {"folder": "/"}}]},
        "rewards": {"own": bad | {"folder": "/nowhere"}},
        "evaluation": {"benchmarks": [benchmark]},
    }
    with pytest.raises(ConfigProblems) as caught:
        preflight(parse_config(config))
    assert {p.field: p.message.partition(";")[0] for p in caught.value.problems} == {
        "reward.parts.1.reward.folder": f"holds {ROOT}",
        "rewards.own.folder": "is no folder",
        "evaluation.benchmarks.0.reward.path": f"has no module deep/more.py in the folder {folder!r}",
    }


def test_the_bundled_sets_pass(tmp_path):
    bundled = "pipeline/bundled/"
    config = parse_config(
        {
            "model": {"path": bundled + "policy"},
            "data": {"train": bundled + "prompts.train.jsonl", "eval": bundled + "prompts.eval.jsonl"},
        }
    )
    preflight(config)
    train, (held_out,) = load_run_prompts(config)
    assert len(train) >= 2000 and len(held_out) >= 300


def test_files_are_read_again_when_they_or_their_settings_change(tmp_path, monkeypatch):
    train, held_out = tmp_path / "train.jsonl", tmp_path / "eval.jsonl"
    write(train, [{"prompt": "a", "answer": "1"}, {"prompt": "b", "answer": "2"}])
    write(held_out, [{"prompt": "c", "answer": "3", "other": "a"}])
    config = {"model": {"path": "m"}, "data": {"train": str(train), "eval": str(held_out)}, "budget": {"steps": 1}}
    reads = []
    call = loading.load_run_prompts
    monkeypatch.setattr(loading, "load_run_prompts", lambda config: reads.append(config) or call(config))
    first = count_run_prompts(parse_config(config))
    assert first == (load_run_prompts(parse_config(config))[0].digest, 2, (1,)) and len(reads) == 1
    assert count_run_prompts(parse_config(config | {"budget": {"steps": 2}})) == first and len(reads) == 1
    write(train, [{"prompt": "a", "answer": "1"}, {"prompt": "d", "answer": "2"}])  # of the same size
    changed = count_run_prompts(parse_config(config))
    assert changed.digest != first.digest and len(reads) == 2
    dressed = config | {"data": config["data"] | {"template": "{prompt}?"}}
    assert count_run_prompts(parse_config(dressed)).digest != changed.digest and len(reads) == 3
    (tmp_path / "new.jsonl").write_text('{"prompt": "a", "answer": "1"}\n')
    (tmp_path / "new.jsonl").replace(held_out)
    for _ in range(2):  # what is refused is looked at anew each time
        with pytest.raises(ConfigProblems, match="also among the training prompts"):
            count_run_prompts(parse_config(config))
    held_out.unlink()
    with pytest.raises(ConfigProblems, match="no such file"):
        count_run_prompts(parse_config(config))
