"""`pilot audit`: the terminal, files, JSON; and words where a traceback could be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from cli.place import ROOT
from tests.pipeline.audit import logs


def pilot(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cli", "audit", *map(str, words)]
    env = {"PATH": "/usr/bin:/bin", "COLUMNS": "80", **environment}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def test_a_log_is_audited(tmp_path: Path) -> None:
    folder = logs.verl(tmp_path / "rollouts", logs.stream(6, 4, 8, (0, 4, 8, 4)))
    shown = pilot(folder, "--replays", 2, "--html", tmp_path / "r.html", "--out", tmp_path / "new" / "out")
    assert shown.returncode == 0 and shown.stderr.count("Written: ") == 3, shown.stderr
    assert "50.0% of the rollouts lie in groups of equal rewards" in shown.stdout.replace("\n", " ")
    assert "Pilot-Commit" in shown.stdout and "pilot_evicted" in shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    written = (tmp_path / "new" / "out" / "audit.json").read_text()
    assert (tmp_path / "r.html").read_text() == (tmp_path / "new" / "out" / "audit.html").read_text()
    told = pilot(folder, "--replays", 2, "--json")
    assert json.loads(told.stdout) == json.loads(written)
    (tmp_path / "home" / "runs").mkdir(parents=True)
    folder.rename(tmp_path / "home" / "runs" / "a1b2c3")
    assert pilot("a1b2c3", "--replays", 1, PILOT_HOME=str(tmp_path / "home")).returncode == 0, "a run by its id"


def test_what_cannot_be_done_is_told_in_words(tmp_path: Path) -> None:
    log = logs.table(tmp_path / "log.csv", logs.stream(2, 2, 4, (2,)))
    for words, code, why in (
        (["nowhere"], 2, "nowhere: No such file or directory"),
        ([log, "--p-lower", "2"], 2, "--p-lower: Input should be less than or equal to 1"),
        ([log, "--p-lower", "0.9"], 2, "p_lower=0.9 is above p_upper=0.75"),
        ([log, "--format", "xml"], 2, "--format: Input should be 'verl', 'trl', 'csv' or 'pilot'"),
        ([log, "--reward", "points"], 2, "log.csv: has no column 'points'"),
        ([log, "--replays", "1", "--html", tmp_path / "no" / "r.html"], 1, "cannot be written"),
    ):
        failed = pilot(*words)
        assert failed.returncode == code and why in failed.stderr, failed.stderr
        assert "Traceback" not in failed.stderr and failed.stdout == ""
