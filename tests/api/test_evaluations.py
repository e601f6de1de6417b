"""Asking for an evaluation of a checkpoint over HTTP: what is stored, what is refused, and where it is seen."""

from __future__ import annotations

import datetime as dt
import uuid
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from db import ingest as tables
from db import leases, slots
from db.models import AuditEntry, Run, StepMetrics
from pipeline.config import parse_config
from tests.api.rows import add, add_run, step
from tests.api.served import make_token
from tests.api.test_problems import problem
from tests.worker import logs
from worker.ingest import ingest

FUNCTION = {"name": "function", "folder": "docs", "path": "a:b"}


@pytest.fixture
def run(engine: sa.Engine, home: Path, config: dict[str, Any], tmp_path: Path) -> Run:
    """At step 47, with the checkpoints of 20 (the best one) and 40 left."""
    (tmp_path / "aime24.jsonl").write_text('{"prompt": "1+90=", "answer": "91"}')
    config["evaluation"] = {"benchmarks": [{"name": "aime24", "data": str(tmp_path / "aime24.jsonl"), "samples": 8}]}
    whole = parse_config(config).model_dump(mode="json")
    run = add_run(engine, name="tiny", config=whole, state="succeeded", reason="all done", step=47, attempt=2)
    for number, accuracy in ((20, 0.5), (40, 0.4)):
        folder = home / "runs" / str(run.id) / "checkpoints" / f"step_{number:06d}"
        folder.mkdir(parents=True)
        (folder / "accuracy.json").write_text(f'{{"sampled_accuracy": {accuracy}}}')
    return run


def row(engine: sa.Engine, id: object) -> Run:
    with Session(engine, expire_on_commit=False) as session:
        return session.get_one(Run, uuid.UUID(str(id)))


