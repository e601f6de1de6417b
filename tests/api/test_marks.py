"""Marks of prompts over the API: what is wished, for which prompts, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from api.client import ApiError, Client
from api.routes import marks as route
from db import marks, models
from tests.api.rows import add, add_prompts, add_run, state
from tests.api.served import ApiServer, make_token


def mark(api: TestClient, run: models.Run, mark: str, *ids: str, status: int = 202, **body: Any) -> Any:
    body |= {"mark": mark} | ({"prompts": list(ids)} if ids else {})
    answer = api.post(f"/api/v1/runs/{run.id}/prompts/marks", json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def apply(engine: sa.Engine, run: models.Run, step: int) -> None:
    """As ingest does when the trainer has told of them."""
    with Session(engine) as session, session.begin():
        marks.applied(session, run, step, [wish.id for wish in marks.pending(session, run.id)])


def held(api: TestClient, run: models.Run, **query: str) -> dict[str, list[tuple[str, int | None]]]:
    """The marks of the prompts that match, as a page of prompts tells them."""
    page = api.get(f"/api/v1/runs/{run.id}/prompts", params={"sort": "-visits", **query}).json()
    assert page["total"] == len(page["prompts"])
    return {p["id"]: [(m["mark"], m["applied_step"]) for m in p["marks"]] for p in page["prompts"]}


def test_a_mark_is_wished_and_then_holds(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, dataset_id=add_prompts(engine, 6), state="running", step=3, buckets={"unseen": 6})
    other = add_run(engine, dataset_id="d0", buckets={"unseen": 6})
    assert mark(api, run, "exclude", "p000", "p001", "p000") == {"mark": "exclude", "marked": 2, "unchanged": 0}
    assert mark(api, run, "exclude", "p001", "p002") == {"mark": "exclude", "marked": 1, "unchanged": 1}
    mark(api, run, "pin", "p003")
    mark(api, run, "retest", "p003", "p004")
    assert mark(api, run, "retest", "p004")["marked"] == 0, "it is still to come"
    assert mark(api, run, "clear", "p005")["marked"] == 0
    to_come = [("exclude", None)]
    assert held(api, run, marked="any") == {
        "p000": to_come, "p001": to_come, "p002": to_come, "p003": [("pin", None), ("retest", None)],
        "p004": [("retest", None)],
    }  # fmt: skip
    assert held(api, other, marked="any") == {} and held(api, other)["p000"] == []

    apply(engine, run, 4)
    mark(api, run, "clear", "p001")
    assert held(api, run) == {
        "p000": [("exclude", 4)], "p001": [("clear", None)], "p002": [("exclude", 4)], "p003": [("pin", 4)],
        "p004": [], "p005": [],
    }  # fmt: skip
    assert set(held(api, run, marked="exclude")) == {"p000", "p002"}
    assert set(held(api, run, marked="pin")) == {"p003"} and held(api, run, marked="retest") == {}
    apply(engine, run, 9)
    assert held(api, run)["p001"] == []
    assert mark(api, run, "retest", "p004")["marked"] == 1, "once more"

    history = api.get(f"/api/v1/runs/{run.id}/prompts/p001").json()
    assert [(m["mark"], m["applied_step"], m["wished_by"]) for m in history["marks"]] == [
        ("clear", 9, "tests"), ("exclude", 4, "tests"),
    ]  # fmt: skip
    assert history["prompt"]["marks"] == []
    newest, *_ = api.get("/api/v1/audit", params={"target": str(run.id)}).json()["entries"]
    assert (newest["action"], newest["after"]) == ("prompts.mark", {"mark": "retest", "prompts": 1})
    assert newest["before"] == {"marks": {"p004": "clear"}}


def test_a_selection_is_marked_whole_or_not_at_all(
    api: TestClient, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(engine, dataset_id=add_prompts(engine, 6), state="stopped", buckets={"unseen": 3, "evicted": 3})
    add(engine, *(state(run, f"p00{i}", bucket="evicted", success_rate=1.0) for i in range(3)))
    assert mark(api, run, "retest", selection={"bucket": "evicted"})["marked"] == 3
    assert mark(api, run, "exclude", selection={"tag": "mod0", "search": "What"})["marked"] == 2
    body = mark(api, run, "retest", selection={}, status=422)
    assert "2 prompts are not accepted. Nothing was changed." in body["detail"]
    assert {(e["field"], e["value"]) for e in body["errors"]} == {
        ("body.selection", "p000"),
        ("body.selection", "p003"),
    }
    assert "clear" in body["errors"][0]["message"]
    assert set(held(api, run, marked="retest")) == {"p001", "p002"}, "what excludes a prompt takes its re-test back"
    assert mark(api, run, "pin", selection={"marked": "retest"})["marked"] == 2
    assert mark(api, run, "pin", selection={"search": "nothing of that kind"}) == {
        "mark": "pin", "marked": 0, "unchanged": 0,
    }  # fmt: skip
    monkeypatch.setattr(route, "MOST", 5)
    body = mark(api, run, "pin", selection={}, status=422)
    assert body["errors"][0]["field"] == "body.selection" and "narrow it" in body["errors"][0]["message"]
    assert len(held(api, run, marked="pin")) == 2


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"mark": "burn", "prompts": ["p000"]}, "body.mark", "'clear' or 'retest'"),
        ({"prompts": ["p000"]}, "body.mark", "required"),
        ({"mark": "pin"}, "body", "either `prompts`"),
        ({"mark": "pin", "prompts": ["p000"], "selection": {}}, "body", "either `prompts`"),
        ({"mark": "pin", "prompts": []}, "body.prompts", "at least 1 item"),
        ({"mark": "pin", "prompts": ["p"] * 10_001}, "body.prompts", "at most 10000 items"),
        ({"mark": "pin", "prompts": ["p000", "nope"]}, "body.prompts.1", "trains on no such prompt"),
        ({"mark": "pin", "prompts": ["p\x00"]}, "body.prompts.0", "NUL"),
        ({"mark": "pin", "selection": {"buckets": "evicted"}}, "body.selection.buckets", "unknown field"),
    ],
)
def test_what_cannot_be_a_mark(
    api: TestClient, engine: sa.Engine, body: dict[str, Any], field: str, words: str
) -> None:
    run = add_run(engine, dataset_id=add_prompts(engine, 2), state="running")
    answer = api.post(f"/api/v1/runs/{run.id}/prompts/marks", json=body)
    assert answer.status_code == 422, answer.text
    error, *_ = answer.json()["errors"]
    assert error["field"] == field and words in error["message"]
    assert held(api, run, marked="any") == {}
    assert api.get("/api/v1/audit").json()["entries"] == []


def test_only_where_a_step_may_come_and_the_prompts_are_known(
    api: TestClient, engine: sa.Engine, database_url: str
) -> None:
    dataset = add_prompts(engine, 1)
    for now in ("queued", "starting", "running", "stopping", "stopped", "failed"):
        assert mark(api, add_run(engine, dataset_id=dataset, state=now), "pin", "p000")["marked"] == 1
    body = mark(api, add_run(engine, dataset_id=dataset, state="succeeded"), "pin", "p000", status=409)
    assert "no further step will come" in body["detail"]
    body = mark(api, add_run(engine, state="starting"), "pin", "p000", status=409)
    assert "has not read its prompts yet" in body["detail"]
    run = add_run(engine, dataset_id=dataset, state="running")
    reader = make_token(database_url, "read", "reader")
    body = {"mark": "pin", "prompts": ["p000"]}
    refused = api.post(f"/api/v1/runs/{run.id}/prompts/marks", json=body, headers={"authorization": f"Bearer {reader}"})
    assert refused.status_code == 403 and "'run'" in refused.json()["detail"]


def test_the_client(served: ApiServer, engine: sa.Engine) -> None:
    run = add_run(engine, dataset_id=add_prompts(engine, 4), state="running")
    with Client(served.url, served.token) as client:
        assert client.mark_prompts(run.id, "pin", ["p001"]).marked == 1
        assert client.mark_prompts(run.id, "exclude", tag="mod0").marked == 2
        assert client.prompts(run.id, marked="pin").prompts[0].marks[0].mark == "pin"
        assert client.prompt(run.id, "p000").marks[0].wished_by == "tests"
        with pytest.raises(ApiError, match="trains on no such prompt \\(given 'nope'\\)"):
            client.mark_prompts(run.id, "pin", ["nope"])
