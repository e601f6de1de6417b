"""Every page in every state, against the real API."""

from __future__ import annotations

import json
import re
import socket
import time
import uuid
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import sqlalchemy as sa
import streamlit as st
import yaml
from pydantic import BaseModel
from streamlit.testing.v1 import AppTest

from api.client import ApiError, Client
from api.schemas import Problem
from bench import dashboard
from pipeline import config as run_config
from pipeline import rundir
from pipeline.allocation import Group, Request, Rollouts, Stage
from pipeline.prompts import Prompt, PromptSet, load_run_prompts
from pipeline.rollouts import write_rollouts
from tests.api.served import ApiServer, make_token
from tests.ui import story
from tests.ui.story import Story
from ui import charts, health, text

APP = Path(__file__).resolve().parents[2] / "ui" / "dashboard.py"


def open_page(name: str, **query: str) -> AppTest:
    """The page as a deep link opens it."""
    app = AppTest.from_file(str(APP), default_timeout=30).run()
    app.switch_page(f"screens/{name}.py")
    for key, value in query.items():
        app.query_params[key] = value
    return checked(app.run())


def checked(app: AppTest) -> AppTest:
    assert not app.exception, app.exception
    return app


def html(app: AppTest) -> str:
    return "\n".join(element.proto.body for element in app.get("html"))


def problems(app: AppTest) -> list[str]:
    """What is told at fields."""
    return [h for h in html(app).split("\n") if h.startswith('<div class="pc-field-problem"')]


def address(app: AppTest) -> dict[str, str]:
    return {key: value if isinstance(value, str) else value[0] for key, value in app.query_params.items()}


def labels(app: AppTest) -> list[str]:
    return [button.label for button in app.button]


def click(app: AppTest, key: str) -> AppTest:
    return checked(app.button(key=key).click().run())


# Sign in


