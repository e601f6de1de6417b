"""Published sets by their published columns, and verl's layout both ways."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cli.data import described
from pipeline.config import ConfigProblems, DataConfig, MappingName
from pipeline.prompts import Prompt, load_prompts
from pipeline.prompts.convert import convert
from pipeline.prompts.mappings import LAYOUTS
from pipeline.rewards import Response
from pipeline.rewards.choice import ChoiceReward

SHARED = Path(__file__).parents[4] / "shared" / "data"
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nFind $x$.\n\nIt is odd.\n\nRemember to "
    'put your answer on its own line after "Answer:".'
)
PUBLISHED: dict[MappingName, tuple[dict[str, Any], str, str, tuple[str, ...]]] = {
    "deepmath": (
        {"question": "Evaluate 1/0.", "final_answer": "\\infty", "difficulty": 4.5, "topic": "Algebra",
         "r1_solution_1": "..."},
        "Evaluate 1/0.", "\\infty", ("topic=Algebra", "difficulty=4.5"),
    ),
    "polaris": (
        {"problem": "What is 2+2?", "answer": "4", "difficulty": "3/8"}, "What is 2+2?", "4", ("difficulty=3/8",)
    ),
    "dapo": (
        {"data_source": "math_dapo", "ability": "MATH", "prompt": [{"content": DAPO, "role": "user"}],
         "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}, "extra_info": {"index": "9a9b"}},
        "Find $x$.\n\nIt is odd.", "34", (),
    ),
    "sciknoweval": (
        {"prompt": {"default": "Given a question and four options, please select the right answer."},
         "question": "Which is a gas?", "answer": "", "type": "mcq-4-choices", "domain": "Chemistry",
         "details": {"level": "L1", "task": "literature_multi_choice_question", "subtask": "QA", "source": "BioRxiv"},
         "answerKey": "B", "choices": {"text": ["iron", "neon"], "label": ["A", "B"]}},
        "Which is a gas?\nA. iron\nB. neon", "B",
        ("domain=Chemistry", "type=mcq-4-choices", "level=L1", "task=literature_multi_choice_question"),
    ),
}  # fmt: skip


def load(path: Path, mapping: MappingName) -> tuple[Prompt, ...]:
    return load_prompts(path, DataConfig(train="t", eval="e", mapping=mapping), "data.train").prompts


def test_every_mapping_that_a_config_can_name_is_there() -> None:
    assert tuple(LAYOUTS) == get_args(MappingName)


@pytest.mark.parametrize("mapping", PUBLISHED)
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_published_columns(tmp_path: Path, mapping: MappingName, suffix: str) -> None:
    row, text, answer, tags = PUBLISHED[mapping]
    path = tmp_path / f"a{suffix}"
    if suffix == ".jsonl":
        path.write_text(json.dumps(row))
    else:
        pq.write_table(pa.Table.from_pylist([row]), path)
    (prompt,) = load(path, mapping)
    assert (prompt.text, prompt.answer, prompt.tags) == (text, answer, tags)


def test_a_choice_is_scored_by_its_letter(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    open_ended = PUBLISHED["sciknoweval"][0] | {"answer": "True", "answerKey": "", "choices": {"text": [], "label": []}}
    path.write_text(json.dumps(open_ended))
    assert [(p.text, p.answer) for p in load(path, "sciknoweval")] == [("Which is a gas?", "True")]
    path.write_text(json.dumps(PUBLISHED["sciknoweval"][0]))
    (prompt,) = load(path, "sciknoweval")
    assert ChoiceReward().look(Response("The answer is B.", prompt.answer, prompt.text)).value == 1


@pytest.mark.parametrize(
    ("file", "mapping", "n", "answer"),
    [
        ("gsm8k.train", "gsm8k", 7473, "72"),
        ("gsm8k.test", "gsm8k", 1319, "18"),
        ("math500.test", "math500", 500, "\\left( 3, \\frac{\\pi}{2} \\right)"),
        ("aime24.test", "aime24", 30, "204"),
        ("amc23.test", "amc23", 40, "27"),
        ("olympiadbench.test", "olympiadbench", 675, "2"),
        ("minerva_math.test", "minerva", 272, "1.6"),
        ("gsm8k_calc.test", "plain", 1265, "9"),
    ],
)
def test_benchmark_files_load_whole(file: str, mapping: MappingName, n: int, answer: str) -> None:
    path = SHARED / f"{file}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there: the benchmark files are not shipped")
    first = json.loads(path.open(encoding="utf-8").readline())
    prompts = load(path, mapping)
    asked = (first.get("problem") or first.get("question") or first["prompt"]).strip()
    assert len(prompts) == n
    assert [p.answer for p in prompts if p.text == asked] == [answer]


def test_verl_layout_both_ways(tmp_path: Path) -> None:
    rows = [
        {"prompt": "2+2=", "answer": "4", "tags": ["add", "easy"], "reward": "math"},
        {"prompt": [{"role": "system", "content": "Think."}, {"role": "user", "content": "3+3="}], "answer": "5"},
        *({"prompt": f"{n}=", "answer": str(n)} for n in range(6, 24)),
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    before = convert(described(str(tmp_path / "a.jsonl"), "plain"), tmp_path / "b.parquet")
    written = pq.read_table(tmp_path / "b.parquet").to_pylist()
    assert [row["reward_model"]["ground_truth"] for row in written] == [str(n) for n in range(4, 24)], "in their order"
    assert all(row["data_source"] == "a" and row["reward_model"]["style"] == "rule" for row in written)
    after = convert(described(str(tmp_path / "b.parquet"), "verl"), tmp_path / "c.jsonl")
    assert after == before
    again = convert(described(str(tmp_path / "c.jsonl"), "plain"), tmp_path / "d.jsonl")
    assert again == before
    assert (tmp_path / "c.jsonl").read_bytes() == (tmp_path / "d.jsonl").read_bytes()
    with pytest.raises(ConfigProblems, match="ends in .jsonl"):
        convert(described(str(tmp_path / "c.jsonl"), "plain"), tmp_path / "d.csv")


@pytest.mark.skipif(importlib.util.find_spec("verl") is None, reason="verl is not installed here")
def test_verls_own_dataset_reads_it(tmp_path: Path) -> None:
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset

    (tmp_path / "a.jsonl").write_text('{"prompt": "2+2=", "answer": "4"}')
    convert(described(str(tmp_path / "a.jsonl"), "plain"), tmp_path / "b.parquet")
    root = Path(__file__).parents[3]
    tokenizer = AutoTokenizer.from_pretrained(root / "pipeline" / "bundled" / "policy")
    config = OmegaConf.create({"max_prompt_length": 64, "cache_dir": str(tmp_path / "cache")})
    dataset = RLHFDataset(str(tmp_path / "b.parquet"), tokenizer, config)
    assert dataset[0]["raw_prompt"] == [{"role": "user", "content": "2+2="}]
    assert dataset[0]["reward_model"]["ground_truth"] == "4"
