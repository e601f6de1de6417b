"""Audits over HTTP: files that are sent, runs of ours, and what is refused."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from api.app import create_app
from api.client import Client
from api.problems import UPLOAD_LIMIT
from api.routes import audits
from api.settings import Settings
from pipeline.allocation import Group, Request, Rollouts, Stage
from pipeline.audit import Bounds, bounded
from pipeline.prompts import Prompt, PromptSet
from pipeline.rollouts import write_rollouts
from tests.api.rows import add_run
from tests.api.served import ApiServer, make_token
from tests.api.test_problems import problem
from tests.pipeline.audit import logs

ADDRESS = "/api/v1/audits"
ROLLED = logs.stream(4, 4, 8, (0, 4, 8, 4))


@pytest.fixture
def api(database_url: str, broker_url: str, home: Path) -> Iterator[TestClient]:
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=home)
    headers = {"authorization": f"Bearer {make_token(database_url, 'read')}"}
    with TestClient(create_app(settings), "http://127.0.0.1", headers=headers) as client:
        yield client


def sent(*files: Path | tuple[str, bytes]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("files", (f.name, f.read_bytes()) if isinstance(f, Path) else f) for f in files]


def test_files_and_runs(
    api: TestClient, engine: sa.Engine, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    files = sent(*sorted(logs.verl(tmp_path / "verl", ROLLED).iterdir()))
    answer = api.post(ADDRESS, files=files, data={"settings": '{"replays": 1, "n_pilot": 3}'})
    assert answer.status_code == 200, answer.text
    report = answer.json()["report"]
    assert (report["format"], report["source"], report["zero_variance"]) == ("verl", "4 files from 1.jsonl", 0.5)
    assert report["settings"]["n_commit"] == 5 and len(report["methods"]) == 5
    assert answer.json()["page"].startswith("<!doctype html>")
    assert str(scratch) not in answer.text and list(scratch.iterdir()) == [], "nothing is kept"

    run = add_run(engine, state="running", attempt=1, name="first")
    address = f"/api/v1/runs/{run.id}/audit"
    body = problem(api.post(address, json={}))
    assert body["type"] == "/problems/log-refused" and body["detail"].startswith("Run first: No such file")
    for step in (1, 2):
        rewards = np.array([1.0, 0.0])
        columns = Rollouts(rewards, rewards, np.array([3, 4]), np.full(2, step), [{"text": "x", "logprob": -1.0}] * 2)
        prompts = PromptSet("p", (Prompt("id1", "1+1=", "2"),))
        write_rollouts(home / "runs" / str(run.id), step, [Group(Request(0, Stage.COMMIT, 2), columns)], prompts)
    answer = api.post(address, json={"replays": 1})
    assert answer.status_code == 200, answer.text
    assert (answer.json()["report"]["source"], answer.json()["report"]["tokens"]) == ("run first", 14)
    assert problem(api.post(address.replace("/audit", "x/audit"), json={}))["status"] == 422
    assert problem(api.post(address, json={"p_lower": 0.9}))["detail"].startswith("Value error") is False


@pytest.mark.parametrize("name", ["../1.jsonl", "/etc/passwd", "a/b.csv", ".hidden", "a\x00b", "..", "ä.csv", ""])
def test_files_cannot_leave_their_folder(api: TestClient, tmp_path: Path, name: str) -> None:
    response = api.post(ADDRESS, files=[("files", (name, b"step,prompt,reward\n"))])
    assert problem(response)["type"] in ("/problems/invalid-request", "/problems/invalid-json")


def test_what_is_refused(api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ("log.csv", b"step,prompt,reward\n" + b"1,a,1\n1,a,0\n" * 2)
    for files, settings, field in (
        (sent(good, good), "{}", "body.files"),
        (sent(good), "{", "body.settings"),
        (sent(good), '{"replays": 0}', "body.settings.replays"),
        (sent(good), '{"nonsense": 0}', "body.settings.nonsense"),
        ([("other", good)], "{}", "body.files"),
    ):
        errors = problem(api.post(ADDRESS, files=files, data={"settings": settings}))["errors"]
        assert [error["field"] for error in errors] == [field]
    for content, why in (
        (b"step,prompt,reward\n1,a,many\n", "1 bad row: log.csv, row 1: 'reward' is 'many', not a number"),
        (b"PK\x03\x04", "no column 'step'"),
    ):
        body = problem(api.post(ADDRESS, files=sent(("log.csv", content))))
        assert body["type"] == "/problems/log-refused" and why in body["detail"]
    for name in ("nocol.csv", "no col.csv"):
        detail = problem(api.post(ADDRESS, files=sent((name, b"step,prompt\n1,a\n"))))["detail"]
        assert detail.startswith(f"{name}: "), "a file is called as its sender calls it"
    broken = problem(api.post(ADDRESS, files=sent(("a.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1"))))
    assert broken["type"] == "/problems/log-refused"
    large = api.post(ADDRESS, content=b"x", headers={"content-length": str(UPLOAD_LIMIT + 1)})
    assert problem(large)["type"] == "/problems/body-too-large"
    endless = api.post(ADDRESS, content=iter([b"x"]))
    assert problem(endless)["type"] == "/problems/body-too-large", "a body of no told length is not begun to be read"
    with audits._under_way:
        busy = api.post(ADDRESS, files=sent(good))
    assert problem(busy)["type"] == "/problems/audit-busy" and busy.headers["retry-after"] == "30"
    monkeypatch.setattr(audits, "bounded", lambda path, given: bounded(path, given, Bounds(seconds=1)))
    slow = problem(api.post(ADDRESS, files=sent(good), data={"settings": '{"replays": 500}'}))
    assert "The audit of this log" in slow["detail"] and "./pilot audit" in slow["detail"]
    monkeypatch.undo()
    assert api.post(ADDRESS, files=sent(good), data={"settings": '{"replays": 1}'}).status_code == 200, (
        "it is free again"
    )


def test_the_client(served: ApiServer, tmp_path: Path) -> None:
    path = logs.table(tmp_path / "log.csv", ROLLED)
    with Client(served.url, served.token) as client:
        found = client.audit_files([(path.name, path.read_bytes())], {"replays": 1})
    assert (found.report.zero_variance, found.report.source) == (0.5, "log.csv")


def test_a_report_is_json_without_surprises(api: TestClient, tmp_path: Path) -> None:
    """Where nothing was ever mixed there are no rates; they are null, not NaN."""
    log = logs.table(tmp_path / "log.csv", logs.stream(2, 2, 4, (0, 4)))
    answer = api.post(ADDRESS, files=sent(log), data={"settings": '{"replays": 1}'})
    report: dict[str, Any] = json.loads(answer.text, parse_constant=lambda name: pytest.fail(name))["report"]
    assert report["per_mixed"] is None and report["methods"][0]["per_mixed"] is None
