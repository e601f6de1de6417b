"""The parts below the pages: the form from the schema, findings, words and numbers."""

from __future__ import annotations

import datetime as dt
import re
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from api.client import ApiError
from api.problems import problem_of, refused
from api.schemas import Alert, EvaluationOut, FateCount, Ledger, Problem, PromptRow, RunDetail, StepOut
from db.evaluations import EvaluationNotFound
from db.prompt_sets import PromptSetNotFound
from db.runs import RunNotFound
from db.tokens import TokenNotFound
from db.views import PromptNotFound
from db.webhooks import WebhookNotFound
from pipeline.config import RunConfig
from ui import diff, form, health, text
from ui.connection import in_a_line, in_words

ROOT = Path(__file__).resolve().parents[2]
NOW = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def make_form(**chosen: str) -> list[form.Group]:
    return form.groups(RunConfig.model_json_schema(), lambda path, default: chosen.get(path.replace(".", "_"), default))


@pytest.mark.parametrize(
    ("error", "way_out"),
    [
        (RunNotFound(uuid.UUID(int=7)), "The page Runs lists the runs."),
        (PromptNotFound(uuid.UUID(int=7), "p0"), "The run's page leads to its prompts."),
        (PromptSetNotFound("sums", "1" * 16), "The page Data lists the sets."),
        (EvaluationNotFound(uuid.UUID(int=7)), "The run's page lists its evaluations."),
        (TokenNotFound(uuid.UUID(int=7)), "Settings lists the tokens."),
        (WebhookNotFound(uuid.UUID(int=7)), "Settings lists the webhooks."),
    ],
)
def test_a_program_is_told_an_address_and_a_person_a_page(error: Exception, way_out: str) -> None:
    asked = problem_of(error)
    assert "GET /api/v1/" in asked.detail
    told = Problem.model_validate_json(bytes(asked.response("/").body))
    assert in_words(told).detail == f"{asked.detail.partition(' GET')[0]} {way_out}"


def test_refused_fields_are_told_without_the_parts_of_a_request() -> None:
    told = Problem.model_validate_json(bytes(refused("body.url", "x", "give an address").response("/").body))
    assert told.errors[0].field == "body.url" and told.detail == "1 field is not accepted; see errors."
    assert in_a_line(ApiError(told)) == "This is not accepted. url: give an address"
    whole = Problem.model_validate_json(bytes(refused("body", None, "send one file").response("/").body))
    assert in_a_line(ApiError(whole)) == "This is not accepted. send one file"


def test_every_field_of_the_config_is_in_the_form_once() -> None:
    paths = [f.path for group in make_form() for f in group.fields]
    assert len(paths) == len(set(paths))
    assert [g.title for g in make_form()] == [
        "Run", "Data", "Model", "Method", "Update", "Budget", "Evaluation", "Engine",
    ]  # fmt: skip
    given = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}}
    whole = RunConfig.model_validate(given).model_dump(mode="json")

    def leaves(node: dict[str, Any], at: str = "") -> set[str]:
        return {p for k, v in node.items() for p in (leaves(v, f"{at}{k}.") if isinstance(v, dict) and v else {at + k})}

    assert set(paths) == leaves(whole)


def test_the_form_gives_back_the_config() -> None:
    given = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}}
    whole = RunConfig.model_validate(given).model_dump(mode="json")
    config = form.config_of(make_form(), lambda f: form.lookup(whole, f.path, f.default))
    assert config == whole
    RunConfig.model_validate(config)


