"""A checkpoint measured on demand: by itself without touching the run, and for the platform."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.__main__ import add_arguments
from pipeline.checkpoint import save_checkpoint
from pipeline.config import parse_config
from pipeline.engines.torch import Engine
from pipeline.evaluate import main
from pipeline.events import (
    AttemptFinished,
    AttemptStarted,
    Count,
    EvaluationFinished,
    EvaluationProgress,
    events_path,
    read_events,
)

BUNDLED = "pipeline/bundled/"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one checkpoint, of step 3: the bundled policy as it is."""
    folder = tmp_path_factory.mktemp("run")
    rows = Path(f"{BUNDLED}prompts.eval.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for name, lines in (("eval", rows[:30]), ("mini", rows[40:50]), ("My Set", rows[60:65])):
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    config = {
        "model": {"path": BUNDLED + "policy"},
        "data": {"train": BUNDLED + "prompts.train.jsonl", "eval": str(folder / "eval.jsonl")},
        "sampling": {"max_new_tokens": 8},
        "evaluation": {
            "samples": 2,
            "benchmarks": [{"name": "mini", "data": str(folder / "mini.jsonl"), "samples": 4}],
        },
        "engine": {"name": "torch", "threads": 1},
    }
    (folder / "config.json").write_text(json.dumps(config))
    parsed = parse_config(config)
    engine = Engine(parsed, parsed.engine, ())  # type: ignore[arg-type]
    save_checkpoint(folder, 3, {}, engine.save, keep=1)
    return folder


def evaluated(run_dir: Path, *arguments: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "pipeline", "evaluate", str(run_dir), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_by_itself_it_prints_and_leaves_the_run_alone(run_dir: Path, tmp_path: Path) -> None:
    before = sorted(run_dir.rglob("*"))
    code, out, err = evaluated(
        run_dir, "--benchmark", "mini", "--benchmark", str(run_dir / "My Set.jsonl"), "--samples", "8",
        "--top-p", "0.9", "--out", str(tmp_path / "new"), "--json",
    )  # fmt: skip
    assert code == 0, err
    told: dict[str, Any] = json.loads(out)
    assert told["step"] == 3 and [b["name"] for b in told["benchmarks"]] == ["mini", "my-set"]
    for result in told["benchmarks"]:
        rows = pq.read_table(tmp_path / "new" / f"{result['name']}.parquet").to_pylist()
        assert len(rows) == 8 * result["n_prompts"] == result["rollouts"] and result["top_p"] == 0.9
        assert sum(r["accuracy"] for r in rows) / len(rows) == pytest.approx(result["accuracy"])
        assert list(result["pass_at"]) == ["1", "2", "4", "8"]
    assert sorted(run_dir.rglob("*")) == before


def test_for_the_platform_it_tells_events_and_is_what_the_run_itself_would_have_measured(
    run_dir: Path, tmp_path: Path
) -> None:
    shutil.copy(run_dir / "config.json", tmp_path)
    code, _, err = evaluated(tmp_path, "--attempt", "2", "--of", str(run_dir), "--step", "3")
    assert code == 0, err
    began, first, second, last, found, end = [event for event, _ in read_events(events_path(tmp_path, 2))]
    assert isinstance(found, EvaluationFinished) and isinstance(end, AttemptFinished)
    assert isinstance(first, EvaluationProgress) and isinstance(second, EvaluationProgress)
    assert isinstance(last, EvaluationProgress)
    held_out, mini = (Count(rollouts=b.rollouts, tokens=b.tokens) for b in found.benchmarks)
    assert last.spent == {"held-out": held_out, "mini": mini}
    assert second.spent["held-out"] == held_out and first.spent["held-out"].tokens > held_out.tokens
    assert [e.spent[n].rollouts for e, n in ((first, "held-out"), (second, "mini"))] == [
        held_out.rollouts,
        mini.rollouts,
    ]
    assert isinstance(began, AttemptStarted) and began.from_step == 3
    assert (found.step, end.outcome, [b.name for b in found.benchmarks]) == (3, "succeeded", ["held-out", "mini"])
    kept = run_dir / "evaluations" / "step_000003"
    assert {p.name for p in kept.iterdir()} == {"held-out.parquet", "mini.parquet"}
    assert not list(tmp_path.rglob("*.parquet"))
    code, out, _ = evaluated(run_dir, "--json")
    again = json.loads(out)["benchmarks"]
    assert [b["accuracy"] for b in again] == [b.accuracy for b in found.benchmarks], "the same step, the same draws"


def test_a_full_disk_is_told_in_words(run_dir: Path, tmp_path: Path) -> None:
    """What it is about to write leads to a device that is always full."""
    shutil.copy(run_dir / "config.json", tmp_path)
    folder = tmp_path / "evaluations" / "step_000003"
    folder.mkdir(parents=True)
    (folder / "held-out.writing").symlink_to("/dev/full")
    assert evaluated(tmp_path, "--attempt", "1", "--of", str(run_dir))[0] == 1
    *_, end = [event for event, _ in read_events(events_path(tmp_path, 1))]
    assert isinstance(end, AttemptFinished)
    assert end.reason == f"the evaluation failed: the disk of {tmp_path} is full: free some space, then evaluate again"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--step", "4"), "has no checkpoint of step 4; there are: 3"),
        (("--benchmark", "aime99"), "'aime99' is neither a file nor a benchmark of the run; those are held-out, mini"),
        (("--samples", "0"), "--samples: Input should be greater than or equal to 1"),
        (("--top-p", "1.5"), "--top-p: Input should be less than or equal to 1"),
        (("--benchmark", "mini", "--benchmark", "mini"), "benchmark 'mini' more than once"),
        (("--reward", "nonsense"), "unknown reward 'nonsense'"),
    ],
)
def test_what_is_not_accepted(
    run_dir: Path, arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert main(parser.parse_args([str(run_dir), *arguments])) == 2
    said = capsys.readouterr()
    assert words in said.err and not said.out
