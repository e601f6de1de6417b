"""Uploaded prompt sets: versions by content, refusals with every fault, use by runs, and uploads made to do harm."""

from __future__ import annotations

import ctypes
import gzip
import json
import os
import platform
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from api.routes import prompt_sets as routes
from pipeline.prompts import Job, Read, child, read
from pipeline.sandbox import apart
from tests.api.served import make_token
from tests.hub import Hub

URL = "/api/v1/prompt-sets"
ROWS = [{"prompt": f"{n}+{n}=", "answer": str(2 * n), "tags": ["add"]} for n in range(30)]


@pytest.fixture
def kept(home: Path) -> Iterator[Path]:
    yield home / "prompt-sets"
    assert not list((home / "prompt-sets").glob(".incoming-*")), "an upload has left something behind"


def jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "\n".join(map(json.dumps, rows)).encode()


def upload(api: TestClient, content: bytes, status: int = 201, **query: str) -> dict[str, Any]:
    answer = api.post(URL, params={"name": "sums", "file": "a.jsonl", **query}, content=content)
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def test_a_set_from_its_upload_to_its_end(
    kept: Path, api: TestClient, database_url: str, config: dict[str, Any], tmp_path: Path
) -> None:
    made = upload(api, jsonl(ROWS), reward="math", model="pipeline/bundled/policy")
    version, ref = made["version"], made["ref"]
    assert ref == f"set:sums@{version}" and made["n_prompts"] == 30 and made["n_runs"] == 0
    assert made["report"]["accepted"] and made["report"]["longest"] > 5 and made["report"]["findings"] == []

    # The same prompts in another order and format are the same version; other ones are another.
    pq.write_table(pa.Table.from_pylist(random.Random(0).sample(ROWS, 30)), tmp_path / "b.parquet")
    same = upload(api, (tmp_path / "b.parquet").read_bytes(), 200, file="b.parquet")
    assert same == made, "as it was uploaded first"
    other = upload(api, jsonl(ROWS[:20]))
    assert other["version"] != version

    listed = api.get(URL, params={"limit": 1}).json()
    assert [s["version"] for s in listed["prompt_sets"]] == [other["version"]]
    rest = api.get(URL, params={"limit": 1, "cursor": listed["next_cursor"]}).json()
    assert [s["version"] for s in rest["prompt_sets"]] == [version] and rest["next_cursor"] is None
    assert api.get(URL, params={"name": "other"}).json()["prompt_sets"] == []

    rows = api.get(f"{URL}/sums/{version}/rows", params={"limit": 25}).json()
    more = api.get(f"{URL}/sums/{version}/rows", params={"offset": rows["next_offset"], "limit": 25}).json()
    assert len(rows["rows"] + more["rows"]) == 30 and more["next_offset"] is None
    assert [r["id"] for r in rows["rows"]] == sorted(r["id"] for r in rows["rows"])
    assert len(api.get(f"{URL}/sums/{version}/file").content.splitlines()) == 30

    # A run that names it keeps it; prompts that are on both sides are told at both ends.
    config["data"]["train"] = ref
    refused = api.post("/api/v1/config/validate", json={"config": config | {"data": {"train": ref, "eval": ref}}})
    assert "30 held-out prompts also among the training prompts" in refused.json()["problems"][0]["message"]
    held_out = api.post(f"{URL}/check", params={"file": "a.jsonl", "against": ref}, content=jsonl(ROWS[5:8])).json()
    assert [(f["kind"], f["n"], f["refuses"]) for f in held_out["findings"]] == [("held_out", 3, False)]
    run = api.post("/api/v1/runs", json={"config": config}).json()
    assert run["config"]["data"]["train"] == ref, run
    assert api.get(f"{URL}/sums/{version}").json()["runs"] == [
        {"id": run["id"], "name": run["name"], "state": run["state"]}
    ]
    in_use = api.delete(f"{URL}/sums/{version}")
    assert in_use.status_code == 409 and run["id"] in in_use.json()["detail"]
    api.post(f"/api/v1/runs/{run['id']}/stop")
    assert api.delete(f"/api/v1/runs/{run['id']}").status_code == 200
    assert api.delete(f"{URL}/sums/{version}").json()["n_runs"] == 0
    assert not (kept / "sums" / version).exists() and (kept / "sums" / other["version"]).exists()
    assert api.get(f"{URL}/sums/{version}").status_code == 404
    gone = api.post("/api/v1/runs", json={"config": config}).json()
    assert "there is no such prompt set" in gone["errors"][0]["message"]

    actions = [entry["action"] for entry in api.get("/api/v1/audit", params={"target": ref}).json()["entries"]]
    assert actions == ["prompt-set.delete", "prompt-set.upload"]
    reader = {"authorization": f"Bearer {make_token(database_url, 'read')}"}
    assert api.get(URL, headers=reader).status_code == 200
    assert api.post(URL, params={"name": "a", "file": "a.csv"}, headers=reader).status_code == 403
    assert api.delete(f"{URL}/sums/{other['version']}", headers=reader).status_code == 403


