"""What a run did: metrics, buckets, ledger, prompts, one prompt's history."""

from __future__ import annotations

import datetime as dt
import io
import json
import random
import uuid
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from db import models, views
from pipeline.config import DataConfig
from pipeline.prompts import load_prompts
from tests.api.rows import add, add_prompts, add_run, state, step


def visit(run: models.Run, number: int, stage: str, **columns: Any) -> models.PromptVisit:
    given = {"prompt_id": "p000", "attempt": 1, "n": 4, "n_failed": 0, "success_rate": 0.5} | columns
    given = {"reward_variance": 0.25, "tokens": 40, "bucket": "ready"} | given
    return models.PromptVisit(run_id=run.id, step=number, stage=stage, **given)


def evaluation(run: models.Run, number: int) -> models.Evaluation:
    return models.Evaluation(
        run_id=run.id, step=number, attempt=1, greedy_accuracy=0.5, sampled_accuracy=0.25, stderr=0.01, samples=4,
        n_prompts=9, rollouts_spent=10 * number, eval_rollouts=36, eval_tokens=360, seconds=1.5,
        finished_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), mean_accuracy=0.125, mean_stderr=0.02,
        benchmarks=[benchmark("held-out", 0.25), benchmark("aime24", 0.125)],
    )  # fmt: skip


def benchmark(name: str, accuracy: float) -> dict[str, Any]:
    return {
        "name": name, "dataset": "d", "n_prompts": 9, "samples": 4, "temperature": 1.0, "top_p": 0.7, "stderr": 0.01,
        "accuracy": accuracy, "pass_at": {"1": accuracy, "4": None}, "majority": 0.5, "greedy_accuracy": None,
        "greedy_stderr": None, "n_failed": 1, "rollouts": 36, "tokens": 360, "seconds": 1.5,
    }  # fmt: skip


def test_metrics_are_in_order_from_the_asked_step_on(api: TestClient, engine: sa.Engine) -> None:
    run, other = add_run(engine), add_run(engine)
    add(engine, *[step(run, n) for n in (3, 1, 2)], step(other, 5), evaluation(run, 2), evaluation(run, 0))
    everything = api.get(f"/api/v1/runs/{run.id}/metrics").json()
    assert [s["step"] for s in everything["steps"]] == [1, 2, 3]
    assert [e["step"] for e in everything["evaluations"]] == [0, 2]
    assert everything["steps"][0]["metrics"] == {"loss": 0.5, "grad_norm": None}
    assert everything["evaluations"][1]["rollouts_spent"] == 20
    assert everything["evaluations"][1]["benchmarks"] == [benchmark("held-out", 0.25), benchmark("aime24", 0.125)]
    assert everything["evaluations"][1]["mean_accuracy"] == 0.125
    later = api.get(f"/api/v1/runs/{run.id}/metrics?from_step=2").json()
    assert [s["step"] for s in later["steps"]] == [2, 3]
    assert [e["step"] for e in later["evaluations"]] == [2]


def test_a_chart_of_few_points_shows_the_extremes(api: TestClient, engine: sa.Engine) -> None:
    """Of each metric, in each part of the range: the smallest, the largest; and both ends."""
    run = add_run(engine, step=1000)
    generator = random.Random(0)
    values = {
        n: {"loss": generator.gauss(0, 1), "entropy": None if n % 3 else generator.random()} for n in range(1, 1001)
    }
    values[417]["loss"], values[418]["loss"] = 50.0, -50.0
    add(engine, *(step(run, n, metrics=values[n]) for n in values))
    params = {"from_step": 101, "to_step": 900, "points": 40, "metric": ["loss", "entropy"]}
    got = [s["step"] for s in api.get(f"/api/v1/runs/{run.id}/metrics", params=params).json()["steps"]]
    kept = {101, 900}
    for part in range(10):
        steps = range(101 + 80 * part, 181 + 80 * part)
        for name in ("loss", "entropy"):
            known = [n for n in steps if values[n][name] is not None]
            kept |= {min(known, key=lambda n: values[n][name]), max(known, key=lambda n: values[n][name])}
    assert {417, 418} < kept
    assert got == sorted(kept)
    for few in ({"points": 2}, {"points": 2, "extremes": "loss"}):
        got = [s["step"] for s in api.get(f"/api/v1/runs/{run.id}/metrics", params=few).json()["steps"]]
        assert {1, 1000} <= set(got) and len(got) <= 12
    whole = api.get(f"/api/v1/runs/{run.id}/metrics", params={"from_step": 7, "to_step": 9}).json()["steps"]
    assert [s["step"] for s in whole] == [7, 8, 9]
    assert api.get(f"/api/v1/runs/{run.id}/metrics", params={"from_step": 2000, "points": 9}).json()["steps"] == []


