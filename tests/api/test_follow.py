"""Following a run: the event stream and the waiting request, over a real server."""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from api.client import ApiError, Client
from db.models import Attempt, Evaluation, Run, StepMetrics
from tests.api.rows import add, add_run, step
from tests.api.served import ApiServer
from tests.api.test_problems import problem

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def evaluation(run: Run, number: int, attempt: int = 1) -> Evaluation:
    return Evaluation(
        run_id=run.id, step=number, attempt=attempt, greedy_accuracy=0.5, sampled_accuracy=0.4, stderr=0.01, samples=4,
        mean_accuracy=0.125,
        n_prompts=9, rollouts_spent=1, eval_rollouts=1, eval_tokens=1, seconds=1.0, finished_at=NOW,
    )  # fmt: skip


def change(engine: sa.Engine, run: Run, **columns: Any) -> None:
    with engine.begin() as connection:
        connection.execute(sa.update(Run).where(Run.id == run.id).values(**columns))


@pytest.fixture
def http(served: ApiServer) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {served.token}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=30, trust_env=False) as client:
        yield client


Event = tuple[str, str | None, dict[str, Any]]


def events(http: httpx.Client, run: Run, last: str | None = None) -> Iterator[Event]:
    """(name, id, data) as they come, until the server ends the stream."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with http.stream("GET", f"/api/v1/runs/{run.id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        fields: dict[str, str] = {}
        for line in response.iter_lines():
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif "event" in fields:
                yield fields["event"], fields.get("id"), json.loads(fields["data"])
                fields = {}
            else:
                fields = {}


def told(found: list[Event]) -> list[str]:
    return [f"{name} {data.get('step')}" for name, _, data in found]


def test_a_finished_run_is_told_whole_and_ends(http: httpx.Client, engine: sa.Engine) -> None:
    run = add_run(engine, state="succeeded", attempt=1, step=3)
    add(engine, *(step(run, n) for n in (1, 2, 3)), evaluation(run, 0), evaluation(run, 2))
    found = list(events(http, run))
    assert told(found) == ["run 3", "evaluation 0", "step 1", "step 2", "evaluation 2", "step 3", "end 3"]
    assert found[-1][2]["state"] == "succeeded"
    for position, (name, id_, _) in enumerate(found):
        assert (id_ is None) == (name in ("run", "end"))
        if id_ is not None:  # whoever lost the connection here gets the rest and nothing twice
            again = list(events(http, run, last=id_))
            assert told(again) == ["run 3", *told(found)[position + 1 :]]


def test_more_than_one_look_can_fetch(http: httpx.Client, engine: sa.Engine) -> None:
    run = add_run(engine, state="succeeded", attempt=1, step=450)
    add(engine, *(step(run, n) for n in range(1, 451)), *(evaluation(run, n) for n in range(0, 451, 3)))
    names = told(list(events(http, run)))
    expected = [
        ["run 450"],
        *([f"step {n}"] * (n > 0) + [f"evaluation {n}"] * (n % 3 == 0) for n in range(451)),
        ["end 450"],
    ]
    assert names == [name for group in expected for name in group]


def test_steps_and_states_as_they_happen(http: httpx.Client, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", attempt=1)
    stream = events(http, run)
    assert next(stream)[0] == "run"
    add(engine, step(run, 1))
    written = time.monotonic()
    assert next(stream)[1:2] == ("1.1.0",)
    assert time.monotonic() - written < 10
    # The trainer is lost after step 2 and goes on from step 1: step 2 comes again.
    add(engine, step(run, 2))
    assert next(stream)[1] == "1.2.0"
    change(engine, run, state="queued", reason="its supervisor was gone")
    assert next(stream)[2]["state"] == "queued"
    with engine.begin() as connection:
        connection.execute(sa.delete(StepMetrics).where(StepMetrics.run_id == run.id, StepMetrics.step == 2))
    add(engine, Attempt(run_id=run.id, attempt=2, fence=2, host="h", from_step=1))
    change(engine, run, state="running", reason=None, attempt=2)
    name, _, data = next(stream)
    assert (name, data["attempt"], data["from_step"]) == ("run", 2, 1)
    add(engine, step(run, 2, attempt=2))
    assert next(stream)[1] == "2.2.0"
    change(engine, run, state="failed", reason="out of memory")
    rest = list(stream)
    assert [(name, data["reason"]) for name, _, data in rest] == [("run", "out of memory"), ("end", "out of memory")]


def test_the_database_may_go_away_meanwhile(http: httpx.Client, engine: sa.Engine, database_url: str) -> None:
    run = add_run(engine, state="running", attempt=1)
    stream = events(http, run)
    next(stream)
    with engine.begin() as connection:
        connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'pilot-api' AND datname = current_database()"
            )
        )
    add(engine, step(run, 1))
    assert next(stream)[0] == "step"
    stream.close()


def test_a_deleted_run_ends(http: httpx.Client, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", attempt=1)
    stream = events(http, run)
    next(stream)
    change(engine, run, deleted_at=NOW)
    assert list(stream) == [("end", None, {"state": "deleted"})]


def test_streams_hold_no_connection_of_the_database(served: ApiServer, http: httpx.Client, engine: sa.Engine) -> None:
    """More of them than the API has connections, and it still answers."""
    run = add_run(engine, state="running", attempt=1)
    with httpx.Client(
        base_url=served.url, headers=http.headers, timeout=30, limits=httpx.Limits(max_connections=40)
    ) as many:
        streams = [events(many, run) for _ in range(24)]
        for stream in streams:
            next(stream)
        assert http.get("/api/v1/runs").status_code == 200
        for stream in streams:
            stream.close()


@pytest.mark.parametrize("last", ["x", "1.2", "1.2.3.4", "-1.0.0", "9999999999.0.0", "²:1.0"])
def test_an_id_that_is_none(http: httpx.Client, engine: sa.Engine, last: str) -> None:
    run = add_run(engine, state="succeeded")
    response = http.get(f"/api/v1/runs/{run.id}/events", headers={"Last-Event-ID": last.encode("latin1")})
    assert problem(response)["errors"][0]["field"] == "header.last-event-id"


def test_streams_end_when_the_server_does(served: ApiServer, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", attempt=1)
    headers = {"authorization": f"Bearer {served.token}"}
    with httpx.Client(base_url=served.url, headers=headers, timeout=30) as client:
        stream = events(client, run)
        next(stream)
        served.stop()  # waits for the stream, in which nothing happens any more
        assert list(stream) == []


def test_wait(served: ApiServer, engine: sa.Engine) -> None:
    run = add_run(engine, state="running", attempt=1)
    with Client(served.url, served.token) as client:
        began = time.monotonic()
        assert client.wait_for_run(run.id, timeout=0.7).state == "running"
        assert time.monotonic() - began >= 0.7
        assert client.wait_for_run(run.id, until="started", timeout=60).state == "running"
        timer = threading.Timer(1.0, change, (engine, run), {"state": "succeeded"})
        timer.start()
        assert client.wait_for_run(run.id, timeout=60).state == "succeeded"
        timer.join()
        with pytest.raises(ApiError, match="no run"):
            client.wait_for_run(uuid.uuid4())
        for wrong in ({"until": "done"}, {"timeout": 301.0}):
            with pytest.raises(ApiError, match="not accepted"):
                client.wait_for_run(run.id, **wrong)  # type: ignore[arg-type]
