"""`pilot data`: files with columns of their own, on either side."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.client import Client
from api.settings import Settings
from pipeline.config import ROOT
from tests.api.served import ApiServer
from tests.hub import Hub

OWN = ("--prompt-key", "q", "--answer-key", "a", "--tags-key", "topics", "--reward-key", "by")


def pilot(*words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command, env = [str(ROOT / "pilot"), "data", *map(str, words)], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, env=env)


def write(path: Path, *rows: dict[str, object]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def api(database_url: str, broker_url: str, home: Path) -> Iterator[ApiServer]:
    with ApiServer(Settings(database_url=database_url, redis_url=broker_url, pilot_home=home)) as server:
        yield server


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


def test_a_file_is_uploaded_as_it_is(api: ApiServer, own: Path, tmp_path: Path) -> None:
    address = {"PILOT_API_URL": api.url, "PILOT_TOKEN": api.token}
    given = pilot("upload", own, *OWN, **address)
    assert given.returncode == 0 and given.stdout.startswith("set:own@") and given.stdout.endswith(": 1 prompt\n")
    again = json.loads(pilot("upload", own, *OWN, "--name", "mine", "--json", **address).stdout)
    with Client(api.url, api.token) as client:
        assert {s.ref for s in client.list_prompt_sets().prompt_sets} == {given.stdout.split(": ")[0], again["ref"]}
    for words, told in (
        ((own,), "has no text in 'prompt'"),
        ((own, "--mapping", "mnist"), "--mapping: unknown; known: plain"),
        ((tmp_path / "no.jsonl",), "no.jsonl cannot be read: No such file or directory"),
        ((own, *OWN, "--name", "Not so"), "query.name: accepted: up to 64 small letters"),
    ):
        refused = pilot("upload", *words, **address)
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr


def test_a_file_that_the_api_does_not_take_is_refused_by_it(api: ApiServer, tmp_path: Path) -> None:
    with (tmp_path / "large.jsonl").open("wb") as file:
        file.truncate((256 << 20) + 1)
    refused = pilot("upload", tmp_path / "large.jsonl", PILOT_API_URL=api.url, PILOT_TOKEN=api.token)
    assert refused.returncode == 1 and "At most 256 MiB are accepted" in refused.stderr, refused.stderr


def test_a_data_set_of_the_hub_is_uploaded(api: ApiServer, hub: Hub) -> None:
    hub["openai/gsm8k:main/train.jsonl"] = json.dumps({"question": "1+1?", "answer": "so\n#### 2"}).encode()
    told = {"PILOT_API_URL": api.url, "PILOT_TOKEN": api.token}
    added = pilot("upload", "hub:openai/gsm8k", "--mapping", "gsm8k", **told)
    assert added.returncode == 0 and added.stdout.endswith(": 1 prompt\n"), added.stderr
    with Client(api.url, api.token) as client:
        (stored,) = client.list_prompt_sets().prompt_sets
    assert (stored.name, stored.file) == ("gsm8k-train", f"hub:openai/gsm8k@{'a' * 40}:train")
    refused = pilot("upload", "hub:openai/gsm8k:test", "--mapping", "gsm8k", **told)
    assert refused.returncode == 2 and "has no split 'test'; there are: main/train" in refused.stderr
