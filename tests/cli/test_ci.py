"""A run as a check of a pipeline: what is required, how it is judged, what is written; against the real API."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.client import Client
from api.settings import Settings
from cli import ci
from cli.failure import Failure
from db.models import Run
from tests.api.rows import add, add_run
from tests.api.served import ApiServer
from tests.api.test_follow import evaluation

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy>=0.6", ("accuracy", ">=", 0.6)),
        (" gain > -1e-3 ", ("gain", ">", -0.001)),
        ("rollouts<=200000", ("rollouts", "<=", 200_000)),
        ("steps==7", ("steps", "==", 7)),
        ("seconds<.5", ("seconds", "<", 0.5)),
    ],
)
def test_what_can_be_required(text: str, expected: tuple[str, str, float]) -> None:
    assert ci.requirement(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a metric"),
        ("accuracy", "is not a metric"),
        ("accuracy=0.6", "one of >= <= > < =="),
        ("accuracy>=60%", "is not a metric"),
        ("accuracy>=nan", "is not a metric"),
        ("accuracy>=0.6;rollouts<3", "is not a metric"),
        ("__class__>=1", "there is no metric '__class__'.*\n  accuracy "),
        ("acuracy>=0.6", "there is no metric 'acuracy'"),
    ],
)
def test_what_cannot_be_required(text: str, words: str) -> None:
    with pytest.raises(Failure, match=words) as caught:
        ci.requirement(text)
    assert caught.value.code == 2


def finished(engine: sa.Engine, **columns: Any) -> Run:
    begin, end = sa.text("'2026-01-01 10:00+00'"), sa.text("'2026-01-01 10:01:30+00'")
    given = {"state": "succeeded", "attempt": 1, "step": 7, "rollouts": 900, "tokens": 9000, "name": "a|b <c>"}
    given |= {"first_accuracy": 0.25, "accuracy": 0.5, "best_accuracy": 0.625}
    run = add_run(engine, **given | {"started_at": begin, "finished_at": end} | columns)
    return run


def test_every_metric_is_judged(engine: sa.Engine, database_url: str, broker_url: str) -> None:
    run = finished(engine)
    add(engine, evaluation(run, 0), evaluation(run, 5))
    values = {
        "accuracy": 0.5, "best_accuracy": 0.625, "gain": 0.25, "greedy_accuracy": 0.5, "mean_accuracy": 0.125,
        "steps": 7, "rollouts": 900, "tokens": 9000, "seconds": 90,
    }  # fmt: skip
    assert set(values) == set(ci.METRICS)
    settings = Settings(database_url=database_url, redis_url=broker_url)
    with ApiServer(settings) as server, Client(server.url, server.token) as client:
        for name, value in values.items():
            asked = [ci.Requirement(name, sign, value) for sign in (">=", "<=", "==", ">", "<")]
            results = ci.checks(client, client.get_run(run.id), asked)
            assert [r.problem is None for r in results] == [True, True, True, True, False, False], name
            assert results[-1].problem == f"{name} is {value:g}, required is < {value:g}"
        never = finished(engine, accuracy=None)
        results = ci.checks(client, client.get_run(never.id), [ci.requirement("gain<9"), ci.requirement("accuracy<9")])
        assert [r.problem for r in results[1:]] == ["it was never measured"] * 2
        failed = finished(engine, state="failed", reason="out of memory\nat line 3")
        (first,) = ci.checks(client, client.get_run(failed.id), [])
        assert first.problem == "it failed: out of memory\nat line 3"


def test_reports(engine: sa.Engine, database_url: str, broker_url: str, tmp_path: Path) -> None:
    results = [
        ci.Check("the run succeeds", "succeeded", None),
        ci.Check("accuracy >= 0.6", "0.5", "accuracy is 0.5, required is >= 0.6"),
        ci.Check("x|\x07", "-", "two\nlines | of <it>"),
    ]
    run = finished(engine)
    settings = Settings(database_url=database_url, redis_url=broker_url)
    with ApiServer(settings) as server, Client(server.url, server.token) as client:
        detail = client.get_run(run.id)
    ci.write_junit(tmp_path / "new" / "junit.xml", detail, results)
    suite = ET.parse(tmp_path / "new" / "junit.xml").getroot()[0]
    assert {k: suite.attrib[k] for k in ("tests", "failures", "errors", "time")} == {
        "tests": "3", "failures": "2", "errors": "0", "time": "90.000",
    }  # fmt: skip
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == ["the run succeeds", "accuracy >= 0.6", "x|\ufffd"]
    assert [len(case) for case in cases] == [0, 1, 1]
    assert cases[1][0].get("message") == "accuracy is 0.5, required is >= 0.6"
    assert cases[2][0].text == "two\nlines | of <it>"

    ci.write_markdown(tmp_path / "summary.md", detail, results)
    text = (tmp_path / "summary.md").read_text()
    assert text.startswith("## ❌ a\\|b &lt;c>\n")
    assert "| accuracy >= 0.6 | 0.5 | accuracy is 0.5, required is >= 0.6 |" in text
    assert "25.0% → 50.0% (best 62.5%) with 900 training rollouts" in text and str(run.id) in text
    (tmp_path / "file").touch()
    with pytest.raises(Failure, match="cannot be written"):
        ci.write_junit(tmp_path / "file" / "junit.xml", detail, results)


class Waiting:
    """`pilot run start ... --wait` in a process of its own, and its run."""

    def __init__(self, server: ApiServer, engine: sa.Engine, config: Path, *arguments: str) -> None:
        self.engine = engine
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", "run", "start", str(config), "--wait", *arguments],
            cwd=CHECKOUT,
            env=os.environ | {"PILOT_API_URL": server.url, "PILOT_TOKEN": server.token},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self) -> dict[str, Any]:
        deadline = time.monotonic() + 60
        while True:
            with self.engine.begin() as connection:
                if row := connection.execute(sa.select(Run.__table__)).mappings().one_or_none():
                    return dict(row)
            assert self.process.poll() is None and time.monotonic() < deadline, self.process.communicate()
            time.sleep(0.1)

    def update(self, **columns: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.update(Run).values(**columns))


@pytest.mark.parametrize(("reached", "code"), [(0.7, 0), (0.5, 1)])
def test_a_pipeline(
    engine: sa.Engine, database_url: str, broker_url: str, tmp_path: Path, reached: float, code: int
) -> None:
    junit, markdown = tmp_path / "junit.xml", tmp_path / "summary.md"
    with ApiServer(Settings(database_url=database_url, redis_url=broker_url)) as server:
        waiting = Waiting(
            server, engine, CHECKOUT / "pipeline/presets/demo.yaml", "--require", "accuracy>=0.6", "--max-rollouts",
            "200000", "--junit", str(junit), "--markdown", str(markdown), "--key", "build 7",
        )  # fmt: skip
        assert waiting.run()["config"]["budget"]["rollouts"] == 200_000
        waiting.update(state="running", accuracy=0.1, first_accuracy=0.1, best_accuracy=0.1, started_at=sa.func.now())
        time.sleep(1)
        assert waiting.process.poll() is None
        waiting.update(state="succeeded", accuracy=reached, best_accuracy=reached, finished_at=sa.func.now())
        said, _ = waiting.process.communicate(timeout=60)
    assert waiting.process.returncode == code, said
    assert ("ok    accuracy >= 0.6" in said) == (code == 0) and ("FAIL  accuracy >= 0.6" in said) == (code == 1)
    assert ET.parse(junit).getroot().get("failures") == str(code)
    assert ("✅" in markdown.read_text()) == (code == 0)


def test_a_cancelled_pipeline_stops_its_run(
    engine: sa.Engine, database_url: str, broker_url: str, tmp_path: Path
) -> None:
    with ApiServer(Settings(database_url=database_url, redis_url=broker_url)) as server:
        waiting = Waiting(server, engine, CHECKOUT / "pipeline/presets/demo.yaml")
        waiting.run()
        waiting.update(state="running")
        assert re.search("Run .* is queued", waiting.process.stdout.readline())  # type: ignore[union-attr]
        time.sleep(1.5)
        waiting.process.send_signal(signal.SIGTERM)
        said, _ = waiting.process.communicate(timeout=60)
        assert waiting.process.returncode == 128 + signal.SIGTERM, said
        assert waiting.run()["state"] == "stopping"
