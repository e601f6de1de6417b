"""`pilot data`: files with columns of their own, on either side."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from pipeline.config import ROOT

OWN = ("--prompt-key", "q", "--answer-key", "a", "--tags-key", "topics", "--reward-key", "by")


def pilot(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "pilot"), "data", *map(str, words)], capture_output=True, text=True, timeout=120, cwd=ROOT
    )


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """With columns of its own; those of the usual names hold something else."""
    row: dict[str, object] = {"q": "What is one and one?", "a": "2", "topics": ["sums"], "by": "numeric", "tags": 1}
    return write(tmp_path / "own.jsonl", row)


def test_every_command_reads_columns_of_other_names(own: Path, tmp_path: Path) -> None:
    assert "has no text in 'prompt'" in pilot("validate", own).stdout
    checked = pilot("validate", own, *OWN, "--eval", own, "--json")
    report = json.loads(checked.stdout)
    assert report["preview"][0] | {"id": ""} == {
        "id": "", "text": "What is one and one?", "answer": "2", "tags": ["sums"], "reward": "numeric"
    }  # fmt: skip
    assert [f["kind"] for f in report["findings"]] == ["held_out"], "both sides have them, as in a config"
    assert pilot("convert", own, tmp_path / "ours.jsonl", *OWN).returncode == 0
    ours = {"prompt": "What is one and one?", "answer": "2", "tags": ["sums"], "reward": "numeric"}
    assert json.loads((tmp_path / "ours.jsonl").read_text()) == ours
    assert pilot("decontaminate", own, own, *OWN).returncode == 1


def test_each_side_has_its_mapping(tmp_path: Path) -> None:
    train = write(tmp_path / "gsm8k.jsonl", {"question": "What is one and one?", "answer": "so\n#### 2"})
    held_out = write(tmp_path / "math500.jsonl", {"problem": "what is one and one", "answer": "2"})
    sides = ("--mapping", "gsm8k", "--eval-mapping", "math500")
    found = pilot("decontaminate", train, held_out, *sides)
    assert (found.returncode, "1 of its prompts" in found.stdout) == (1, True), found.stderr
    assert pilot("validate", train, "--eval", held_out, *sides).returncode == 0
    same = pilot("decontaminate", train, train, "--mapping", "gsm8k", "--json")
    assert json.loads(same.stdout)[str(train)][0]["kind"] == "exact", "unset: as --mapping, as in a config"


def test_what_cannot_be_read_so(own: Path) -> None:
    for words, told in (
        (("--mapping", "gsm8k", "--answer-key", "a"), "--answer-key goes with --mapping plain; gsm8k has columns"),
        (("--eval-mapping", "mnist"), "--eval-mapping: unknown; known: plain, verl"),
        (("--prompt-key", ""), "--prompt-key: String should have at least 1 character"),
    ):
        answer = pilot("validate", own, *words)
        assert (answer.returncode, told in answer.stderr) == (2, True), answer.stderr