def test_what_a_browser_cannot_count_is_left_as_it_is() -> None:
    fields = {f.path: f for g in make_form() for f in g.fields}
    assert form.fits(fields["seed"], 2**53 - 1) and not form.fits(fields["seed"], 2**53)
    assert not form.fits(fields["update.lr"], float("inf")) and not form.fits(fields["update.lr"], float("nan"))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("name: 2026-01-05", "at 'name' is a date in YAML; put it in quotes"),
        ("update: {lr: .nan}", "at 'update.lr' is nan"),
        ("update: {lr: -.inf}", "at 'update.lr' is -inf"),
        ("name: !!binary aGVsbG8=", "at 'name' is a bytes"),
        ("rewards: !!set {a}", "at 'rewards' is a set"),
        ("rewards: &a [*a]", "refers to itself"),
        ("a: &a {b: *a}", "refers to itself"),
        ('name: "\\ud800"', "at 'name' has half of a surrogate pair"),
        (f"a: {'[' * 5000}", "nested too deeply"),
        ("name: 2026-13-45", "month"),
    ],
)
def test_what_the_api_cannot_be_sent_is_told(words: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        form.read_yaml(words)
    (engine,) = (g for g in make_form(engine_name="verl") if g.title == "Engine")
    (overrides,) = (f for f in engine.fields if f.path == "engine.overrides")
    assert form.written(overrides, words) == words, "for the API to name"
    assert form.read_yaml("budget: {1: {2: x}}") == {"budget": {"1": {"2": "x"}}}


def test_an_empty_required_field_is_left_out() -> None:
    config = form.config_of(make_form(), lambda f: f.default)
    assert "path" not in config.get("model", {}) and "train" not in config["data"]


def test_a_union_shows_the_chosen_member() -> None:
    (method,) = (g for g in make_form(method_name="grpo", reward_name="numeric") if g.title == "Method")
    assert [f.path for f in method.fields][:2] == ["method.name", "method.n"]
    assert {"grpo", "dapo", "pilot_commit"} <= set(method.fields[0].options)


def test_the_selection_is_chosen_beside_the_method() -> None:
    (method,) = (g for g in make_form(selection_name="pods") if g.title == "Method")
    labels = {f.path: f.label for f in method.fields}
    assert labels["selection.name"] == "Selection" and labels["selection.keep"] == "Keep (rollouts)"
    assert labels["selection.rule"] == "Rollouts to keep"
    assert "selection.keep" not in {f.path for g in make_form(selection_name="all") for f in g.fields}


def test_the_engine_shows_the_chosen_members_fields() -> None:
    (engine,) = (g for g in make_form(engine_name="verl") if g.title == "Engine")
    fields = {f.path: f for f in engine.fields}
    assert fields["engine.name"].options == ("torch", "verl")
    assert (fields["engine.nodes"].label, fields["engine.gpus_per_node"].label) == ("Nodes", "GPUs per node")
    assert fields["engine.max_prompt_tokens"].label == "Longest prompt (tokens)"
    assert fields["engine.loggers"].kind == "choices" and "wandb" in fields["engine.loggers"].options
    assert fields["engine.overrides"].kind == "mapping"
    assert not any(path.startswith("engine.threads") for path in fields)
    assert form.fits(fields["engine.loggers"], ["file"]) and not form.fits(fields["engine.loggers"], ["paper"])
    given = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}, "engine": {"name": "verl"}}
    whole = RunConfig.model_validate(given).model_dump(mode="json")
    assert form.config_of(make_form(engine_name="verl"), lambda f: form.lookup(whole, f.path, f.default)) == whole


def test_what_a_widget_holds_becomes_what_the_config_says() -> None:
    (engine,) = (g for g in make_form(engine_name="verl") if g.title == "Engine")
    fields = {f.path: f for f in engine.fields}
    overrides, address = fields["engine.overrides"], fields["engine.ray_address"]
    assert form.written(overrides, "a.b: 1\nc: [x]") == {"a.b": 1, "c": ["x"]}
    assert form.written(overrides, "") == {} and form.written(overrides, {"a": 1}) == {"a": 1}
    assert form.written(overrides, "a: [") == "a: [" and form.written(overrides, "words") == "words"
    assert form.written(address, "") is None and form.written(address, "http://h:1") == "http://h:1"


def test_problems_are_told_in_words_and_names() -> None:
    whole = make_form()
    assert form.about(whole, "method", "p_lower=0.9 is above p_upper=0.75") == ["method.p_lower", "method.p_upper"]
    assert form.about(whole, "update.lr", "too small") == ["update.lr"]
    assert form.about(whole, "method", "no such method") == ["method"]
    assert form.name_in_words(whole, "method.p_lower") == "Too hard below (p_lower)"
    assert form.name_in_words(whole, "wrong") == "wrong"