def test_what_is_asked_for_is_stored_once_and_seen_as_an_evaluation_only(
    api: TestClient, engine: sa.Engine, run: Run, tmp_path: Path
) -> None:
    address = f"/api/v1/runs/{run.id}/evaluations"
    body = {"step": "best", "benchmarks": ["aime24", str(tmp_path / "eval.jsonl")], "samples": 16, "temperature": 0.6}
    made = api.post(address, json=body, headers={"idempotency-key": "k"})
    assert made.status_code == 201, made.text
    again = api.post(address, json=body, headers={"idempotency-key": "k"})
    assert again.json() == made.json() and again.headers["idempotency-replayed"] == "true"
    found = made.json()
    assert made.headers["location"] == f"/api/v1/evaluations/{found['id']}"
    assert api.get(made.headers["location"]).json() == found
    assert (found["run_id"], found["run_name"], found["step"], found["state"]) == (str(run.id), "tiny", 20, "queued")
    assert found["reason"] == "no worker is running that could start it"
    assert [(b["name"], b["samples"], b["temperature"], b["greedy"]) for b in found["benchmarks"]] == [
        ("held-out", 4, 1.0, True),
        ("aime24.k16.t0.6", 16, 0.6, False),
        ("eval.k16.t0.6", 16, 0.6, False),
    ]
    newest = api.post(address, json={}).json()
    assert (newest["step"], [b["name"] for b in newest["benchmarks"]]) == (40, ["held-out", "aime24"])
    listed = api.get("/api/v1/evaluations", params={"run": str(run.id), "limit": 1}).json()
    assert [e["id"] for e in listed["evaluations"]] == [newest["id"]]
    more = api.get("/api/v1/evaluations", params={"run": str(run.id), "limit": 1, "cursor": listed["next_cursor"]})
    assert [e["id"] for e in more.json()["evaluations"]] == [found["id"]] and more.json()["next_cursor"] is None
    assert api.get("/api/v1/evaluations", params={"state": "failed"}).json()["evaluations"] == []
    assert api.get("/api/v1/evaluations", params={"run": str(uuid.uuid4())}).json()["evaluations"] == []

    assert [r["id"] for r in api.get("/api/v1/runs").json()["runs"]] == [str(run.id)], "it is no run"
    for where in ("", "/config", "/log", "/ledger", "/checkpoints"):
        assert problem(api.get(f"/api/v1/runs/{found['id']}{where}"))["type"] == "/problems/run-not-found"
    assert problem(api.post(f"/api/v1/runs/{found['id']}/stop"))["type"] == "/problems/run-not-found"
    assert problem(api.get(f"/api/v1/evaluations/{run.id}"))["type"] == "/problems/evaluation-not-found"
    assert api.get(f"/api/v1/evaluations/{found['id']}/log").json()["text"] == ""

    stopped = api.post(f"/api/v1/evaluations/{found['id']}/stop")
    assert (stopped.status_code, stopped.json()["state"]) == (202, "stopped")
    assert (
        "the evaluation has stopped already"
        in problem(api.post(f"/api/v1/evaluations/{found['id']}/stop"))["detail"].lower()
    )
    under_way = problem(api.delete(f"/api/v1/runs/{run.id}"))
    assert (under_way["status"], under_way["type"]) == (409, "/problems/wrong-state")
    assert f"being evaluated ({newest['id']})" in under_way["detail"]
    with Session(engine) as session:
        told = session.execute(sa.select(AuditEntry.action, AuditEntry.target).order_by(AuditEntry.id)).all()
    assert [tuple(entry) for entry in told] == [
        ("run.evaluate", str(run.id)), ("run.evaluate", str(run.id)), ("run.evaluate.stop", str(run.id)),
    ]  # fmt: skip
    api.post(f"/api/v1/evaluations/{newest['id']}/stop")
    assert api.delete(f"/api/v1/runs/{run.id}").status_code == 200
    assert api.get(f"/api/v1/evaluations/{newest['id']}").status_code == 404, "they are gone with their run"


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"step": 60}, "body.step", "the run has come to step 47; there are checkpoints of step 20, 40"),
        ({"step": 7}, "body.step", "no checkpoint is saved there (checkpoint.every=10); there are"),
        ({"step": 30}, "body.step", "not kept any more (checkpoint.keep=2, keep_best=1); there are checkpoints of"),
        ({"benchmarks": ["aime99"]}, "benchmark aime99", "and no benchmark of the run; those are held-out, aime24"),
        ({"reward": FUNCTION | {"folder": "/"}}, "reward.folder", "give one with the module alone"),
        ({"reward": FUNCTION | {"folder": "/nowhere"}}, "reward.folder", "is no folder"),
        ({"reward": FUNCTION}, "reward.path", "has no module a.py in the folder 'docs'"),
        ({"reward": {"name": "sum", "parts": [{"reward": FUNCTION}]}}, "reward.parts.0.reward.path", "has no module a"),
        ({"benchmarks": ["aime24", "aime24"]}, "evaluation", "benchmark 'aime24' more than once"),
        ({"benchmarks": ["set:nothing@0123456789abcdef"]}, "benchmark nothing", "there is no such prompt set"),
        ({"protocol": "math-7"}, "benchmark aime25", "no such file"),
        ({"samples": 0}, "body.samples", "greater than or equal to 1"),
        ({"reward": {"name": "nonsense"}}, "reward.name", "unknown reward 'nonsense'"),
        ({"benchmarks": ["a\x00b"]}, "benchmarks.0", "NUL"),
        ({"stepp": 1}, "body.stepp", "unknown field"),
    ],
)
def test_what_is_refused(
    api: TestClient, engine: sa.Engine, run: Run, body: dict[str, Any], field: str, words: str
) -> None:
    found = problem(api.post(f"/api/v1/runs/{run.id}/evaluations", json=body))
    errors = {e["field"]: e["message"] for e in found["errors"]}
    assert found["status"] == 422 and words in errors[field]
    with Session(engine) as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Run)) == 1, "nothing is stored"


def test_without_checkpoint_run_or_scope(
    api: TestClient, engine: sa.Engine, run: Run, database_url: str, home: Path
) -> None:
    (home / "runs" / str(run.id) / "checkpoints").rename(home / "elsewhere")
    found = problem(api.post(f"/api/v1/runs/{run.id}/evaluations", json={}))
    assert "the run has no checkpoint: one is saved every 10 steps" in found["errors"][0]["message"]
    assert problem(api.post(f"/api/v1/runs/{uuid.uuid4()}/evaluations", json={}))["status"] == 404
    cluster = run.config | {"engine": {"name": "verl", "ray_address": "http://head:8265"}}
    busy = add_run(engine, config=parse_config(cluster).model_dump(mode="json"), state="running", step=20)
    found = problem(api.post(f"/api/v1/runs/{busy.id}/evaluations", json={}))
    assert (
        found["status"] == 409 and "is running on the Ray cluster at http://head:8265, which takes" in found["detail"]
    )
    reader = {"authorization": f"Bearer {make_token(database_url, 'read')}"}
    assert api.get("/api/v1/evaluations", headers=reader).status_code == 200
    refused = problem(api.post(f"/api/v1/runs/{run.id}/evaluations", json={}, headers=reader))
    assert refused["type"] == "/problems/scope-missing"


