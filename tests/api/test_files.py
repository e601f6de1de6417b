"""Logs, checkpoints and rollouts over HTTP; and nothing outside a run's own directory, whatever is asked."""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api.app import create_app
from api.settings import Settings
from db.models import PromptVisit, Run
from pipeline import rundir
from pipeline.rollouts import SCHEMA
from tests.api.rows import add, add_prompts, add_run
from tests.api.served import make_token
from tests.api.test_problems import problem


@pytest.fixture
def api(database_url: str, broker_url: str, home: Path) -> Iterator[TestClient]:
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=home)
    headers = {"authorization": f"Bearer {make_token(database_url, 'read')}"}
    with TestClient(create_app(settings), "http://127.0.0.1", headers=headers) as client:
        yield client


@pytest.fixture
def run(engine: sa.Engine, home: Path) -> Run:
    run = add_run(engine, state="running", attempt=2)
    folder = home / "runs" / str(run.id)
    for step, text in ((2, '{"sampled_accuracy": 0.5}'), (4, '{"sampled_accuracy": 0.4}')):
        checkpoint = folder / "checkpoints" / f"step_{step:06d}"
        (checkpoint / "policy").mkdir(parents=True)
        (checkpoint / "accuracy.json").write_text(text)
        (checkpoint / "policy" / "model.safetensors").write_bytes(bytes([step]) * 3_000_000)
    (folder / "checkpoints" / ".writing_000006").mkdir()
    (folder / "rollouts").mkdir()
    for step in (1, 2, 3):
        table = SCHEMA.empty_table()
        pq.write_table(table, folder / "rollouts" / f"step_{step:06d}.parquet")
    (folder / "rollouts" / "step_000004.writing").write_text("half")
    return run


def write_log(home: Path, run: Run, attempt: int, *segments: bytes) -> None:
    folder = rundir.log_folder(home / "runs" / str(run.id), attempt)
    folder.mkdir(parents=True, exist_ok=True)
    offset = 0
    for segment in segments:
        rundir.segment_path(folder, offset).write_bytes(segment)
        offset += len(segment)


def test_a_log_is_followed_by_offsets(api: TestClient, run: Run, home: Path) -> None:
    address = f"/api/v1/runs/{run.id}/log"
    assert api.get(address).json() == {"attempt": 2, "offset": 0, "text": "", "next_offset": 0, "size": 0}
    whole = "step 1: größer, 数学, 🙂\n" * 40
    write_log(home, run, 2, whole.encode()[:100], whole.encode()[100:])
    write_log(home, run, 1, b"the first attempt\x00\xff")
    text, offset = "", 0
    while True:
        part = api.get(address, params={"offset": offset, "limit": 13}).json()
        assert part["offset"] == offset and part["size"] == len(whole.encode())
        if not part["text"]:
            break
        text, offset = text + part["text"], part["next_offset"]
    assert text == whole, "no character is torn"
    assert whole.endswith(api.get(address, params={"limit": 30}).json()["text"].lstrip("\ufffd"))
    assert api.get(address, params={"attempt": 1}).json()["text"] == "the first attempt\ufffd\ufffd"
    assert api.get(address, params={"attempt": 9}).json()["text"] == ""
    assert api.get(address, params={"offset": -1}).status_code == 422


def test_checkpoints_are_listed_and_downloaded(api: TestClient, run: Run) -> None:
    answer = api.get(f"/api/v1/runs/{run.id}/checkpoints").json()
    assert [(c["step"], c["accuracy"]) for c in answer["checkpoints"]] == [(2, 0.5), (4, 0.4)]
    assert answer["best_step"] == 2
    files = {f["path"]: f["n_bytes"] for f in answer["checkpoints"][0]["files"]}
    assert files == {"accuracy.json": 25, "policy/model.safetensors": 3_000_000}
    response = api.get(f"/api/v1/runs/{run.id}/checkpoints/2/policy/model.safetensors")
    assert response.content == b"\x02" * 3_000_000 and response.headers["content-length"] == "3000000"
    assert response.headers["content-disposition"] == 'attachment; filename="step_000002-model.safetensors"'