def test_nothing_is_accepted_half(kept: Path, api: TestClient, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [*ROWS, ROWS[3], {"prompt": "5+5=", "answer": "11"}, {"prompt": "?"}, {"answer": "1"}]
    problem = upload(api, jsonl(rows) + b'\n{"prompt": "caf\xe9"}\n[1]', 422)
    assert problem["type"] == "/problems/invalid-prompts" and "rows without a reference answer (1)" in problem["detail"]
    assert {e["field"]: e["message"].split(" (")[0] for e in problem["errors"]} == {
        "row 31": "is in row 4, too, with the same answer",
        "row 32": "is in row 6, too, with the answer '10', here '11'",
        "row 33": "has no text in 'answer'",
        "row 34": "has no text in 'prompt'",
        "row 35": "is not UTF-8",
        "row 36": "is a list, not an object",
    }
    many = upload(api, jsonl([{"prompt": "a"}] * 500), 422)
    assert "rows without a reference answer (500)" in many["detail"] and len(many["errors"]) == 20, "all are counted"

    bomb = pa.DictionaryArray.from_arrays(pa.array([0] * 40, pa.int32()), pa.array(["0" * 5_000_000]))
    pq.write_table(pa.table({"prompt": bomb, "answer": ["1"] * 40}), tmp_path / "bomb.parquet")
    hostile = {
        "a.parquet": (tmp_path / "bomb.parquet").read_bytes(), "b.parquet": b"PAR1" + b"\x00" * 50 + b"PAR1",
        "c.jsonl": gzip.compress(b"0" * 10_000_000), "d.json": b"[" * 1_000_000, "e.jsonl": b"",
        "f.csv": b'prompt,answer\n"' + b"x" * 6_000_000,
    }  # fmt: skip
    for file, content in hostile.items():
        assert upload(api, content, 422, file=file)["type"] == "/problems/invalid-prompts", file
    for query in ({"name": "../../etc"}, {"name": "a/b"}, {"name": ".hidden"}, {"file": "../a.jsonl"},
                  {"file": "a.zip"}, {"file": "a.jsonl.gz"}, {"against": "set:../x@0123456789abcdef"},
                  {"against": "pyproject.toml"}, {"mapping": "mnist"}):  # fmt: skip
        assert upload(api, jsonl(ROWS), 422, **query)["type"] == "/problems/invalid-request", query
    for path in ("..%2f..%2fetc/0123456789abcdef", "sums/..%2f..%2f..%2fx", "sums/0123456789abcdeX"):
        assert api.get(f"{URL}/{path}").status_code in (404, 422)
    assert [p for p in kept.rglob("*") if p.is_file()] == [] and api.get(URL).json()["prompt_sets"] == []


def test_a_file_in_a_form(kept: Path, api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    content = jsonl(ROWS)
    made = api.post(URL, params={"name": "sums"}, files={"file": ("Sums 1.jsonl", content)})
    assert made.status_code == 201 and made.json()["file"] == "Sums 1.jsonl", made.text
    again = upload(api, content, 200)
    assert again["version"] == made.json()["version"], "the same bytes"
    named = api.post(f"{URL}/check", params={"file": "b.csv"}, files={"f": ("a.jsonl", b"prompt,answer\r\n\r\na,1")})
    assert named.json()["n_prompts"] == 1, named.text

    def refusal(**body: Any) -> str:
        answer = api.post(URL, params={"name": "sums"}, **body)
        assert answer.status_code == 422 and answer.json()["type"] == "/problems/invalid-request", answer.text
        return str(answer.json()["errors"][0]["message"])

    assert "give all that is not the file in the address: ?mapping=" in refusal(
        data={"mapping": "gsm8k"}, files={"file": ("a.jsonl", content)}
    )
    assert "several files" in refusal(files=[("f", ("a.jsonl", content)), ("g", ("b.jsonl", content))])
    assert "name the file; files end in" in refusal(files={"file": ("../a.jsonl", content)})
    assert "name the file" in refusal(content=content)
    form = {"content-type": "multipart/form-data; boundary=b"}
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    assert "has no end" in refusal(content=part + content, headers=form)
    assert "cannot be read as a form" in refusal(content=content, headers=form)
    assert "has no file" in refusal(content=b"--b--\r\n", headers=form)
    assert "and a boundary" in refusal(content=part, headers={"content-type": "multipart/form-data"})
    assert "and a boundary" in refusal(content=part, headers={"content-type": "multipart/mixed; boundary=b"})
    monkeypatch.setattr(routes, "MAX_UPLOAD", 1000)
    assert api.post(URL, params={"name": "a"}, files={"file": ("a.jsonl", b"0" * 1001)}).status_code == 413


def test_uploads_and_deletions_of_one_version_at_a_time(kept: Path, api: TestClient) -> None:
    """Whatever their order, a set that is listed has its file, and none is refused for another's sake."""
    old = kept / ".incoming-old"
    old.mkdir(parents=True)
    os.utime(old, (1, 1))
    version = upload(api, jsonl(ROWS))["version"]
    assert not old.exists(), "what an API left that was killed"

    def go(i: int) -> int:
        if i % 3 == 2:
            return api.delete(f"{URL}/sums/{version}").status_code
        rows = random.Random(i).sample(ROWS, 30)
        return api.post(URL, params={"name": "sums", "file": "a.jsonl"}, content=jsonl(rows)).status_code

    with ThreadPoolExecutor(3) as pool:
        statuses = list(pool.map(go, range(6)))
    assert {*statuses[0::3], *statuses[1::3]} <= {200, 201} and {*statuses[2::3]} <= {200, 404}, statuses
    upload(api, jsonl(ROWS), 200 if api.get(f"{URL}/sums/{version}").status_code == 200 else 201)
    assert len(api.get(f"{URL}/sums/{version}/rows").json()["rows"]) == 20


def test_uploads_are_bounded(kept: Path, api: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MAX_UPLOAD", 1000)
    assert upload(api, b"0" * 1001, 413)["type"] == "/problems/body-too-large"
    monkeypatch.setattr(routes, "MAX_UPLOAD", 1 << 20)
    monkeypatch.setattr(child, "SECONDS", 0.01)
    assert "takes over 0.01 s to read" in upload(api, jsonl(ROWS), 422)["detail"]
    monkeypatch.setattr(child, "SECONDS", 60.0)
    monkeypatch.setattr(child, "MEMORY_MB", 16)
    assert "needs more memory than a file may take" in upload(api, jsonl(ROWS), 422)["detail"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs a machine of two names")
def test_where_files_cannot_be_read_safely_none_is(
    kept: Path, api: TestClient, gsm8k: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise ValueError("there is no bubblewrap")

    monkeypatch.setattr(apart, "bubblewrap_keeps", refuse)
    libc = ctypes.CDLL(None)

    def named(job: Job) -> Read:  # the reader inherits the name that the kernel gives the machine
        before = libc.personality(0x0008)
        try:
            return read(job)
        finally:
            libc.personality(before)

    monkeypatch.setattr(routes, "read", named)
    problem = upload(api, jsonl(ROWS), 503)
    assert problem["type"] == "/problems/no-sandbox" and "there is no bubblewrap; and no fence" in problem["detail"]
    monkeypatch.setattr(routes, "read", read)
    assert upload(api, jsonl(ROWS))["n_prompts"] == 30, "behind the fence"
    assert from_hub(api, 200, "/check")["n_prompts"] == 6, "of several files"


GSM8K = [{"question": f"{n} and {n}?", "answer": f"It is\n#### {2 * n}"} for n in range(6)]
PINNED = f"hub:openai/gsm8k@{'a' * 40}:main/train"


@pytest.fixture
def gsm8k(hub: Hub, tmp_path: Path) -> Hub:
    for shard in range(2):
        pq.write_table(pa.Table.from_pylist(GSM8K[3 * shard : 3 * shard + 3]), tmp_path / "shard.parquet")
        content = (tmp_path / "shard.parquet").read_bytes()
        hub[f"openai/gsm8k:main/train-0000{shard}-of-00002.parquet"] = content
    hub["openai/gsm8k:socratic/train.jsonl"] = b"not asked for"
    return hub


def from_hub(api: TestClient, status: int, path: str = "", **query: Any) -> dict[str, Any]:
    answer = api.post(f"{URL}{path}", params={"hub": "hub:openai/gsm8k:main/train", "mapping": "gsm8k", **query})
    assert answer.status_code == status, answer.text
    return dict(answer.json())


def test_a_data_set_of_the_hub_is_looked_at_and_added(
    kept: Path, api: TestClient, gsm8k: Hub, database_url: str, config: dict[str, Any]
) -> None:
    mine = upload(api, jsonl([{"prompt": "3 AND 3?", "answer": "6"}]), name="mine")
    checked = from_hub(api, 200, "/check", reward="gsm8k", against=mine["ref"])
    assert checked["accepted"] and checked["n_prompts"] == 6 and checked["hub"] == PINNED
    assert {(row["text"], row["answer"]) for row in checked["preview"]} >= {("0 and 0?", "0"), ("1 and 1?", "2")}
    (found,) = checked["findings"]
    assert (found["kind"], found["rows"][0]["row"]) == ("held_out", "1 of train-00001-of-00002.parquet")
    assert len(api.get(URL).json()["prompt_sets"]) == 1, "looking keeps no set"

    assert from_hub(api, 200, "/check")["hub"] == PINNED, "the branch, which is here"
    # What is added is what was looked at, whatever has become of the branch and of the hub.
    gsm8k.clear()
    added = from_hub(api, 201, name="gsm8k", hub=checked["hub"])
    assert (added["file"], added["mapping"], added["n_prompts"]) == (PINNED, "gsm8k", 6)
    assert len(gsm8k.downloads) == 2, "once for both"
    again = from_hub(api, 200, name="gsm8k", hub=checked["hub"])
    assert again == added
    rows = api.get(f"{URL}/gsm8k/{added['version']}/rows").json()["rows"]
    assert sorted(row["text"] for row in rows) == [row["question"] for row in GSM8K]
    config["data"] |= {"train": checked["hub"], "mapping": "gsm8k", "eval_mapping": "plain"}
    assert api.post("/api/v1/config/validate", json={"config": config}).json()["valid"], "runs find it as well"
    changes = api.get("/api/v1/audit").json()["entries"]
    assert [(c["action"], c["target"]) for c in changes][:2] == [
        ("prompt-set.upload", added["ref"]), ("prompt-set.fetch", PINNED),
    ]  # fmt: skip
    assert changes[0]["after"]["file"] == PINNED and changes[1]["after"]["files"] == 2
    assert [c["action"] for c in changes].count("prompt-set.fetch") == 1


def test_bad_rows_of_the_hub_are_told_and_nothing_is_kept(kept: Path, api: TestClient, gsm8k: Hub) -> None:
    checked = from_hub(api, 200, "/check", mapping="math")
    assert not checked["accepted"] and "has no column" in checked["fault"] and checked["hub"] == PINNED
    refused = from_hub(api, 422, name="a", mapping="math")
    assert refused["type"] == "/problems/invalid-prompts" and "the data set has no column" in refused["detail"]
    gsm8k["openai/gsm8k:test.jsonl"] = jsonl([*GSM8K[:2], {"question": "?"}])
    bad = from_hub(api, 422, name="a", hub="hub:openai/gsm8k:test")
    assert bad["errors"][0]["field"] == "row 3" and "rows without a reference answer (1)" in bad["detail"]
    assert api.get(URL).json()["prompt_sets"] == []


def test_what_the_hub_does_not_give(
    kept: Path, api: TestClient, gsm8k: Hub, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(kind: str, status: int = 422, **query: Any) -> str:
        for path, name in (("", "a"), ("/check", None)):
            problem = from_hub(api, status, path, **query, **({"name": name} if name else {}))
            assert problem["type"] == f"/problems/{kind}", problem
        return str(problem["detail"])

    assert "has no split 'test'; there are: main/train, socratic/train" in refused(
        "hub-refused", hub="hub:openai/gsm8k:test"
    )
    assert "several splits 'train'; there are: main/train, socratic/train" in refused(
        "hub-refused", hub="hub:openai/gsm8k"
    )
    assert "has no revision 'v9'" in refused("hub-refused", hub="hub:openai/gsm8k@v9:main/train")
    assert "is not on the hub, or is private" in refused("hub-refused", hub="hub:openai/other")
    gsm8k.refusals["openai/gsm8k"] = (403, "GatedRepo")
    assert "a token in HF_TOKEN" in refused("hub-refused")
    gsm8k.refusals.clear()
    monkeypatch.setattr(routes, "MAX_HUB", 100)
    large = refused("hub-refused")
    assert "at most 100 are taken here. Where the API runs, `./pilot data fetch hub:openai/gsm8k@main:main/tr" in large
    monkeypatch.setattr(routes, "MAX_HUB", 1 << 30)
    monkeypatch.setattr(routes, "HUB_S", 0.0)
    late = refused("hub-unreachable", 502)
    assert "takes over 0 s to fetch. Where the API runs, `./pilot data fetch hub:openai/gsm8k@main:main/tr" in late
    monkeypatch.setattr(routes, "HUB_S", 300.0)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    away = refused("hub-unreachable", 502)
    assert (
        "no answer from the hub at http://127.0.0.1:1" in away and "HF_ENDPOINT, or upload the data set's file" in away
    )
    assert gsm8k.downloads == [] and not [p for p in (home / "hub").rglob("*") if p.is_file()]
    assert api.get(URL).json()["prompt_sets"] == []


def test_what_asks_for_no_data_set_of_the_hub(kept: Path, api: TestClient, gsm8k: Hub, database_url: str) -> None:
    for given in ("openai/gsm8k", "hub:gsm8k", "hub:../../etc", "hub:a/b@..", "hub:a/b:c d", "hub:a/b\n", ""):
        problem = from_hub(api, 422, "/check", hub=given)
        (error,) = problem["errors"]
        assert (error["field"], error["value"]) == ("query.hub", given) and "hub:OWNER/NAME@REVISION" in error[
            "message"
        ]
    for query, body, field in (({"file": "a.jsonl"}, {}, "query.file"), ({}, {"content": b"{}"}, "body"),
                               ({}, {"files": {"file": ("a.jsonl", b"{}")}}, "body")):  # fmt: skip
        answer = api.post(f"{URL}/check", params={"hub": "hub:openai/gsm8k:main/train", **query}, **body)
        assert answer.status_code == 422 and answer.json()["errors"][0]["field"] == field, answer.text
        assert answer.json()["errors"][0]["message"] == "leave it out; `hub` names what is read"
    reader = {"authorization": f"Bearer {make_token(database_url, 'read')}"}
    for path in ("", "/check"):
        answer = api.post(f"{URL}{path}", params={"hub": "hub:openai/gsm8k:main/train", "name": "a"}, headers=reader)
        assert answer.status_code == (403 if path == "" else 422), answer.text
    denied = api.post(f"{URL}/check", params={"hub": "hub:openai/gsm8k:main/train"}, headers=reader)
    assert denied.status_code == 403 and denied.json()["type"] == "/problems/scope-missing"
    assert gsm8k.asked == []


def test_a_split_of_many_files(kept: Path, api: TestClient, hub: Hub) -> None:
    """The sandbox is told each of them, and takes only so many words."""
    for n in range(routes.MAX_SHARDS):
        hub[f"a/b:deep/er/train-{n:05d}-of-00256.jsonl"] = jsonl([{"prompt": f"{n}?", "answer": str(n)}])
    assert from_hub(api, 200, "/check", hub="hub:a/b", mapping="plain")["n_prompts"] == routes.MAX_SHARDS
    hub["a/b:deep/er/train-00256-of-00256.jsonl"] = b"{}"
    hub.commit = "b" * 40
    assert "has 257 files" in from_hub(api, 422, "/check", hub="hub:a/b")["detail"]


def test_without_a_body_there_is_no_length(api: TestClient, hub: Hub) -> None:
    """As curl -X POST sends it."""
    request = api.build_request("POST", f"{URL}/check", params={"hub": "hub:a/b"})
    request.headers.pop("content-length", None)
    assert api.send(request).json()["type"] == "/problems/hub-refused"