def test_an_uploaded_set_is_kept_as_long_as_an_evaluation_needs_it(api: TestClient, run: Run) -> None:
    sets = "/api/v1/prompt-sets"
    kept = api.post(sets, params={"name": "mini", "file": "a.json"}, json=[{"prompt": "1?", "answer": "1"}]).json()
    body = {"benchmarks": [f"set:mini@{kept['version']}"]}
    asked = api.post(f"/api/v1/runs/{run.id}/evaluations", json=body).json()
    assert [b["name"] for b in asked["benchmarks"]] == ["held-out", "mini"]
    in_use = problem(api.delete(f"{sets}/mini/{kept['version']}"))
    assert in_use["type"] == "/problems/prompt-set-in-use" and asked["id"] in in_use["detail"]
    api.post(f"/api/v1/evaluations/{asked['id']}/stop")
    assert api.delete(f"{sets}/mini/{kept['version']}").status_code == 200


def test_results_come_with_the_run_s_own_and_its_slot_says_what_holds_it(
    api: TestClient, engine: sa.Engine, run: Run
) -> None:
    """Of a step that the run has evaluated: what was measured again replaces the old numbers, the rest stays."""
    add(engine, step(run, 40))
    with Session(engine) as session, session.begin():
        mine = session.get_one(Run, run.id)
        attempt = tables.attempt(session, mine, tables.begin_attempt(session, mine, 1, "h"))
        values = logs.evaluation(40, 0.4).model_dump(exclude={"type", "seq", "time"})
        tables.add_evaluation(session, mine, attempt, values | {"finished_at": dt.datetime.now(dt.UTC)})
    id = uuid.UUID(api.post(f"/api/v1/runs/{run.id}/evaluations", json={}).json()["id"])
    with Session(engine) as session, session.begin():
        slots.announce(session, "h", [slots.Device("cpu", "0", "CPU slot 0")], dt.timedelta(minutes=1))
        claim = leases.claim_next(session, "h", "h:1:1:1", dt.timedelta(minutes=1))
        assert claim == (id, 1)
        assert tables.begin_attempt(session, leases.owned(session, id, 1), 1, "h") == 1
    (slot,) = api.get("/api/v1/workers").json()["workers"][0]["slots"]
    assert (slot["run_id"], slot["evaluation_id"], slot["run_name"]) == (str(run.id), str(id), "tiny")
    found = logs.evaluation(40, 0.6)
    new = found.model_copy(
        update={"benchmarks": [logs.benchmark("held-out", 0.6, 6), logs.benchmark("aime24.k64", 0.9, 64)]}
    )
    events = logs.number([logs.started(1, 40), new, logs.finished(40)])
    for _ in range(2):  # the second time nothing is new
        with Session(engine) as session, session.begin():
            ingest(session, id, 1, 1, events)
    evaluation = api.get(f"/api/v1/evaluations/{id}").json()
    assert (evaluation["state"], evaluation["rollouts"]) == ("running", 8)
    assert [b["name"] for b in evaluation["results"]] == ["held-out", "aime24.k64"]
    (merged,) = api.get(f"/api/v1/runs/{run.id}/metrics").json()["evaluations"]
    assert {b["name"]: b["accuracy"] for b in merged["benchmarks"]} == {
        "held-out": 0.6, "aime24": 0.2, "aime24.k64": 0.9,
    }  # fmt: skip
    assert (merged["sampled_accuracy"], merged["mean_accuracy"]) == (0.6, 0.2)
    spent = {e["benchmark"]: e["rollouts"] for e in api.get(f"/api/v1/runs/{run.id}/ledger").json()["evaluation"]}
    assert spent == {"held-out": 12, "aime24": 2, "aime24.k64": 64}
    mine = row(engine, run.id)
    assert (mine.state, mine.reason, mine.accuracy) == ("succeeded", "all done", 0.6)
    assert api.get(f"/api/v1/runs/{run.id}").json()["eval_seconds"] == 0.5, "of its own attempts alone"
    with Session(engine) as session:
        assert session.scalars(sa.select(StepMetrics.run_id)).all() == [run.id]


def test_what_an_older_version_left_is_shown_and_not_begun_again(api: TestClient, engine: sa.Engine, run: Run) -> None:
    """Its config names a version of a reward that is not there any more."""
    budget = run.config["budget"] | {"gpu_hours": 9.0}
    old = run.config | {"reward": {"name": "math", "version": 1}, "budget": budget}
    with Session(engine) as session, session.begin():
        session.get_one(Run, run.id).config = old
    asked = add_run(engine, config=old, evaluates=run.id, state="succeeded")
    listed = api.get("/api/v1/runs").json()["runs"]
    assert [each["id"] for each in listed] == [str(run.id)]
    assert api.get(f"/api/v1/runs/{run.id}").json()["gpu_hours"] == 0
    (seen,) = api.get("/api/v1/evaluations").json()["evaluations"]
    assert (seen["id"], seen["benchmarks"]) == (str(asked.id), [])
    refused = api.post("/api/v1/runs", json={"config": old})
    assert refused.status_code == 422
    assert any(e["field"] == "reward.version" and "2" in e["message"] for e in refused.json()["errors"])