def test_a_download_goes_on_where_it_broke_off(api: TestClient, run: Run, home: Path) -> None:
    address = f"/api/v1/runs/{run.id}/checkpoints/2/policy/model.safetensors"
    path = home / "runs" / str(run.id) / "checkpoints" / "step_000002" / "policy" / "model.safetensors"
    path.write_bytes(whole := bytes(range(256)) * 400)
    begun = api.get(address, headers={"range": "bytes=0-999"})
    assert (begun.status_code, begun.headers["content-range"]) == (206, f"bytes 0-999/{len(whole)}")
    rest = api.get(address, headers={"range": "bytes=1000-", "if-range": begun.headers["etag"]})
    assert rest.status_code == 206 and begun.content + rest.content == whole
    assert api.get(address, headers={"range": "bytes=-5"}).content == whole[-5:]
    beyond = api.get(address, headers={"range": f"bytes={len(whole)}-"})
    assert problem(beyond)["type"] == "/problems/no-such-range"
    assert beyond.headers["content-range"] == f"bytes */{len(whole)}"
    assert api.get(address, headers={"range": "bytes=0-1,5-6"}).status_code == 200
    path.write_bytes(whole + b"another")  # not the same file any more: all of it
    assert api.get(address, headers={"range": "bytes=5-", "if-range": begun.headers["etag"]}).status_code == 200


def test_rollouts_are_listed_and_downloaded(api: TestClient, run: Run) -> None:
    address = f"/api/v1/runs/{run.id}/rollouts"
    first = api.get(address, params={"limit": 2}).json()
    assert ([f["step"] for f in first["files"]], first["next_step"]) == ([1, 2], 3)
    assert [f["step"] for f in api.get(address, params={"from_step": 3}).json()["files"]] == [3]
    response = api.get(f"{address}/2")
    assert pq.read_table(io.BytesIO(response.content)).schema == SCHEMA
    assert problem(api.get(f"{address}/4"))["type"] == "/problems/file-not-found"


def test_responses_of_evaluations_are_listed_and_downloaded(api: TestClient, run: Run, home: Path) -> None:
    address = f"/api/v1/runs/{run.id}/evaluations"
    assert api.get(address).json() == {"files": [], "next_step": None}
    for step, name in ((0, "held-out"), (5, "aime24"), (5, "held-out"), (10, "aime24")):
        path = home / "runs" / str(run.id) / "evaluations" / f"step_{step:06d}" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * (step + 1))
    path.with_name("aime24.writing").write_bytes(b"half")
    first = api.get(address, params={"limit": 2}).json()
    assert [(f["step"], f["benchmark"], f["n_bytes"]) for f in first["files"]] == [
        (0, "held-out", 1),
        (5, "aime24", 6),
        (5, "held-out", 6),
    ]
    assert first["next_step"] == 10
    assert [f["step"] for f in api.get(address, params={"from_step": 10}).json()["files"]] == [10]
    assert api.get(f"{address}/5/aime24").content == b"x" * 6
    part = api.get(f"{address}/5/aime24", headers={"range": "bytes=4-"})
    assert (part.status_code, part.content, part.headers["content-range"]) == (206, b"xx", "bytes 4-5/6")
    for nothing in ("6/aime24", "5/aime25", "5/..%2F..%2Fconfig", "5/aime24.parquet"):
        assert problem(api.get(f"{address}/{nothing}"))["status"] == 404


