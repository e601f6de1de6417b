"""Which run is meant by the beginning of an id, and how much is said while a run is followed without a terminal."""

from __future__ import annotations

import uuid
from typing import Any

import httpx
import pytest

from api.client import Client
from api.examples import _DETAIL, _SUMMARY
from api.schemas import RunDetail
from cli import watch
from cli.failure import Failure

IDS = [
    "0b9f4a52-6f0e-4b5d-9c1d-3a2f6f1e8d70",
    "0b9f4a52-70aa-4b5d-9c1d-3a2f6f1e8d70",
    "c2a4f1e0-70aa-4b5d-9c1d-3a2f6f1e8d70",
]


def answer(request: httpx.Request) -> httpx.Response:
    """The runs of `IDS`, one a page."""
    at = int(request.url.params.get("cursor", 0))
    following = str(at + 1) if at + 1 < len(IDS) else None
    return httpx.Response(200, json={"runs": [_SUMMARY | {"id": IDS[at]}], "total": 3, "next_cursor": following})


@pytest.fixture
def client() -> Client:
    return Client("http://127.0.0.1:1", transport=httpx.MockTransport(answer))


@pytest.mark.parametrize(
    ("text", "index"), [("c2a4f1", 2), ("C2A4F1E0-70", 2), ("0b9f4a52-6", 0), ("0b9f4a527", 1), (IDS[1], 1)]
)
def test_the_beginning_of_an_id(client: Client, text: str, index: int) -> None:
    assert watch.run_of(client, text) == uuid.UUID(IDS[index])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0b9f4a", rf"ids of 2 runs begin with '0b9f4a'; give more characters:\n  {IDS[0]}  first run\n  {IDS[1]}"),
        ("ffffff", "No run's id begins with 'ffffff'"),
        ("c2a4f", "is not a run's id, nor its first 6 or more"),
        ("no-run", "is not a run's id"),
        (IDS[0] + "0", "is not a run's id"),
    ],
)
def test_no_run_is_meant(client: Client, text: str, words: str) -> None:
    with pytest.raises(Failure, match=words) as caught:
        watch.run_of(client, text)
    assert caught.value.code == 2


def test_few_lines_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = [100.0]
    monkeypatch.setattr(watch.time, "monotonic", lambda: now[0])
    show = watch._Lines()

    def look(state: str, step: int, *, after_s: float = 0.5) -> list[str]:
        now[0] += after_s
        run: dict[str, Any] = _DETAIL | {"state": state, "step": step}
        show(RunDetail.model_validate(run))
        return [line.split(",")[0] for line in capsys.readouterr().out.splitlines()]

    assert look("queued", 0) == ["queued: step 0/40"]
    assert look("running", 0) == ["running: step 0/40"]
    assert sum((look("running", step) for step in range(1, 20)), []) == []
    assert look("running", 20) == ["running: step 20/40"], "10 s after the line before"
    assert look("running", 20, after_s=29) == []
    assert look("running", 20, after_s=1) == ["running: step 20/40"], "a sign of life"
    assert look("running", 39) == []
    assert look("succeeded", 40) == ["succeeded: step 40/40"]
    show.close()
    assert capsys.readouterr().out == ""


def test_the_last_line_is_always_said(capsys: pytest.CaptureFixture[str]) -> None:
    show = watch._Lines()
    for step in (1, 2, 3):
        show(RunDetail.model_validate(_DETAIL | {"step": step}))
    show.close()
    assert [line.split(",")[0] for line in capsys.readouterr().out.splitlines()] == [
        "running: step 1/40",
        "running: step 3/40",
    ]
