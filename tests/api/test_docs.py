"""What docs/api.md gives to copy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from db.models import Run
from tests.api.served import ApiServer

DOCS = Path(__file__).resolve().parents[2] / "docs" / "api.md"


@pytest.mark.parametrize(("nth", "schema"), [(0, "github-workflows"), (1, "gitlab-ci")])
def test_an_example_for_a_ci_system_is_what_that_accepts(nth: int, schema: str, tmp_path: Path) -> None:
    (tmp_path / "ci.yml").write_text(re.findall(r"^```yaml\n(.*?)^```", DOCS.read_text(), re.S | re.M)[nth])
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", tmp_path / "ci.yml"]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.skipif(not (shutil.which("curl") and shutil.which("jq")), reason="the example is for curl and jq")
def test_the_example_for_curl(served: ApiServer, engine: sa.Engine, config: dict[str, Any], tmp_path: Path) -> None:
    """Its exit status is the run's; it never goes on when it is refused."""
    (script,) = re.findall(r"^```sh\n(.*?)^```", DOCS.read_text(), re.S | re.M)

    def start(build: str, body: dict[str, Any], token: str = served.token) -> subprocess.Popen[str]:
        folder = tmp_path / build
        folder.mkdir()
        (folder / "run.json").write_text(json.dumps(body))
        environment = {"PILOT_API_URL": served.url, "PILOT_TOKEN": token, "BUILD_ID": build, "PATH": os.environ["PATH"]}
        return subprocess.Popen(["sh", "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)

    ends = (
        ("good", {"state": "succeeded", "accuracy": 0.7}, 0),
        ("poor", {"state": "succeeded", "accuracy": 0.5}, 1),
        ("broken", {"state": "failed", "accuracy": 0.7, "reason": "the disk is full"}, 1),
    )
    jobs = [(start(name, {"config": config | {"name": name}}), end, code) for name, end, code in ends]
    deadline = time.monotonic() + 30
    for name, end, _ in ends:
        with engine.connect() as connection:
            while not connection.execute(sa.update(Run).where(Run.name == name).values(**end)).rowcount:
                assert time.monotonic() < deadline, f"{name} was never created"
                time.sleep(0.1)
            connection.commit()
    for job, end, code in jobs:
        said, _ = job.communicate(timeout=30)
        assert (job.returncode, end["state"] in said, end.get("reason", "") in said) == (code, True, True), said

    for job, words in (
        (start("stranger", {"config": config}, token="pilot_wrong"), "token-refused"),
        (start("typo", {"config": config | {"budgt": {}}}), "did you mean 'budget'?"),
    ):
        said, _ = job.communicate(timeout=30)
        assert job.returncode != 0 and words in said, said