def test_what_teaches_comes_first() -> None:
    rows = [
        PromptRow(id=str(i), text="", answer="", tags=[], bucket="committed", success_rate=rate, visits=2, rollouts=32,
                  tokens=1, step=9)
        for i, rate in enumerate((0.9, None, 0.45, 0.2))
    ]  # fmt: skip
    assert [row.id for row in health.teaching(rows)] == ["2", "3", "0", "1"]


def test_problems_belong_to_a_group() -> None:
    groups = {g.title: g for g in make_form()}
    assert groups["Method"].owns("method") and groups["Method"].owns("method.p_lower")
    assert groups["Data"].owns("reward.tolerance") and not groups["Data"].owns("config")


def test_fields_know_bounds_units_and_defaults() -> None:
    fields = {f.path: f for g in make_form() for f in g.fields}
    assert (fields["method.p_lower"].minimum, fields["method.p_lower"].maximum) == (0, 1)
    assert fields["budget.rollouts"].nullable and fields["budget.rollouts"].kind == "integer"
    assert fields["method.commit_order"].kind == "choice" and fields["method.binding"].kind == "flag"
    assert fields["method.max_age"].label == "Oldest pilot (steps)"
    assert fields["update.lr"].step == 1e-6 and fields["data.train"].required


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"), (0, "0"), (1234, "1,234"), (9999, "9,999"), (12_345, "12.3k"), (123_456, "123k"),
        (999_600, "1M"), (12_345_678, "12.3M"), (0.18342, "0.183"), (0.000012, "1.2e-05"), (5e9, "5B"), (-3, "−3"),
        (-0.0015, "−0.0015"), (1234.5, "1,234"),
    ],
)  # fmt: skip
def test_numbers(value: float | None, words: str) -> None:
    assert text.number(value) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [(None, ""), (7, "7"), (5.0, "5"), (5023.572776340865, "5,023.57"), (0.1 + 0.2, "0.3"), (-0.0015, "-0.0015"),
     (1e-5, "1e-05"), (123456789, "123,456,789"), (2**60, "1,152,921,504,606,846,976"), (1234567.8, "1,234,568")],
)  # fmt: skip
def test_exact_values_have_sensible_digits(value: float | None, words: str) -> None:
    assert text.exact(value) == words


def test_little_is_not_told_as_nothing() -> None:
    assert [text.hundredths(v) for v in (0.0, 0.0004, 0.01, 1234.5)] == ["–", "<0.01", "0.01", "1,234.50"]
    assert [text.share(n, 1000) for n in (0, 9, 10, 1000)] == ["0%", "<1%", "1%", "100%"]
    assert text.share(0, 0) == "–"


@pytest.mark.parametrize(
    ("hours", "unit", "told"),
    [(0, "seconds", 0), (0.0105, "seconds", 37.8), (0.5, "minutes", 30), (1, "hours", 1), (700, "hours", 700)],
)  # fmt: skip
def test_the_unit_of_hours(hours: float, unit: str, told: float) -> None:
    name, per_hour = text.unit_of_hours(hours)
    assert name == unit and hours * per_hour == pytest.approx(told)


def test_one_is_told_as_one() -> None:
    assert [text.counted(n, "prompt") for n in (0, 1, 2, 12_345)] == [
        "0 prompts",
        "1 prompt",
        "2 prompts",
        "12.3k prompts",
    ]