def test_only_the_metrics_that_are_named_come_along(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, step=4)
    values: list[dict[str, float | None]] = [{"loss": 0.5, "entropy": 1.0}, {"loss": None, "rare": 2.0}]
    add(engine, *(step(run, n, metrics=values[n == 2] | {"age": float(n)}) for n in range(1, 5)))
    path = f"/api/v1/runs/{run.id}/metrics"
    found = api.get(path, params={"metric": ["loss", "rare"]}).json()["steps"]
    assert [s["metrics"] for s in found] == [
        {"loss": None if n == 2 else 0.5, "rare": 2.0 if n == 2 else None} for n in range(1, 5)
    ]
    found = api.get(path, params={"metric": "loss", "extremes": "rare", "points": 2}).json()["steps"]
    assert [(s["step"], s["metrics"]) for s in found] == [(1, {"loss": 0.5}), (2, {"loss": None}), (4, {"loss": 0.5})]
    assert api.get(f"/api/v1/runs/{add_run(engine).id}/metrics", params={"metric": "yet to come"}).json()["steps"] == []


@pytest.mark.parametrize(
    "asked", ["runs/{}/metrics?metric=losss", "runs/{}/metrics?extremes=losss&points=9", "compare?run={}&metric=losss"]
)
def test_a_metric_that_no_step_has_is_refused(api: TestClient, engine: sa.Engine, asked: str) -> None:
    run = add_run(engine, step=2)
    add(engine, step(run, 1), step(run, 2))
    answer = api.get(f"/api/v1/{asked.format(run.id)}")
    assert answer.status_code == 422
    (error,) = answer.json()["errors"]
    assert (error["field"], error["value"]) == ("query.extremes" if "extremes" in asked else "query.metric", "losss")
    assert error["message"] == "no step has such a metric; there are: grad_norm, loss"


def test_buckets_now_and_after_every_step(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, step=2, buckets={"unseen": 7, "ready": 2})
    add(engine, step(run, 1), step(run, 2))
    body = api.get(f"/api/v1/runs/{run.id}/buckets").json()
    assert (body["step"], set(body["counts"])) == (2, set(models.BUCKETS))
    assert (body["counts"]["unseen"], body["counts"]["ready"], body["counts"]["evicted"]) == (7, 2, 0)
    assert [(h["step"], h["counts"]["unseen"]) for h in body["history"]] == [(1, 8), (2, 7)]
    assert [h["step"] for h in api.get(f"/api/v1/runs/{run.id}/buckets?from_step=2").json()["history"]] == [2]