def test_the_rollouts_of_one_prompt(
    api: TestClient, engine: sa.Engine, run: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several row groups, newest visit first; a file that is gone is told."""
    with Session(engine) as session, session.begin():
        session.get_one(Run, run.id).dataset_id = add_prompts(engine, 3)
    pilot = {"stage": "pilot", "attempt": 1, "n": 2, "n_failed": 0, "tokens": 2, "bucket": "ready"}
    visits = [{"prompt_id": "p001", "step": s, "position": 0} for s in (1, 2, 3, 7)]
    add(engine, *(PromptVisit(run_id=run.id, **pilot, **visit) for visit in visits))
    for step in (1, 2, 3):
        rows = [
            {
                "step": step, "prompt_id": f"p{i % 3:03}", "stage": "pilot", "response": f"{step}: {i}",
                "reward": 1.0 * (i % 2), "success": None, "verdicts": None, "n_tokens": i, "logprob": -0.5,
            }
            for i in range(3000)
        ]  # fmt: skip
        path = home / "runs" / str(run.id) / "rollouts" / f"step_{step:06d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path, row_group_size=700)
    address = f"/api/v1/runs/{run.id}/prompts/p001/rollouts"
    body = api.get(address, params={"steps": 2}).json()
    assert (body["missing"], body["next_step"]) == ([7], 3)
    assert [r["response"] for r in body["rollouts"]] == [f"3: {i}" for i in range(1, 3000, 3)]
    assert body["rollouts"][1] == {
        "step": 3, "stage": "pilot", "response": "3: 4", "reward": 0.0, "success": None, "n_tokens": 4, "logprob": -0.5,
        "verdicts": None,
    }  # fmt: skip
    body = api.get(address, params={"before": 3}).json()
    assert {r["step"] for r in body["rollouts"]} == {1, 2} and body["next_step"] is None
    monkeypatch.setattr("api.routes.prompts.MOST_CHARACTERS", 10)
    body = api.get(address, params={"before": 4}).json()
    assert ({r["step"] for r in body["rollouts"]}, body["next_step"]) == ({3}, 3), "a large answer ends early"
    never = api.get(f"/api/v1/runs/{run.id}/prompts/p002/rollouts").json()
    assert never == {"rollouts": [], "missing": [], "next_step": None}
    assert problem(api.get(f"/api/v1/runs/{run.id}/prompts/p999/rollouts"))["status"] == 404


def test_a_run_that_has_not_begun_left_nothing(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine)
    assert api.get(f"/api/v1/runs/{run.id}/checkpoints").json() == {"checkpoints": [], "best_step": None}
    assert api.get(f"/api/v1/runs/{run.id}/rollouts").json() == {"files": [], "next_step": None}
    assert api.get(f"/api/v1/runs/{run.id}/log").json()["text"] == ""
    for path in ("checkpoints", "rollouts", "log", "rollouts/1", "checkpoints/1/state.json"):
        assert api.get(f"/api/v1/runs/{uuid.uuid4()}/{path}").status_code == 404


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize(
    "path",
    [
        "../../config.json", "../../../../secret", "policy/../../../config.json", "/etc/passwd",
        "policy//model.safetensors",
        "link", "linked/secret", "policy", ".", "..", "", "policy/\\..\\x", "x" * 300, "pipe", "a\x00b",
    ],
)  # fmt: skip
def test_nothing_else_can_be_read(api: TestClient, run: Run, home: Path, path: str, raw: bool) -> None:
    (home / "secret").write_text("sesame")
    folder = home / "runs" / str(run.id)
    (folder / "config.json").write_text("sesame")
    checkpoint = folder / "checkpoints" / "step_000002"
    (checkpoint / "link").symlink_to(home / "secret")
    (checkpoint / "linked").symlink_to(home)
    os.mkfifo(checkpoint / "pipe")
    asked = quote(path, safe="/" if raw else "").replace(".", "%2E")  # dots as they are never leave the client
    response = api.get(f"/api/v1/runs/{run.id}/checkpoints/2/{asked}")
    assert response.status_code in (404, 422) and "sesame" not in response.text
    problem(response)
    files = api.get(f"/api/v1/runs/{run.id}/checkpoints").json()["checkpoints"][0]["files"]
    assert {f["path"] for f in files} == {"accuracy.json", "policy/model.safetensors"}