def test_a_dashboard_without_a_token_asks_for_one(
    api: ApiServer, running: Story, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PILOT_TOKEN")
    secret = make_token(database_url, "run", "ada")
    app = open_page("run", run=str(running.id))
    assert labels(app) == ["Sign in"] and "of 60" not in html(app)
    app.text_input[0].input("pilot_wrong")
    wrong = checked(app.button[0].click().run())
    assert "The token is not accepted" in html(wrong) and "of 60" not in html(wrong)
    wrong.text_input[0].input(secret)
    app = checked(wrong.button[0].click().run())
    assert "of 60" in html(app), "the page that was asked for"
    with Client(api.url, api.token) as client:
        (token,) = (token for token in client.list_tokens().tokens if token.name == "ada")
        client.revoke_token(token.id)
    app = checked(app.run())
    assert labels(app) == ["Sign in"] and "was revoked" in app.warning[0].value


def test_a_token_that_may_only_read(
    api: ApiServer, running: Story, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read", "looking"))
    app = open_page("run", run=str(running.id))
    stop = app.button(key="stop-run")
    assert stop.disabled and "'looking', has 'read'" in stop.help
    assert not app.button(key="clone-run").disabled, "what it would be may be looked at"
    app = open_page("runs")
    app = checked(app.checkbox(key=f"select-{running.id}").check().run())
    tags = next(block for block in app.get("popover"))
    assert tags.proto.popover.disabled and "'looking', has 'read'" in tags.proto.popover.help


@pytest.mark.parametrize("name", ["runs", "new_run", "run", "prompts", "prompt"])
def test_the_api_is_away(name: str, api: ApiServer) -> None:
    api.stop()
    query = {} if name in ("runs", "new_run") else {"run": str(uuid.uuid4()), "prompt": "p0"}
    page = html(open_page(name, **query))
    assert "The API does not answer" in page and api.url in page and "./pilot up" in page
    assert "Traceback" not in page


@pytest.mark.parametrize("name", ["run", "prompts", "prompt"])
def test_an_address_without_a_run(name: str, api: ApiServer) -> None:
    app = open_page(name)
    assert "chosen" in html(app) and app.get("page_link")
    for run_id in (str(uuid.uuid4()), "no-id"):
        app = open_page(name, run=run_id, prompt="p0")
        page = html(app)
        assert "pc-bad" in page and "There is no" in page.replace("There is nothing", "There is no"), page
        assert "All runs" in [link.proto.label for link in app.get("page_link")], "a way out"
        assert "GET /" not in page and ("The page Runs lists the runs." in page) != (run_id == "no-id"), page


# Run


def test_a_running_run(api: ApiServer, running: Story) -> None:
    app = open_page("run", run=str(running.id))
    page = html(app)
    now = running.now()
    for bucket, count in now.buckets.items():
        assert f'aria-label="{count:,} prompts {bucket}"' in page
    assert "</i>running" in page and "12" in page and "of 60" in page
    assert f"{now.rollouts:,}" in page, "what was spent, with its exact value on hover"
    assert len(app.get("vega_lite_chart")) == 6
    assert "trained on" in page and "pilot, too hard" in page, "spend by fate"
    assert {"Prompts", "Clone", "Stop"} <= set(labels(app))
    running.train(1)
    assert f'aria-label="{running.now().buckets["ready"]:,} prompts ready"' in html(checked(app.run()))


def table_of(app: AppTest, caption: str) -> list[list[str]]:
    """A table's rows below its head, as a reader sees them."""
    (found,) = (h for h in html(app).split("\n") if f'aria-label="{caption}"' in h)
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td.*?</td>", row)]
        for row in re.findall("<tr>.*?</tr>", found)[1:]
    ]


def test_benchmarks_besides_the_held_out_set(
    api: ApiServer, engine: sa.Engine, config: dict[str, Any], tmp_path: Path
) -> None:
    run = Story(engine, config | {"evaluation": story.several(tmp_path)}).start().train(10)
    with engine.begin() as connection:  # the first evaluation was the best
        best = "UPDATE evaluations SET mean_accuracy = 0.875, mean_stderr = 0.011 WHERE run_id = :id AND step = 0"
        connection.execute(sa.text(best), {"id": run.id})
    with Client(api.url, api.token) as client:
        evaluations = client.metrics(run.id).evaluations
        spent = client.ledger(run.id).evaluation
    newest = evaluations[-1]
    app = open_page("run", run=str(run.id))
    rows = table_of(app, "Benchmarks")
    assert [row[0] for row in rows] == ["held-out", "aime24", "amc23", "mean of benchmarks"]
    aime, mean = newest.benchmarks[1], newest.mean_accuracy
    assert mean is not None and aime.greedy_accuracy is not None
    assert rows[1] == [
        "aime24", f"{100 * aime.accuracy:.1f}% ± 2.0% · step 10", f"{100 * aime.accuracy:.1f}% ± 2.0% · step 10",
        f"{100 * (aime.pass_at['32'] or 0):.1f}%", f"{100 * aime.majority:.1f}%",
        f"{100 * aime.greedy_accuracy:.1f}%", "64 × 32",
    ]  # fmt: skip
    assert rows[2][5:] == ["–", "64 × 8"], "amc23 is not answered greedily"
    assert rows[3][1:] == [f"{100 * mean:.1f}% ± 1.4% · step 10", "87.5% ± 1.1% · step 0", "–", "–", "–", "–"]

    assert app.selectbox(key="benchmark").value == "held-out"
    assert accuracies(app) == pytest.approx([e.sampled_accuracy for e in evaluations], abs=1e-6)
    app = checked(app.selectbox(key="benchmark").set_value("amc23").run())
    assert accuracies(app) == pytest.approx([e.benchmarks[2].accuracy for e in evaluations], abs=1e-6)
    app = open_page("run", run=str(run.id), benchmark="mean of benchmarks", target="86")
    assert accuracies(app) == pytest.approx([e.mean_accuracy or 0.0 for e in evaluations], abs=1e-6)
    assert "86% reached after" in html(app) and "at step 0." in html(app), "the target is one of what is shown"
    app = open_page("run", run=str(run.id), benchmark="nothing of ours")
    assert app.selectbox(key="benchmark").value == "held-out"

    (evaluation, *parts), now = table_of(app, "Spend by fate")[-4:], run.now()
    assert evaluation[:3] == ["evaluation", text.number(now.eval_rollouts), text.number(now.eval_tokens)]
    assert evaluation[3:] == [f"{now.eval_seconds:.2f}"] == ["4.50"], "three of 1.5 s each"
    assert [part[:4] for part in parts] == [
        [b.benchmark, text.number(b.rollouts), text.number(b.tokens), "–"]
        for b in sorted(spent, key=lambda b: -b.rollouts)
    ], "the dearest first"
    assert sum(b.rollouts for b in spent) == now.eval_rollouts


def accuracies(app: AppTest) -> list[float]:
    """What the accuracy chart, the first of the page, shows of sampled answers."""
    (dataset,) = app.get("vega_lite_chart")[0].proto.datasets or [app.get("vega_lite_chart")[0].proto]
    data = dataset.data.data
    return list(pa.ipc.open_stream(data).read_all()["sampled"].to_pylist())


def test_one_benchmark_is_told_as_before(api: ApiServer, running: Story) -> None:
    app = open_page("run", run=str(running.id))
    assert "Benchmarks" not in html(app) and "benchmark" not in [box.key for box in app.selectbox]
    evaluation, now = table_of(app, "Spend by fate")[-1], running.now()
    assert evaluation[:3] == ["evaluation", text.number(now.eval_rollouts), text.number(now.eval_tokens)]
    before_the_first_step = Story(running.engine, now.config).start()
    told = table_of(open_page("run", run=str(before_the_first_step.id)), "Spend by fate")
    assert [row[:2] for row in told] == [["sampled", "0"], ["evaluation", "320"]]


def test_stop_and_resume(api: ApiServer, running: Story) -> None:
    app = click(open_page("run", run=str(running.id)), "stop-run")
    assert running.now().state == "stopping"
    assert app.button(key="stop-run").disabled and "</i>stopping" in html(app)
    assert not app.toast, "it would lie over the buttons"
    running.finish("stopped", "Stopped by request.")
    app = checked(app.run())
    assert "</i>stopped" in html(app) and "Stopped by request." in html(app)
    app = click(app, "resume-run")
    assert running.now().state == "queued" and "</i>queued" in html(app)


def test_a_stop_that_comes_too_late(api: ApiServer, running: Story) -> None:
    app = open_page("run", run=str(running.id))
    running.finish("succeeded", "All steps are done.")
    app = click(app, "stop-run")
    assert "</i>succeeded" in html(app)


def test_a_stop_that_is_refused(api: ApiServer, running: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(title="Not possible now", status=409, detail="The run has finished.")
    monkeypatch.setattr(Client, "stop_run", lambda self, run_id: (_ for _ in ()).throw(ApiError(problem)))
    app = click(open_page("run", run=str(running.id)), "stop-run")
    assert "Not possible now. The run has finished." in app.toast[0].value.replace("\\", "")


def test_a_failed_run(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    run = Story(engine, config).start().train(2).finish("failed", "Out of memory <in> step 3. Lower batch_prompts.")
    app = open_page("run", run=str(run.id))
    page = html(app)
    assert "<b>Failed</b> Out of memory &lt;in&gt; step 3. Lower batch_prompts." in page
    assert not app.button(key="resume-run").disabled


def test_a_finished_run_is_not_polled(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    run = Story(engine, config).start().train(2)
    assert timers(open_page("run", run=str(run.id))) == [2]
    run.finish("succeeded", "All steps are done.")
    app = open_page("run", run=str(run.id))
    assert timers(app) == []
    assert app.button(key="resume-run").disabled and "All steps are done" in app.button(key="resume-run").help
    assert "All steps are done." in html(app)


def timers(app: AppTest) -> list[float]:
    """The intervals at which the page asks to be refreshed."""
    session = app.session_state["feed"]
    return [2] if session.live else []


def test_a_queued_run(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    app = open_page("run", run=str(Story(engine, config).id))
    page = html(app)
    assert "</i>queued" in page and "No step yet" in page and not app.get("vega_lite_chart")
    assert "no worker is running that could start it: start a worker" in page
    app = click(app, "stop-run")
    assert "</i>stopped" in html(app), "a queued run is stopped at once"
    assert "</i>stopped" in (listed := html(open_page("runs"))) and "ran " not in listed.split("pc-foot")[0]
    Story(engine, config | {"name": "first"}).start()
    page = html(open_page("run", run=str(Story(engine, config).id)))
    assert "Queued" in page and "Waiting for a worker" not in page, "it waits for the other"


def test_the_config_is_told_in_the_order_of_its_fields(
    api: ApiServer, engine: sa.Engine, config: dict[str, Any], tmp_path: Path
) -> None:
    """At every depth, lists and members of unions included; the database sorts keys by their length."""
    run = Story(engine, config | {"evaluation": story.several(tmp_path)})
    whole = run_config.parse_config(config | {"evaluation": story.several(tmp_path)}).model_dump(mode="json")
    app = open_page("run", run=str(run.id), below="Config")
    assert app.code[0].value == text.yaml(whole).rstrip()
    assert text.yaml(run.now().config) != text.yaml(whole)


def test_the_priority_of_a_queued_run(
    api: ApiServer, engine: sa.Engine, config: dict[str, Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits = Story(engine, config)
    app = open_page("run", run=str(waits.id))
    app.number_input(key="priority").set_value(7)
    (save,) = (b for b in app.button if b.label == "Set")
    app = checked(save.click().run())
    assert waits.now().priority == 7 and app.get("popover")[0].proto.popover.label == "Priority 7"
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read"))
    popover = open_page("run", run=str(waits.id)).get("popover")[0].proto.popover
    assert popover.disabled and "needs a token with the scope 'run'" in popover.help
    waits.start()
    assert not open_page("run", run=str(waits.id)).get("popover"), "it is in no queue any more"


def test_the_connection_is_lost_and_comes_back(api: ApiServer, running: Story) -> None:
    app = open_page("run", run=str(running.id))
    ready = running.now().buckets["ready"]
    api.stop()
    page = html(checked(app.run()))
    assert "The API does not answer" in page and "last known" in page
    assert f'aria-label="{ready:,} prompts ready"' in page, "the last numbers stay"
    running.train(1)
    api.start()
    page = html(checked(app.run()))
    assert "does not answer" not in page
    assert f'aria-label="{running.now().buckets["ready"]:,} prompts ready"' in page


def test_what_is_looked_at_below_and_the_target_are_in_the_address(
    api: ApiServer, running: Story, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "home" / "runs" / str(running.id)
    log = rundir.segment_path(rundir.log_folder(run_dir, 1), 0)
    log.parent.mkdir(parents=True)
    log.write_text("loading <policy>\n" + "step 12 done\n" * 2000)
    for step, accuracy in ((5, 0.5), (10, 0.4)):
        folder = run_dir / "checkpoints" / f"step_{step:06d}"
        (folder / "policy").mkdir(parents=True)
        (folder / "accuracy.json").write_text(json.dumps({"sampled_accuracy": accuracy}))
        (folder / "policy" / "model.safetensors").write_bytes(b"w" * step)
    query = {"run": str(running.id), "target": "30"}
    app = open_page("run", **query, below="Log")
    page = html(app)
    assert "step 12 done" in page and "loading" not in page and "./pilot run log" in page
    assert "30% reached after" in page, "the target is in the address, too"
    app = checked(app.number_input(key="target").set_value(99.0).run())
    assert "Not at 99% yet." in html(app)
    log.write_text(log.read_text() + "and one line more\n")
    assert "one line more" in html(checked(app.run())), "the log is followed"
    app = open_page("run", **query, below="Checkpoints")
    assert ">best</span>" in html(app) and app.selectbox(key="checkpoint").value == 5
    assert "checkpoints/5/accuracy.json" in html(app) and len(app.get("download_button")) == 1
    with Client(api.url, api.token) as client:
        assert client.download_checkpoint_file(running.id, 5, "policy/model.safetensors") == b"wwwww"
    ask_for_an_evaluation(app, api, running)
    assert "gpu-node-1" in html(open_page("run", **query, below="Attempts"))
    assert "n_pilot" in open_page("run", **query, below="Config").code[0].value


def ask_for_an_evaluation(app: AppTest, api: ApiServer, running: Story) -> None:
    """Of the chosen checkpoint; refused, then taken, then evaluated by a worker."""
    assert "No evaluation was asked for yet" in [caption.value for caption in app.caption][-1]
    app.multiselect(key="evaluate-benchmarks").set_value(["nowhere.jsonl"])
    app = click(app, "evaluate-now")
    assert "no such file, and no benchmark of the run" in app.error[0].value
    app.multiselect(key="evaluate-benchmarks").set_value([])
    app.number_input(key="evaluate-samples").set_value(8)
    app = click(app, "evaluate-now")
    assert not app.error and "it is next" not in html(app) and "no worker is running that could start it" in html(app)
    with Client(api.url, api.token) as client:
        (asked,) = client.evaluations(running.id).evaluations
        assert (asked.step, [b.name for b in asked.benchmarks]) == (5, ["held-out", "held-out.k8"])
        before = client.get_run(running.id)
        running.evaluated(asked.id, 5, {"held-out": 0.25, "held-out.k8": 0.625})
        app = checked(app.run())
        assert "held-out.k8 <b>62.5%</b>" in html(app)
        assert client.get_run(running.id).state == before.state
        assert app.session_state["feed"].evaluations[5].sampled_accuracy == 0.25, "the chart has it, too"
        client.evaluate(running.id, {"step": 10})
        (waiting, _) = client.evaluations(running.id).evaluations
        app = click(checked(app.run()), f"stop-{waiting.id}")
        assert client.get_evaluation(waiting.id).state == "stopped" and "stopped while it was queued" in html(app)


def test_spend_has_money_when_a_price_is_set(api: ApiServer, running: Story, engine: sa.Engine) -> None:
    assert "EUR" not in html(open_page("run", run=str(running.id)))
    with Client(api.url, api.token) as client:
        client.change_settings(30.0, "EUR")
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE attempts SET started_at = now() - interval '2 hours'"))
    page = html(open_page("run", run=str(running.id)))
    assert "device-hours" in page, "the unit that the run has filled"
    assert "EUR" not in page and ">2.00</span></b>" in page, "two hours of a CPU slot have no price"
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET device = 'cuda', n_devices = 2, eval_seconds = 5400"))
    app = open_page("run", run=str(running.id))
    *fates, sampled, evaluation = table_of(app, "Spend by fate")
    assert "EUR" in html(app)
    assert evaluation[3:] == ["3.00", "90.00"], "an hour and a half of two GPUs"
    assert sampled[3] == "1.00" and re.fullmatch(r"30\.\d\d", sampled[4]), "the rest, of two hours of two GPUs"
    told = [sum(0.0 if cell[i] in ("–", "<0.01") else float(cell[i]) for cell in fates) for i in (3, 4)]
    assert told == pytest.approx([1, 30], abs=0.05), "the fates share the rest"


def test_bucket_flow(api: ApiServer, running: Story) -> None:
    app = open_page("run", run=str(running.id), flow="whole run")
    with Client(api.url, api.token) as client:
        flows = client.flows(running.id).flows
        moved = sum(f.prompts for f in flows if f.source != f.target)
        assert moved == 200 - running.now().buckets["unseen"]
        assert app.selectbox(key="flow").value == "whole run"
        assert app.session_state["feed"].moved.flows == flows
        app = open_page("run", **{"run": str(running.id), "flow": "from … to …", "flow-from": "2"})
        app = checked(app.number_input(key="flow-to").set_value(5).run())
        between, moved = client.flows(running.id, 2, 5), app.session_state["feed"].moved
        assert (moved.from_step, moved.to_step) == (2, 5) and moved.flows == between.flows != flows
    app = click(app, "audit-run")
    assert app.title[0].value == "Audit" and app.selectbox[0].value == str(running.id)


def test_only_news_is_fetched(api: ApiServer, running: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    call = Client._send

    def counted(self: Client, method: str, path: str, **given: Any) -> Any:
        asked.append(f"{path.rsplit('/', 1)[-1]} {(given.get('params') or {}).get('from_step', '')}".strip())
        return call(self, method, path, **given)

    monkeypatch.setattr(Client, "_send", counted)
    app = open_page("run", run=str(running.id))
    assert asked.count(str(running.id)) == 1, "an opened page asks once"
    asked.clear()
    checked(app.run())
    assert asked == [str(running.id)], "without news a refresh is one small request"
    asked.clear()
    running.train(1)
    checked(app.run())
    side_by_side = sorted(asked[1:3])
    assert [asked[0], *side_by_side] == [str(running.id), "buckets 12", "metrics 12"]
    assert asked[3:] == ["flows 0", "ledger", "prompts"]


# Prompts


def test_prompts(api: ApiServer, running: Story) -> None:
    app = open_page("prompts", run=str(running.id))
    assert len(app.get("vega_lite_chart")) == 2, "the difficulty map"
    links = app.get("page_link")
    assert len(links) == 1 + 25 and "of 200 prompts" in app.caption[0].value
    (following,) = (b for b in app.button if b.label == "Next")
    checked(following.click().run())
    assert "26–50 of 200" in app.caption[0].value
    deferred = running.now().buckets["deferred"]
    checked(app.pills(key="bucket").set_value("deferred").run())
    assert f"of {deferred} prompts" in app.caption[0].value, "a filter begins on the first page"
    checked(app.text_input(key="search").set_value("no such words").run())
    assert "No prompt matches" in html(app)


def rows_of(app: AppTest, key: str) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The spec of a chart of the prompts page and its rows."""
    at = {"chart-rates": 0, "chart-spend": 1}[key]
    proto = app.get("vega_lite_chart")[at].proto
    (dataset,) = proto.datasets
    return json.loads(proto.spec), pa.ipc.open_stream(dataset.data.data).read_all().to_pydict()


def test_prompts_are_drawn_at_their_rates(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    """Of 0% at 0, of 100% at 1, of 25% at 0.25: where a group of the pilots can lie."""
    method = {"name": "pilot_commit", "n_pilot": 4, "n_commit": 4}
    run = Story(engine, config | {"method": method}).start().train(10)
    with Client(api.url, api.token) as client:
        rates = {row.success_rate for row in client.prompts(run.id, limit=500).prompts} - {None}
    app = open_page("prompts", run=str(run.id))
    spec, rows = rows_of(app, "chart-spend")
    lattice = [0, 0.25, 0.5, 0.75, 1]
    assert {0, 1} <= rates and set(rows["rate"]) <= set(lattice) and {0, 1} <= set(rows["rate"])
    assert spec["encoding"]["x"]["axis"]["values"] == lattice
    assert "~s" not in spec["encoding"]["y"]["axis"].get("format", ""), "1.024k visits"
    spec, rows = rows_of(app, "chart-rates")
    middles = [(low + high) / 2 for low, high in zip(rows["low"], rows["high"], strict=True)]
    assert set(middles) == set(rows["rate"]) <= set(lattice) and {0, 1} <= set(middles)
    assert all(begin < end for begin, end in zip(rows["from"], rows["to"], strict=True)), "ten steps in forty parts"
    assert spec["encoding"]["y"]["scale"]["domain"] == [-0.125, 1.125], "the cells of 0 and 1 are as high as others"


def test_prompts_are_filtered_and_taken_away(api: ApiServer, running: Story, tmp_path: Path) -> None:
    run = str(running.id)
    with Client(api.url, api.token) as client:
        rows = client.prompts(run, limit=500).prompts
        wanted = [r.id for r in rows if r.success_rate is not None and r.success_rate >= 0.5 and "digits3" in r.tags]
        app = open_page("prompts", run=run, tag="digits3")
        app = checked(app.slider(key="rate").set_range(50, 100).run())
        assert wanted and f"of {len(wanted)} prompts" in app.caption[0].value
        assert [button.proto.label for button in app.get("download_button")] == ["JSONL", "Parquet"]
        taken = client.export_prompts(run, "jsonl", tag="digits3", min_rate=0.5).splitlines()
    assert sorted(json.loads(line)["id"] for line in taken) == sorted(wanted)
    app = checked(app.slider(key="rate").set_range(0, 1).run())
    app = checked(app.pills(key="bucket").set_value("evicted").run())
    assert "No prompt matches" in html(app)


def test_a_hundred_thousand_prompts(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    run = str(dashboard.fill(engine, run_config.parse_config(config).model_dump(mode="json"), 1, 40, 100_000))
    app = open_page("prompts", run=run, sort="most tokens")
    assert "1–25 of 100,000 prompts" in app.caption[0].value and len(app.get("vega_lite_chart")) == 2
    with Client(api.url, api.token) as client:
        most = client.prompts(run, sort="-tokens", limit=1).prompts[0]
        assert [link.proto.query_string for link in app.get("page_link")][1] == f"run={run}&prompt={most.id}"
        assert sum(cell.prompts for cell in client.difficulty(run).spend) == client.prompts(run, max_rate=1.0).total
    assert len(open_page("run", run=run).get("vega_lite_chart")) == 6


def test_no_prompts_yet(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    page = html(open_page("prompts", run=str(Story(engine, config).id)))
    assert "No prompts yet" in page and "No group has been judged yet." in page and "No prompt has been visited" in page


def test_prompts_by_deep_link(api: ApiServer, running: Story) -> None:
    app = open_page("prompts", run=str(running.id), search="What is 77 ")
    assert [link.proto.label for link in app.get("page_link")][1:] == [r"What is 77 \+ 6? Answer with a number\."]


def test_a_prompt_with_history(api: ApiServer, running: Story) -> None:
    with Client(api.url, api.token) as client:
        row = client.prompts(running.id, sort="-visits", limit=1).prompts[0]
    app = open_page("prompt", run=str(running.id), prompt=row.id)
    page = html(app)
    assert "What is" in page and f">{row.answer}</pre>" in page and f"</i>{row.bucket}" in page
    assert len(app.get("vega_lite_chart")) == 1 and "commit" in page and "bucket after it" in page


def test_the_rollouts_of_a_prompt(api: ApiServer, running: Story, tmp_path: Path) -> None:
    with Client(api.url, api.token) as client:
        rows = client.prompts(running.id, sort="-visits", limit=200).prompts
        row = next(r for r in rows if r.visits > 1 and r.success_rate is not None and 0 < r.success_rate < 1)
    app = open_page("prompt", run=str(running.id), prompt=row.id)
    assert "The rollouts of this step are not kept." in html(app)
    running.leave_rollouts(tmp_path / "home", row.id)
    app = checked(app.run())
    page = html(app)
    assert "reward 1" in page and "reward 0" in page and "−0.3 a token" in page
    assert "<ins>" in page and "<del>" in page and "13 &lt;or so&gt;" in page, "a right and a wrong one, compared"
    low, high = health.wilson(row.success_rate or 0, 24)
    newest = f"of step {row.step:,}"
    assert newest in page and low < (row.success_rate or 0) < high
    with Client(api.url, api.token) as client:
        visited = sorted({v.step for v in client.prompt(running.id, row.id).visits}, reverse=True)
    assert len(visited) > 1
    (older,) = (b for b in app.button if b.label == "Older")
    app = checked(older.click().run())
    assert f"of step {visited[1]:,}, " in html(app) and address(app)["step"] == str(visited[1])
    linked = open_page("prompt", run=str(running.id), prompt=row.id, step=str(visited[1]))
    assert f"of step {visited[1]:,}, " in html(linked), "the address tells which"
    (newer,) = (b for b in linked.button if b.label == "Newer")
    assert newest in html(checked(newer.click().run())) and newest in html(
        open_page("prompt", run=str(running.id), prompt=row.id, step="x")
    )


def test_a_prompt_is_marked_and_every_mark_can_be_taken_back(api: ApiServer, running: Story) -> None:
    app = open_page("prompt", run=str(running.id), prompt="p0003")
    assert "to be pinned" not in html(app) and "holds from step" not in html(app)
    app = click(app, "mark-keep")
    assert "to be pinned" in html(app) and "the next one" in html(app)
    assert app.button(key="mark-keep").label == "Unpin"
    running.apply_marks().train(1)
    app = checked(app.run())
    assert "</i>pinned</span>" in html(app) and f"from step {running.step} on; wished" in html(app)
    app = click(app, "mark-replay")
    assert "to be re-tested" in html(app)
    app = click(app, "mark-replay")  # cancels it, and leaves the pin
    assert "to be re-tested" not in html(app) and app.button(key="mark-keep").label == "Unpin"
    app = click(app, "mark-block")
    assert app.button(key="mark-block").label == "Include" and app.button(key="mark-keep").label == "Pin"
    retest = app.button(key="mark-replay")
    assert retest.disabled and "include it first" in retest.help
    app = click(app, "mark-block")
    assert "to be cleared" in html(app), "until the trainer knows, it is pinned"
    running.apply_marks()
    assert "pc-moving" not in html(checked(app.run())).partition("Text</h2>")[0]
    with Client(api.url, api.token) as client:
        assert [m.mark for m in client.prompt(running.id, "p0003").marks] == [
            "clear",
            "exclude",
            "pin",
            "retest",
            "pin",
        ]
    running.finish("succeeded", "all steps done")
    app = checked(app.run())
    assert all(app.button(key=f"mark-{icon}").disabled for icon in ("keep", "block", "replay"))
    assert "no further step" in app.button(key="mark-block").help


def test_a_selection_of_prompts_is_marked(
    api: ApiServer, running: Story, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(running.id)
    app = open_page("prompts", run=run, bucket="evicted")
    n = running.now().buckets["evicted"]
    assert f"**{n} prompts** of this selection" in "\n".join(m.value for m in app.markdown)
    app = click(app, "all-retest")
    assert app.toast[0].value == f"{n} prompts to be re-tested"
    with Client(api.url, api.token) as client:
        assert client.prompts(run, marked="retest").total == n
        client.mark_prompts(run, "exclude", ["p0003"])
    app = open_page("prompts", run=run, marked="excluded")
    assert "of 1 prompt" in app.caption[0].value
    (row,) = app.get("page_link")[1:]
    assert row.proto.icon == ":material/block:" and row.proto.label.startswith(":gray[to be excluded ·] What is 3")
    refused = click(app, "all-retest")
    assert "p0003" in refused.toast[0].value and "include it first" in refused.toast[0].value
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read", "looking"))
    app = open_page("prompt", run=run, prompt="p0003")
    for icon in ("keep", "block", "replay"):
        button = app.button(key=f"mark-{icon}")
        assert button.disabled and "'looking', has 'read'" in button.help
    (menu,) = (b for b in open_page("prompts", run=run).get("popover") if "Mark" in b.proto.popover.label)
    assert menu.proto.popover.disabled


def test_an_unseen_prompt(api: ApiServer, engine: sa.Engine, config: dict[str, Any]) -> None:
    run = Story(engine, config).start()
    app = open_page("prompt", run=str(run.id), prompt="p0003")
    assert "Not sampled yet" in html(app) and not app.get("vega_lite_chart")


def test_a_prompt_that_is_not_there(api: ApiServer, running: Story) -> None:
    page = html(open_page("prompt", run=str(running.id), prompt="nope"))
    assert "pc-banner" in page and "The run&#x27;s page leads to its prompts." in page and "GET /" not in page


# New run


@pytest.fixture
def preset(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One preset whose files exist, whatever ships."""
    given = [{"name": "small", "group": "", "title": "Small", "description": "A small run.", "config": config}]
    monkeypatch.setattr("api.routes.config.presets", lambda: given)
    return config


def widget(app: AppTest, kind: str, path: str) -> Any:
    (found,) = (w for w in app.get(kind) if w.key and w.key.split(".", 1)[-1].split("@")[0] == path)
    return found


def shown_yaml(app: AppTest) -> Any:
    return yaml.safe_load(str(app.text_area(key="new.yaml").value))


def write_yaml(app: AppTest, words: str) -> AppTest:
    return checked(app.text_area(key="new.yaml").set_value(words).run())


def test_a_run_from_a_preset(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    assert "Ready to start" in app.success[0].value
    for path in ("method.n_pilot", "method.p_lower", "update.lr", "budget.rollouts", "engine.token_budget"):
        assert widget(app, "number_input", path)
    widget(app, "number_input", "budget.steps").set_value(7)
    widget(app, "text_input", "name").set_value("seven steps")
    app = click(app.run(), "start-run")
    with Client(api.url, api.token) as client:
        (made,) = client.list_runs().runs
        assert (made.name, made.steps_budget, made.state) == ("seven steps", 7, "queued")
        assert client.get_run(made.id).config["method"]["n_pilot"] == 8
    assert "seven steps" in html(app), "the start leads to the run"


def test_problems_are_told_at_the_field(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    widget(app, "number_input", "budget.steps").set_value(0)
    widget(app, "text_input", "model.path").set_value("/no/such/folder")
    app = checked(app.run())
    assert ["greater than or equal to 1" in p for p in problems(app)] == [True]
    assert app.button(key="start-run").disabled and "not accepted" in app.error[0].value
    assert r"Steps (steps)" in app.error[0].value.replace("\\", ""), "named beside the button, too"
    widget(app, "number_input", "budget.steps").set_value(5)
    app = checked(app.run())
    assert ["no such folder" in p for p in problems(app)] == [True]


def test_an_uploaded_set_is_chosen(api: ApiServer, preset: dict[str, Any]) -> None:
    rows = [{"prompt": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(1200)]
    with Client(api.url, api.token) as client:
        sets = [client.upload_prompts("sums", "a.jsonl", "\n".join(map(json.dumps, part)).encode())
                for part in (rows[:1000], rows[1000:])]  # fmt: skip
        app = open_page("new_run")
        for path, stored, words in (
            ("data.train", sets[0], "sums · 1,000 prompts, "),
            ("data.eval", sets[1], "200 pro"),
        ):
            picker = widget(app, "selectbox", path)
            assert picker.value == preset["data"][path[5:]], "a path is as good as before"
            assert any(words in option and stored.version[:8] in option for option in picker.options)
            app = checked(picker.set_value(stored.ref).run())
        assert shown_yaml(app)["data"]["train"] == sets[0].ref and "Ready to start" in app.success[0].value
        write_yaml(app, yaml.safe_dump(shown_yaml(app) | {"data": preset["data"] | {"train": sets[1].ref}}))
        assert widget(app, "selectbox", "data.train").value == sets[1].ref
        picker = widget(app, "selectbox", "data.train")
        picker.options.append("/no/such/file.jsonl")  # what a browser sends when it is typed
        app = checked(picker.set_value("/no/such/file.jsonl").run())
        assert ["no such file" in p for p in problems(app)] == [True]
        assert shown_yaml(app)["data"]["train"] == "/no/such/file.jsonl"


def test_thresholds_in_the_wrong_order(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    widget(app, "number_input", "method.p_lower").set_value(0.9)
    page = html(checked(app.run()))
    assert "Too hard below (p_lower), Too easy above (p_upper): p_lower=0.9 is above p_upper=0.75" in page


def test_the_method_chooses_the_fields(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    widget(app, "selectbox", "method.name").select("grpo")
    app = checked(app.run())
    assert widget(app, "number_input", "method.n").value == 128
    assert shown_yaml(app)["method"] == {"name": "grpo", "n": 128}
    assert "Ready to start" in app.success[0].value


def test_the_verl_engine(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    widget(app, "selectbox", "engine.name").select("verl")
    app = checked(app.run())
    assert widget(app, "number_input", "engine.gpus_per_node").value == 8
    widget(app, "text_area", "engine.overrides").set_value("actor_rollout_ref.model.lora_rank: 32")
    widget(app, "multiselect", "engine.loggers").set_value(["console", "tensorboard"])
    app = checked(app.run())
    engine = shown_yaml(app)["engine"]
    assert engine["overrides"] == {"actor_rollout_ref.model.lora_rank": 32}
    assert engine["loggers"] == ["console", "tensorboard"] and engine["ray_address"] is None
    assert "Ready to start" in app.success[0].value
    widget(app, "text_area", "engine.overrides").set_value("just words")
    app = checked(app.run())
    assert ["must be a mapping" in p for p in problems(app)] == [True] and app.button(key="start-run").disabled


def test_yaml_and_form_follow_each_other(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    widget(app, "number_input", "seed").set_value(5)
    app = checked(app.run())
    assert shown_yaml(app)["seed"] == 5
    theirs = yaml.safe_dump(preset | {"seed": 6}) + "# mine\n"
    app = write_yaml(app, theirs)
    assert widget(app, "number_input", "seed").value == 6
    assert app.text_area(key="new.yaml").value == theirs, "the text stays as it was written"
    assert "Ready to start" in app.success[0].value
    app = write_yaml(app, yaml.safe_dump(preset | {"method": {"name": "grpo", "n": 4}}))
    assert widget(app, "number_input", "method.n").value == 4
    widget(app, "number_input", "method.n").set_value(8)
    app = checked(app.run())
    assert shown_yaml(app)["method"] == {"name": "grpo", "n": 8} and "# mine" not in app.text_area(key="new.yaml").value


def test_faults_in_yaml_are_told_by_line_and_field_and_nothing_is_lost(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    theirs = yaml.safe_dump(preset, sort_keys=False) + "seed: many\nbudgets: {steps: 3}\n"
    app = write_yaml(app, theirs)
    last = len(theirs.splitlines())
    words = app.error[0].value.replace("\\", "")
    assert f"line {last}" in words and "budgets" in words and "did you mean 'budget'?" in words
    assert f'Seed (seed)**, line {last - 1}, "seed: many"' in words, "also what the form's widget cannot show"
    assert app.text_area(key="new.yaml").value == theirs
    widget(app, "number_input", "budget.steps").set_value(9)
    app = checked(app.run())
    written = shown_yaml(app)
    assert (written["budget"]["steps"], written["seed"], written["budgets"]) == (9, "many", {"steps": 3})
    widget(app, "number_input", "seed").set_value(3)
    app = checked(app.run())
    assert shown_yaml(app)["seed"] == 3 and "Seed" not in app.error[0].value, "the form mends what the text broke"

    broken = "name: x\nbudget:\n  steps: [1\nseed: 0\n"
    app = write_yaml(app, broken)
    words = app.error[0].value.replace("\\", "")
    assert """not YAML in line 4, "seed: 0", at 'seed'""" in words and app.button(key="start-run").disabled
    assert app.text_area(key="new.yaml").value == broken and widget(app, "number_input", "seed").disabled
    assert len(app.error) == 1 and not problems(app), "the problems of the text before are gone"
    app = write_yaml(app, yaml.safe_dump(preset | {"seed": 3}) + "method.n_pilot: 8\n")
    assert "method.n_pilot" in app.error[0].value.replace("\\", ""), "a key with a dot is no path, and told as unknown"
    widget(app, "number_input", "budget.steps").set_value(8)
    assert shown_yaml(checked(app.run()))["method.n_pilot"] == 8
    app = write_yaml(app, "just words")
    assert "mapping" in app.error[0].value
    app = click(app, "back-to-form")
    assert shown_yaml(app)["seed"] == 3 and not widget(app, "number_input", "seed").disabled


def test_a_forecast_beside_the_form(api: ApiServer, preset: dict[str, Any], engine: sa.Engine) -> None:
    app = open_page("new_run")
    page = html(app)
    assert "Forecast" in page and "Not known:" in page and "not known" in page, "without a history it says so"
    widget(app, "selectbox", "method.name").select("grpo")
    app = checked(app.run())
    widget(app, "number_input", "method.n").set_value(4)
    page = html(checked(app.run()))
    assert f'title="{60 * 5 * 4:,}"' in page, "60 steps of a pool of 5 prompts, 4 rollouts each"
    run = Story(engine, preset).start().train(10)
    digest = load_run_prompts(run_config.parse_config(preset))[0].digest
    with engine.begin() as connection:
        connection.execute(sa.text("INSERT INTO datasets (id, name) VALUES (:id, 'train')"), {"id": digest})
        connection.execute(sa.text("UPDATE runs SET dataset_id = :id"), {"id": digest})
        connection.execute(sa.text("UPDATE attempts SET seconds = 90"))
    with Client(api.url, api.token) as client:
        client.change_settings(2, "EUR")
    app = open_page("new_run", clone=str(run.id))
    page = html(app)
    assert "Rests on 1 run of this model" in page and "Saves <b>" in page
    assert "EUR" not in page and "hours of a CPU slot" in page and "GPU-hours" not in page, "only GPUs have a price"
    assert "<b>Advice:</b> update.batch_prompts is 16 and the training set has 5 prompts" in page
    assert "deferred" in page and "pc-legend" in page
    Story(engine, preset | {"seed": 1}).start().train(10)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET dataset_id = :id"), {"id": digest})
    asked, _, answer = app.session_state["new.answer"]
    for seconds_ago, rests_on in ((1, "1 run"), (10, "2 runs")):
        app.session_state["new.answer"] = asked, time.monotonic() - seconds_ago, answer
        assert f"Rests on {rests_on} of this model" in html(checked(app.run()))
    on_gpu = Story(engine, preset | {"engine": {"name": "torch", "device": "cuda"}}).start().train(10)
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE runs SET dataset_id = :id"), {"id": digest})
        connection.execute(sa.text("UPDATE runs SET device = 'cuda' WHERE id = :id"), {"id": on_gpu.id})
        connection.execute(sa.text("UPDATE attempts SET seconds = 90"))
    page = html(open_page("new_run", clone=str(on_gpu.id)))
    assert "at 2 EUR a GPU-hour" in page and "CPU slot" not in page


def test_a_clone(api: ApiServer, preset: dict[str, Any], running: Story) -> None:
    for name in ("clone", "from"):
        app = open_page("new_run", **{name: str(running.id)})
        assert widget(app, "number_input", "method.n_commit").value == 24
        assert widget(app, "text_input", "name").value == "demo"
        assert "clone of demo" in app.success[0].value
        (link,) = (link.proto for link in app.get("page_link") if link.proto.label.startswith("The run of this clone"))
        assert link.page == "run" and str(running.id) in link.query_string
        assert app.selectbox(key="recent-run").value == str(running.id)
    app = click(app, "use-small")
    assert address(app) == {"preset": "small"} and app.selectbox(key="recent-run").value is None
    recent = app.selectbox(key="recent-run")
    assert len(recent.options) == 1 and "Pilot-Commit, step 12, running" in recent.options[0]
    app = checked(recent.select_index(0).run())
    assert app.button(key="use-recent-run").label == "Chosen" and "clone of demo" in app.success[0].value
    assert address(app) == {"clone": str(running.id)}
    for gone, why in (
        (str(uuid.uuid4()), "The page Runs lists the runs"),
        ("zzz", "No run, prompt or set can have this"),
    ):
        warned = open_page("new_run", clone=gone).warning[0].value
        assert "cannot be cloned" in warned and why in warned and "see errors" not in warned and "GET /" not in warned


def test_what_is_chosen_is_loaded_and_own_edits_are_asked_for(
    api: ApiServer, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [
        {"name": name, "group": group, "title": name.title(), "description": "", "config": config | {"seed": seed}}
        for name, group, seed in (("small", "", 1), ("paper", "A paper", 2), ("other", "A paper", 3))
    ]
    monkeypatch.setattr("api.routes.config.presets", lambda: given)
    app = open_page("new_run")
    assert app.success[0].value == "Ready to start: **preset Small**" and not app.query_params
    app = checked(app.selectbox(key="paper-preset").select("paper").run())
    assert widget(app, "number_input", "seed").value == shown_yaml(app)["seed"] == 2
    assert app.success[0].value == "Ready to start: **preset Paper**" and address(app) == {"preset": "paper"}
    widget(app, "number_input", "seed").set_value(7)
    app = checked(app.selectbox(key="paper-preset").select("other").run())
    assert widget(app, "number_input", "seed").value == shown_yaml(app)["seed"] == 7, "even edited in the same moment"
    assert app.warning[0].value == "The draft is still **preset Paper**, with your edits."
    assert app.success[0].value == "Ready to start: **preset Paper**, with your edits"
    assert app.button(key="use-small").label == app.button(key="use-paper-preset").label == "Replace my edits"
    app = click(app, "use-paper-preset")
    assert widget(app, "number_input", "seed").value == 3 and not app.warning
    assert app.success[0].value == "Ready to start: **preset Other**" and address(app) == {"preset": "other"}
    app = open_page("new_run", preset="other")
    assert widget(app, "number_input", "seed").value == 3 and app.selectbox(key="paper-preset").value == "other"


def test_nothing_that_is_typed_is_lost_while_the_api_is_away(api: ApiServer, preset: dict[str, Any]) -> None:
    app = open_page("new_run")
    widget(app, "text_input", "name").set_value("typed before")
    app = checked(app.run())
    api.stop()
    widget(app, "number_input", "seed").set_value(3)
    app = checked(app.run())
    assert "The API does not answer" in html(app) and "Not checked" in app.warning[0].value
    assert app.button(key="start-run").disabled and not app.success
    st.cache_resource.clear()  # as a minute later
    app = write_yaml(app, yaml.safe_dump(shown_yaml(app) | {"budget": {"steps": 9}}) + "# mine\n")
    widget(app, "number_input", "update.batch_prompts").set_value(17)
    app = checked(app.run())
    for is_back in (False, True):
        if is_back:
            api.start()
            app = checked(app.run())
        assert widget(app, "text_input", "name").value == shown_yaml(app)["name"] == "typed before"
        assert widget(app, "number_input", "seed").value == shown_yaml(app)["seed"] == 3
        assert widget(app, "number_input", "budget.steps").value == shown_yaml(app)["budget"]["steps"] == 9
        assert shown_yaml(app)["update"]["batch_prompts"] == 17
    assert "Ready to start" in app.success[0].value and "does not answer" not in html(app)


def test_an_api_that_hangs_is_waited_for_once(
    api: ApiServer, preset: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.connection.PATIENCE_S", 3.0)
    monkeypatch.setattr("ui.connection.PROBE_S", 0.2)
    app = open_page("new_run")
    assert app.success
    api.stop()
    with socket.create_server(("127.0.0.1", api.port)):  # takes connections and says nothing
        for seed, most_s in ((3, 8.0), (4, 2.5), (5, 2.5)):
            widget(app, "number_input", "seed").set_value(seed)
            began = time.monotonic()
            app = checked(app.run())
            assert time.monotonic() - began < most_s
            assert "The API does not answer" in html(app) and "Not checked" in app.warning[0].value
            assert app.button(key="start-run").disabled and not app.success and not app.info
            assert shown_yaml(app)["seed"] == seed
    api.start()
    app = checked(app.run())
    assert "Ready to start" in app.success[0].value and "does not answer" not in html(app)
    assert widget(app, "number_input", "seed").value == shown_yaml(app)["seed"] == 5


def test_a_draft_outlives_a_look_at_another_page(api: ApiServer, preset: dict[str, Any]) -> None:
    def away_and_back(app: AppTest) -> AppTest:
        checked(app.switch_page("screens/data.py").run())
        app.switch_page("screens/new_run.py")
        return checked(app.run())

    app = open_page("new_run")
    widget(app, "number_input", "seed").set_value(3)
    app = away_and_back(checked(app.run()))
    assert widget(app, "number_input", "seed").value == shown_yaml(app)["seed"] == 3
    assert app.success[0].value.endswith("with your edits")
    theirs = yaml.safe_dump(preset | {"seed": 4}) + "# mine\n"
    app = away_and_back(write_yaml(app, theirs))
    assert widget(app, "number_input", "seed").value == 4 and app.text_area(key="new.yaml").value == theirs
    app = away_and_back(write_yaml(app, "seed: [5"))
    assert "not YAML" in app.error[0].value and app.text_area(key="new.yaml").value == "seed: [5"


def null_of(section: type[BaseModel], **chosen: type[BaseModel]) -> dict[str, Any]:
    """A section with null in every field that may be null; chosen: members of its unions."""
    fields: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        inner = chosen.get(name, field.annotation)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            fields[name] = null_of(inner) | ({"name": inner.model_fields["name"].default} if name in chosen else {})
        elif type(None) in get_args(inner):
            fields[name] = None
    return fields


def test_the_form_changes_nothing_by_itself(api: ApiServer) -> None:
    """Config to form to config, for each preset and with null wherever that is allowed, twice as by reruns."""
    least: dict[str, Any] = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}}
    lines = {"template": "{prompt}\n\nSo: ", "system": "a\nb"}
    judged = {"name": "b", "data": "x", "temperature": None, "reward": None}
    configs = [p["config"] for p in run_config.presets()]
    configs += [
        run_config.merge(null_of(run_config.RunConfig, method=method, engine=engine), least)
        for method, engine in zip(
            (run_config.GrpoMethod, run_config.DapoMethod, run_config.PilotCommitMethod),
            (run_config.TorchEngine, run_config.VerlEngine, run_config.VerlEngine),
            strict=True,
        )
    ]
    configs.append(run_config.merge(least, {"data": lines, "evaluation": {"benchmarks": [judged]}}))
    assert any(
        c["data"].get("eval_mapping", "") is None and c["update"]["off_policy_cap"] is None for c in configs[-4:-1]
    )
    app = open_page("new_run")
    for config in configs:
        whole = run_config.parse_config(config).model_dump(mode="json")
        app = checked(write_yaml(app, yaml.safe_dump(config)).run())
        assert run_config.parse_config(app.session_state["new.draft"].said).model_dump(mode="json") == whole
        app = checked(write_yaml(app, yaml.safe_dump(whole)).run())
        assert app.session_state["new.draft"].said == whole


def test_a_preset_by_deep_link(api: ApiServer) -> None:
    app = open_page("new_run", preset="demo-grpo")
    assert widget(app, "selectbox", "method.name").value == "grpo"
    assert "no preset" in open_page("new_run", preset="nope").warning[0].value


def test_a_run_needs_a_token_that_may_start_it(
    api: ApiServer, preset: dict[str, Any], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PILOT_TOKEN", make_token(database_url, "read", "looking"))
    app = open_page("new_run")
    assert "Ready to start" in app.success[0].value, "what it would do is told all the same"
    assert app.button(key="start-run").disabled and "'looking', has 'read'" in app.info[0].value


def test_no_presets(api: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.routes.config.presets", list)
    app = open_page("new_run")
    assert app.button(key="start-run").disabled
    assert len(problems(app)) == 3 and all("required" in p for p in problems(app))


def test_shipped_presets_are_offered(api: ApiServer) -> None:
    app = open_page("new_run")
    demos = [p for p in run_config.presets() if not p["group"]]
    assert labels(app).count("Use this") == max(0, len(demos) - 1), "a card each; the first is chosen"
    papers = app.selectbox(key="paper-preset")
    assert papers.value is None and len(papers.options) == len(run_config.presets()) - len(demos)
    app = checked(papers.select("qwen3-4b-polaris-grpo-64").run())
    assert any("8 GPUs" in caption.value for caption in app.caption)
    assert widget(app, "number_input", "method.n").value == 64
    assert widget(app, "selectbox", "engine.name").value == "verl"
    assert ["no such folder" in p for p in problems(app)].count(True) == 1, "the model is not on this machine"


def test_long_series_are_thinned() -> None:
    thinned = charts.thin(range(10_000))
    assert len(thinned) == charts.MAX_POINTS and (thinned[0], thinned[-1]) == (0, 9_999)


# Audit


def test_an_audit_of_a_run(
    api: ApiServer, running: Story, engine: sa.Engine, config: dict[str, Any], tmp_path: Path
) -> None:
    newer = Story(engine, config | {"name": "newer"}).start().train(1)
    app = open_page("audit", run=str(running.id))
    picker = app.selectbox[0]
    assert picker.value == str(running.id) and "newer, Pilot-Commit" in picker.options, "not simply the newest"
    page = html(click(app, "audit-go"))
    assert "The log cannot be audited." in page and "Run demo: No such file" in page, "it left no rollouts"
    rewards, prompts = np.array([1.0, 0.0]), PromptSet("p", (Prompt("id1", "1+1=", "2"),))
    rolled = Rollouts(rewards, rewards, np.array([3, 4]), np.full(2, 1), [{"text": "x", "logprob": -1.0}] * 2)
    group = Group(Request(0, Stage.COMMIT, 2), rolled)
    write_rollouts(tmp_path / "home" / "runs" / str(running.id), 1, [group], prompts)
    app = checked(app.button(key="audit-go").click().run(timeout=60))
    assert [button.proto.label for button in app.get("download_button")] == ["Report", "JSON"]
    app = checked(app.selectbox[0].set_value(str(newer.id)).run())
    assert app.query_params["run"] == str(newer.id) and not app.get("download_button"), "that was another run's"


def test_an_audit_without_runs_and_files(api: ApiServer) -> None:
    app = open_page("audit")
    assert app.button(key="audit-go").disabled and "./pilot audit PATH" in html(app)
    page = html(checked(app.segmented_control(key="audit-source").set_value("A run of ours").run()))
    assert "No run has trained yet" in page


# Rewards


def test_a_reward_is_tried_and_explained(api: ApiServer) -> None:
    app = open_page("rewards")
    assert app.selectbox(key="reward").value == "math" and "No verdicts yet" in html(app)
    score = next(b for b in app.button if b.label == "Score")
    shown = html(checked(score.click().run(timeout=60)))
    assert shown.count('<section class="pc-verdict"') == 4
    assert "right: reward 1" in shown and "wrong: reward 0" in shown and "the numbers are equal" in shown
    app.text_area(key="rewards.responses").set_value("\x1b[31m<script>alert(1)</script>\n---\n" + "9" * 20_000)
    score = next(b for b in app.button if b.label == "Score")
    shown = html(checked(score.click().run(timeout=60)))
    assert "<script>" not in shown and "\x1b" not in shown and len(shown) < 20_000
    app.text_area(key="rewards.parameters").set_value("timeout_s: 900")
    score = next(b for b in app.button if b.label == "Score")
    shown = html(checked(score.click().run()))
    assert (
        "<b>The reward is not accepted.</b>" in shown
        and "<code>reward.timeout_s</code>: " in shown
        and "see errors" not in shown
    )
    app.selectbox(key="reward").set_value("code")
    shown = html(checked(app.run()))
    assert "./pilot reward test code" in shown and not any(b.label == "Score" for b in app.button)
    assert "No verdicts yet" not in shown, "there is no example to score"
    shown = html(checked(app.selectbox(key="reward").set_value("overlong").run()))
    assert "part of the reward <b>sum</b>" in shown and not any(b.label == "Score" for b in app.button)