def test_an_answer_is_one_snapshot(api: TestClient, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is ingested between two statements of a request is in both of their results or in none."""
    run = add_run(engine, step=1, buckets={"unseen": 8, "ready": 1})
    add(engine, step(run, 1))
    genuine = views.get

    def get(session: Session, run_id: uuid.UUID) -> models.Run:
        found = genuine(session, run_id)
        add(engine, step(run, 2))
        return found

    monkeypatch.setattr(views, "get", get)
    body = api.get(f"/api/v1/runs/{run.id}/buckets").json()
    assert (body["step"], [h["step"] for h in body["history"]]) == (1, [1])


def test_buckets_of_a_few_steps_evenly_spread(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, step=900)
    add(engine, *[step(run, n) for n in range(1, 901)])
    shown = [h["step"] for h in api.get(f"/api/v1/runs/{run.id}/buckets?points=31").json()["history"]]
    assert shown == [1, *range(30, 901, 30)]
    assert [h["step"] for h in api.get(f"/api/v1/runs/{run.id}/buckets?points=9&from_step=900").json()["history"]] == [
        900
    ]


def flows(api: TestClient, run: models.Run, **params: int) -> dict[tuple[str, str], int]:
    body = api.get(f"/api/v1/runs/{run.id}/flows", params=params).json()
    return {(f["source"], f["target"]): f["prompts"] for f in body["flows"]}


def test_flows_count_every_prompt_once(api: TestClient, engine: sa.Engine) -> None:
    """Against a walk through the visits and moves of every prompt, for every range of steps."""
    pool, last = [f"p{i:03}" for i in range(20)], 6
    run = add_run(engine, dataset_id=add_prompts(engine, len(pool)), step=last)
    other = add_run(engine, dataset_id="d0", step=last)
    generator = random.Random(1)
    after = {0: dict.fromkeys(pool, "unseen")}  # step -> bucket of every prompt
    rows: list[models.Base] = []
    for number in range(1, last + 1):
        now = dict(after[number - 1])
        for prompt in generator.sample(pool[:15], 4):  # as the step begins; the last five are never touched
            now[prompt] = generator.choice(models.BUCKETS)
            rows.append(models.PromptMove(run_id=run.id, step=number, prompt_id=prompt, attempt=1, bucket=now[prompt]))
        for position in range(6):  # some prompts twice
            prompt = generator.choice(pool[:15])
            now[prompt] = generator.choice(models.BUCKETS)
            rows.append(visit(run, number, "pilot", position=position, prompt_id=prompt, bucket=now[prompt]))
            rows.append(visit(other, number, "pilot", position=position, prompt_id=prompt, bucket="evicted"))
        after[number] = now
        counts = {b: list(now.values()).count(b) for b in models.BUCKETS}
        rows.append(step(run, number, buckets=counts))
    touched = {p: max(r.step for r in rows if not isinstance(r, models.StepMetrics) and r.run_id == run.id
                      and r.prompt_id == p) for p in pool[:15]}  # type: ignore[attr-defined]  # fmt: skip
    rows += [state(run, p, step=n, bucket=after[last][p]) for p, n in touched.items()]
    add(engine, *rows)
    with Session(engine) as session, session.begin():
        session.get_one(models.Run, run.id).buckets = counts
    for first in range(last + 1):
        for to in range(first, last + 1):
            expected: dict[tuple[str, str], int] = {}
            for prompt in pool:
                pair = (after[first][prompt], after[to][prompt])
                expected[pair] = expected.get(pair, 0) + 1
            assert flows(api, run, from_step=first, to_step=to) == expected, (first, to)
    assert flows(api, run, from_step=2) == flows(api, run, from_step=2, to_step=99)
    assert flows(api, run, from_step=99) == {(b, b): n for b, n in counts.items() if n}


def test_difficulty_over_steps_and_by_spend(api: TestClient, engine: sa.Engine) -> None:
    run = add_run(engine, dataset_id=add_prompts(engine, 9), step=500)
    rates = {1: 0.0, 2: 0.5, 250: 1.0, 499: 0.49, 500: None}
    add(
        engine,
        *(visit(run, n, "pilot", position=0, success_rate=rate) for n, rate in rates.items()),
        visit(run, 250, "commit", position=1, success_rate=0.5),  # chosen to lie in the middle: tells nothing
        state(run, "p000", success_rate=1.0, visits=3, rollouts=10, tokens=7, bucket="evicted"),
        state(run, "p001", success_rate=0.95, visits=2, rollouts=5, tokens=1, bucket="evicted"),
        state(run, "p002", success_rate=0.0, visits=1, rollouts=4, tokens=9, bucket="deferred"),
        state(run, "p003", success_rate=None, visits=1, bucket="unseen"),
    )
    body = api.get(f"/api/v1/runs/{run.id}/difficulty", params={"parts": 5, "bins": 10}).json()
    assert (body["first"], body["last"], body["every"]) == (1, 500, 5), "120 steps are looked at"
    looked_at = set(range(500, 0, -5))
    assert looked_at & set(rates) == {250, 500}
    assert body["over_time"] == [{"part": 2, "rate": 9, "groups": 1}]
    assert body["spend"] == [
        {"rate": 0, "visits": 0, "prompts": 1, "rollouts": 4, "tokens": 9, "bucket": "deferred"},
        {"rate": 9, "visits": 1, "prompts": 2, "rollouts": 15, "tokens": 8, "bucket": "evicted"},
    ]
    uniform = add_run(engine, dataset_id="d0", step=1, method="grpo")
    add(engine, visit(uniform, 1, "commit", position=0, success_rate=1.0))
    body = api.get(f"/api/v1/runs/{uniform.id}/difficulty").json()
    assert body["over_time"] == [{"part": 0, "rate": 9, "groups": 1}], "without pilots every group tells"
    assert api.get(f"/api/v1/runs/{add_run(engine).id}/difficulty").json()["over_time"] == []


def test_the_ledger_names_every_fate(api: TestClient, engine: sa.Engine) -> None:
    fates = {"buffered": [30, 300], "trained": [50, 500], "lost": [10, 100]}
    evaluated = {"held-out": {"rollouts": 8, "tokens": 80}, "aime24": {"rollouts": 64, "tokens": 700}}
    run = add_run(engine, rollouts=90, tokens=900, fates=fates, eval_spend=evaluated)
    body = api.get(f"/api/v1/runs/{run.id}/ledger").json()
    assert body["sampled"] == {"fate": "sampled", "rollouts": 90, "tokens": 900}
    assert [f["fate"] for f in body["fates"]] == list(models.FATES)
    assert {f["fate"]: [f["rollouts"], f["tokens"]] for f in body["fates"] if f["rollouts"]} == fates
    assert {e.pop("benchmark"): e for e in body["evaluation"]} == evaluated


def test_a_run_that_sampled_nothing_has_a_ledger_of_zeros(api: TestClient, engine: sa.Engine) -> None:
    body = api.get(f"/api/v1/runs/{add_run(engine).id}/ledger").json()
    assert body["sampled"]["rollouts"] == 0
    assert {f["rollouts"] for f in body["fates"]} == {0}


@pytest.fixture
def run(engine: sa.Engine) -> models.Run:
    """12 prompts, of which p000 to p005 were touched; another run touched all of them."""
    dataset = add_prompts(engine, 12)
    counts = {"unseen": 6, "deferred": 2, "ready": 2, "committed": 1, "evicted": 1}
    run, other = add_run(engine, dataset_id=dataset, buckets=counts), add_run(engine, dataset_id=dataset)
    rates = [0.0, 0.25, 0.25, 0.5, 1.0, None]
    buckets = ["deferred", "ready", "committed", "ready", "evicted", "deferred"]
    for i, (rate, bucket) in enumerate(zip(rates, buckets, strict=True)):
        columns = {"success_rate": rate, "bucket": bucket, "visits": 1 + i % 3, "rollouts": 8 * i, "step": 9 - i}
        add(engine, state(run, f"p{i:03}", **columns))
    add(engine, *[state(other, f"p{i:03}", bucket="skipped", visits=99) for i in range(12)])
    return run


def prompts(api: TestClient, run: models.Run, **params: Any) -> list[dict[str, Any]]:
    """All pages in one."""
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        given = params | ({"cursor": cursor} if cursor else {})
        response = api.get(f"/api/v1/runs/{run.id}/prompts", params=given)
        assert response.status_code == 200, response.text
        rows += response.json()["prompts"]
        cursor = response.json()["next_cursor"]
        if cursor is None:
            assert response.json()["total"] == len(rows)
            return rows


def test_prompts_without_a_visit_are_unseen(api: TestClient, run: models.Run) -> None:
    rows = {row["id"]: row for row in prompts(api, run)}
    assert len(rows) == 12
    assert rows["p011"] == {
        "id": "p011", "text": "What is 11?", "answer": "11", "tags": ["mod2"], "bucket": "unseen",
        "success_rate": None, "visits": 0, "rollouts": 0, "tokens": 0, "step": None, "marks": [],
    }  # fmt: skip
    assert (rows["p003"]["bucket"], rows["p003"]["success_rate"], rows["p003"]["step"]) == ("ready", 0.5, 6)


@pytest.mark.parametrize("limit", [1, 5, 12, 500])
@pytest.mark.parametrize("key", ["visits", "rollouts", "tokens", "success_rate", "step"])
@pytest.mark.parametrize("sign", ["", "-"])
def test_every_sort_pages_without_loss_or_repetition(
    api: TestClient, run: models.Run, key: str, sign: str, limit: int
) -> None:
    rows = prompts(api, run, sort=sign + key, limit=limit)
    assert len({row["id"] for row in rows}) == len(rows) == 12
    values = [row[key] for row in rows]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=sign == "-")
    assert values[: len(known)] == known, "prompts without a value come last"


def test_pages_hold_while_the_trainer_goes_on(api: TestClient, engine: sa.Engine, run: models.Run) -> None:
    """Prompts that do not change themselves are each seen once, while others get their first visit."""
    seen: list[str] = []
    cursor: str | None = None
    fresh = iter(range(6, 12))
    while True:
        params = {"sort": "-visits", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = api.get(f"/api/v1/runs/{run.id}/prompts", params=params).json()
        seen += [row["id"] for row in page["prompts"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
        if (i := next(fresh, None)) is not None and i > 8:
            add(engine, state(run, f"p{i:03}", visits=50))
    unchanged = [f"p{i:03}" for i in range(9)]
    assert sorted(i for i in seen if i in unchanged) == unchanged


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"bucket": "ready"}, ["p001", "p003"]),
        ({"bucket": "unseen"}, [f"p{i:03}" for i in range(6, 12)]),
        ({"bucket": "skipped"}, []),
        ({"search": "is 1"}, ["p001", "p010", "p011"]),
        ({"search": "IS 1?"}, ["p001"]),
        ({"search": "%"}, []),
        ({"search": "_"}, []),
        ({"search": "\\"}, []),
        ({"search": ""}, [f"p{i:03}" for i in range(12)]),
        ({"search": "p004"}, ["p004"]),
        ({"search": "mod1", "bucket": "unseen"}, ["p007", "p010"]),
        ({"tag": "mod1"}, ["p001", "p004", "p007", "p010"]),
        ({"tag": "mod"}, []),
        ({"min_rate": 0.25, "max_rate": 0.5}, ["p001", "p002", "p003"]),
        ({"max_rate": 0.0}, ["p000"]),
        ({"min_rate": 0.25, "tag": "mod1", "bucket": "evicted"}, ["p004"]),
    ],
)
def test_filters(api: TestClient, run: models.Run, params: dict[str, Any], expected: list[str]) -> None:
    assert sorted(row["id"] for row in prompts(api, run, limit=2, **params)) == expected


def test_a_cursor_belongs_to_its_question(api: TestClient, run: models.Run) -> None:
    address = f"/api/v1/runs/{run.id}/prompts"
    cursor = api.get(address, params={"limit": 2}).json()["next_cursor"]
    for other in ({"sort": "visits"}, {"bucket": "ready"}, {"search": "is"}, {"tag": "mod1"}, {"min_rate": 0.1}):
        response = api.get(address, params=other | {"cursor": cursor})
        assert response.status_code == 422
        assert response.json()["errors"][0]["field"] == "query.cursor"


def test_the_tags_of_a_run(api: TestClient, engine: sa.Engine, run: models.Run) -> None:
    tags = api.get(f"/api/v1/runs/{run.id}/prompts/tags", params={"limit": 2}).json()["tags"]
    assert tags == [{"tag": "mod0", "prompts": 4}, {"tag": "mod1", "prompts": 4}]
    assert api.get(f"/api/v1/runs/{add_run(engine).id}/prompts/tags").json() == {"tags": []}


def test_an_exported_selection_is_the_training_set_of_another_run(
    api: TestClient, run: models.Run, tmp_path: Path
) -> None:
    address = f"/api/v1/runs/{run.id}/prompts/export"
    response = api.get(address, params={"bucket": "ready"})
    assert response.headers["content-type"] == "application/x-ndjson"
    assert f'filename="{run.id}-prompts.jsonl"' in response.headers["content-disposition"]
    rows = [json.loads(line) for line in response.text.splitlines()]
    assert [row["id"] for row in rows] == ["p001", "p003"] and rows[0]["success_rate"] == 0.25
    file = tmp_path / "ready.jsonl"
    file.write_bytes(response.content)
    data = DataConfig(train=str(file), eval=str(file))
    loaded = load_prompts(file, data, "data.train").prompts
    assert {(p.text, p.answer, p.tags) for p in loaded} == {
        ("What is 1?", "1", ("mod1",)), ("What is 3?", "3", ("mod0",)),
    }  # fmt: skip
    whole = pq.read_table(io.BytesIO(api.get(address, params={"format": "parquet"}).content)).to_pylist()
    assert [row["id"] for row in whole] == [f"p{i:03}" for i in range(12)]
    assert (whole[11]["prompt"], whole[11]["tags"], whole[11]["success_rate"]) == ("What is 11?", ["mod2"], None)
    assert api.get(address, params={"bucket": "skipped"}).content == b""
    assert api.get(address, params={"format": "csv"}).status_code == 422
    assert api.get(f"/api/v1/runs/{uuid.uuid4()}/prompts/export").status_code == 404


def test_a_run_whose_prompts_were_not_read_yet_has_an_empty_page(api: TestClient, engine: sa.Engine) -> None:
    body = api.get(f"/api/v1/runs/{add_run(engine).id}/prompts").json()
    assert body == {"prompts": [], "total": 0, "next_cursor": None}


def test_a_prompt_tells_its_visits_in_order(api: TestClient, engine: sa.Engine, run: models.Run) -> None:
    move = models.PromptMove(run_id=run.id, step=3, prompt_id="p000", attempt=1, bucket="unseen")
    failed = {"n_failed": 4, "success_rate": None, "reward_variance": None}
    add(
        engine,
        visit(run, 4, "commit", position=7, n=12, bucket="committed"),
        visit(run, 4, "pilot", position=5),
        visit(run, 4, "a stage", position=6),
        visit(run, 2, "pilot", position=9, **failed),
        visit(run, 3, "pilot", position=0, prompt_id="p001"),
        move,
    )
    body = api.get(f"/api/v1/runs/{run.id}/prompts/p000").json()
    assert body["prompt"]["id"] == "p000"
    stages = [(v["step"], v["stage"]) for v in body["visits"]]
    assert stages == [(2, "pilot"), (4, "pilot"), (4, "a stage"), (4, "commit")]
    assert (body["visits"][0]["success_rate"], body["visits"][0]["n_failed"]) == (None, 4)
    assert body["moves"] == [{"step": 3, "attempt": 1, "bucket": "unseen"}]


def test_a_prompt_of_another_data_set_is_not_found(api: TestClient, engine: sa.Engine, run: models.Run) -> None:
    with Session(engine) as session, session.begin():
        session.add(models.Dataset(id="d1", name="other"))
        session.flush()
        session.add(models.Prompt(dataset_id="d1", id="q", text="?", answer="!", tags=[]))
    for prompt_id in ("q", "p999", "%00", "a%2Fb"):
        response = api.get(f"/api/v1/runs/{run.id}/prompts/{prompt_id}")
        assert response.status_code in (404, 422), prompt_id
        assert response.headers["content-type"] == "application/problem+json"