def test_a_column_has_its_points_below_each_other() -> None:
    assert [text.fixed(v, 4) for v in (None, 0.21, -0.0015)] == [
        "–", '<span title="0.21">0.2100</span>', '<span title="-0.0015">−0.0015</span>',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(3.21, "3.2 s"), (42, "42 s"), (150, "2 min 30 s"), (1500, "25 min"), (7300, "2 h 01 min"), (200_000, "2 d 7 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert text.duration(seconds) == words


def run(**given: Any) -> RunDetail:
    columns: dict[str, Any] = {
        "id": uuid.uuid4(), "name": "r", "state": "running", "reason": None, "method": "pilot_commit", "model": "m",
        "created_at": NOW, "started_at": NOW, "finished_at": None, "attempt": 1, "step": 10, "steps_budget": 100,
        "rollouts": 1000, "rollouts_budget": None, "tokens": 1, "first_accuracy": 0.4, "accuracy": 0.5,
        "best_accuracy": 0.5, "buckets": {}, "config": {}, "config_digest": "d", "todo": "",
        "priority": 0, "device": "cpu", "n_devices": 1, "cloned_from": None, "dataset_id": None,
        "stop_requested_at": None, "eval_rollouts": 0, "eval_tokens": 0, "attempts": [],
        "eval_seconds": 0.0, "gpu_hours": 0.0,
    }  # fmt: skip
    return RunDetail.model_validate(columns | given)


def steps(n: int = 10, **metrics: float) -> list[StepOut]:
    return [
        StepOut(
            step=i, attempt=1, epoch=0, rollouts=100 * i, tokens=1000 * i, metrics=dict(metrics),
            finished_at=NOW + dt.timedelta(seconds=4 * i),
        )
        for i in range(1, n + 1)
    ]  # fmt: skip


def evaluation(step: int, accuracy: float) -> EvaluationOut:
    return EvaluationOut(
        step=step, greedy_accuracy=accuracy, sampled_accuracy=accuracy, stderr=0.01, samples=4, n_prompts=64,
        rollouts_spent=100 * step, seconds=1, finished_at=NOW,
    )  # fmt: skip


def titles(found: list[health.Finding]) -> list[str]:
    return [f.title for f in found]


def test_findings() -> None:
    soon, late = NOW + dt.timedelta(seconds=42), NOW + dt.timedelta(minutes=20)
    assert titles(health.findings(run(), steps(), [], None, soon)) == ["Healthy"]
    assert titles(health.findings(run(state="failed", reason="x"), steps(), [], None, late)) == ["Failed"]
    alert = Alert(
        kind="stall", level="bad", title="No step for 9 min", evidence="One takes 4 s.", suggestion="Stop it."
    )
    (stalls,) = health.findings(run(), steps(), [], None, late, alerts=[alert])
    assert (stalls.level, stalls.title, stalls.detail) == ("bad", "No step for 9 min", "One takes 4 s. Stop it.")
    ledger = Ledger(
        sampled=FateCount(fate="sampled", rollouts=100, tokens=100),
        fates=[FateCount(fate="lost", rollouts=5, tokens=5)],
    )
    assert "Came back after a crash" in titles(health.findings(run(), steps(), [], ledger, soon))


def attempt(number: int, minutes: float, until: float | None) -> dict[str, Any]:
    """From so many minutes after the start to so many."""
    return {
        "attempt": number, "host": "h", "from_step": 0, "started_at": NOW + dt.timedelta(minutes=minutes),
        "finished_at": None if until is None else NOW + dt.timedelta(minutes=until), "outcome": None, "reason": None,
        "exit_code": None, "last_seq": 0, "seconds": 0.0,
    }  # fmt: skip


def test_every_state_before_the_first_step_has_words() -> None:
    soon, late = NOW + dt.timedelta(seconds=20), NOW + dt.timedelta(minutes=20)
    begun = {"attempts": [attempt(1, 0, None)]}
    for state, evaluations, words in (
        ("starting", [], "Starting"),
        ("running", [], "Evaluating before training"),
        ("running", [evaluation(0, 0.4)], "First step under way"),
    ):
        (calm,) = health.findings(run(state=state, **begun), [], evaluations, None, soon)
        assert (calm.level, calm.title) == ("info", words)
        (slow,) = health.findings(run(state=state, **begun), [], evaluations, None, late)
        assert slow.level == "warn" and slow.title.startswith(words) and "attempts/1/log" in slow.detail
    resumed = run(attempt=2, attempts=[attempt(1, 0, 1), attempt(2, 19, None)])
    assert "First step under way" in titles(health.findings(resumed, steps(), [evaluation(0, 0.4)], None, late))


def test_a_queued_run_tells_what_it_waits_for() -> None:
    late = NOW + dt.timedelta(minutes=20)
    waits = run(state="queued", attempt=0, reason="it needs a GPU", todo="start a worker that has one")
    since = late - dt.timedelta(seconds=5)
    for found in (
        health.findings(waits, [], [], None, late, ahead=2),
        health.findings(waits, [], [], None, late, since),
    ):
        (short,) = found
        assert (short.level, short.title) == ("info", "Queued")
    (alone,) = health.findings(waits, [], [], None, late)
    assert (alone.level, alone.title) == ("warn", "Waiting for a worker")
    assert alone.detail == short.detail == "it needs a GPU: start a worker that has one"


def test_steady_is_said_only_of_steady_steps() -> None:
    soon = NOW + dt.timedelta(seconds=42)
    (even,) = health.findings(run(), steps(), [], None, soon)
    assert "steady" in even.detail
    uneven = [s.model_copy(update={"finished_at": NOW + dt.timedelta(seconds=s.step + 9 * (s.step // 3))})
              for s in steps()]  # fmt: skip
    (swings,) = health.findings(run(), uneven, [], None, soon)
    assert swings.title == "Healthy" and "steady" not in swings.detail


def test_time_is_what_the_attempts_took() -> None:
    stopped = run(state="stopped", finished_at=NOW + dt.timedelta(minutes=66), attempt=2,
                  attempts=[attempt(1, 0, 2), attempt(2, 62, 66)])  # fmt: skip
    assert health.seconds_worked(stopped) == 6 * 60
    going = run(attempt=2, attempts=[attempt(1, 0, 2), attempt(2, 62, None)])
    assert health.seconds_worked(going, NOW + dt.timedelta(minutes=63)) == 3 * 60
    assert health.seconds_left(going, steps()) is None, "the pace of an earlier attempt tells nothing"


def test_time_left_follows_the_first_budget_to_run_out() -> None:
    assert health.seconds_left(run(), steps()) == 90 * 4
    assert health.seconds_left(run(rollouts_budget=1500), steps()) == 5 * 4
    assert health.seconds_left(run(), []) is None


def test_the_dashboard_imports_neither_torch_nor_the_database() -> None:
    code = (
        "import sys, ui.blocks, ui.charts, ui.connection, ui.diff, ui.draft, ui.feed, ui.form, ui.health, ui.palette, "
        "ui.text; "
        "print([m for m in ('torch', 'transformers', 'sqlalchemy', 'psycopg', 'celery', 'pandas') if m in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]", shown.stdout


def test_the_interval_of_a_success_rate() -> None:
    """Against Wilson's published example values, and at the ends, where a normal interval has no width."""
    low, high = health.wilson(0.5, 10)
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    low, high = health.wilson(1.0, 8)
    assert (round(low, 3), high) == (0.676, 1.0)
    assert health.wilson(0.0, 0) == (0.0, 1.0)


def test_words_that_differ() -> None:
    assert diff.words("a < b, so 12", "a < b, so 13") == "a &lt; b, so <ins>12</ins><del>13</del>"
    assert diff.words("same", "same") == "same"


def test_sizes() -> None:
    assert [text.size(n) for n in (0, 999, 1000, 1_300_000, 9.995e5, 2.5e9)] == [
        "0 B", "999 B", "1 kB", "1.3 MB", "1 MB", "2.5 GB",
    ]  # fmt: skip


def test_units_and_the_papers_values_come_from_the_schema() -> None:
    fields = {f.path: f for group in make_form() for f in group.fields}
    assert (fields["method.n_pilot"].unit, fields["method.n_pilot"].paper) == ("rollouts", 32)
    assert fields["update.lr"].paper == 1e-6 and fields["budget.rollouts"].paper is None
    assert fields["budget.steps"].label == "Steps" and fields["method.n_commit"].label == "Commit rollouts"
    assert fields["sampling.max_new_tokens"].label == "Longest response (tokens)"


def test_the_line_of_a_field() -> None:
    words = "name: x\nbudget:\n  steps: 3\nrewards:\n  - {name: a}\n  - name: b\n"
    assert [form.line_of(words, path) for path in ("name", "budget.steps", "rewards.1.name")] == [1, 3, 6]
    assert form.line_of(words, "budget.tokens") == 2, "the section that lacks it"
    assert form.line_of(words, "model.path") is None and form.line_of("a: [", "a") is None
    assert form.place_of(words, "budget.steps") == ', line 3, "steps: 3"' and form.place_of(words, "model.path") == ""
