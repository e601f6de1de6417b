"""What `pilot run`, `watch` and `db` say when something is wrong: sentences, exit statuses, no tracebacks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from api.client import Client
from api.settings import Settings
from cli import place
from cli.failure import Failure
from cli.run import (
    archive,
    clone,
    delete,
    listed,
    preset,
    presets_listed,
    print_log,
    prioritise,
    read_config,
    set_value,
    shown,
    start,
    tag,
)
from db.models import Attempt, Run
from pipeline import rundir
from tests.api.served import ApiServer
from tests.ui import story

CHECKOUT = Path(__file__).resolve().parents[2]
NOWHERE = "00000000-0000-0000-0000-000000000000"


def pilot(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cli", *arguments],
        cwd=CHECKOUT,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_api_away() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        done = pilot("run", "list", PILOT_API_URL=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"The API at {url} cannot be reached" in done.stderr and "`./pilot up`" in done.stderr
    assert "Traceback" not in done.stderr and "PILOT_API_URL" in done.stderr


def test_where_the_api_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOT_HOME", str(tmp_path))
    monkeypatch.delenv("PILOT_API_URL", raising=False)
    assert place.api_url() == "http://127.0.0.1:8700"
    place.record_addresses(tmp_path, api="http://127.0.0.1:8702", ui="http://127.0.0.1:8703")
    assert place.api_url() == "http://127.0.0.1:8702"
    monkeypatch.setenv("PILOT_API_URL", "http://10.0.0.1:1")
    assert place.api_url() == "http://10.0.0.1:1"
    monkeypatch.delenv("PILOT_API_URL")
    for damaged in ("", "[]", "{}", '{"api": 1}'):
        (tmp_path / "addresses.json").write_text(damaged)
        assert place.api_url() == "http://127.0.0.1:8700"
    place.forget_addresses(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "environ", "code", "words"),
    [
        (("run", "start", "missing.yaml"), {}, 2, "missing.yaml cannot be read: No such file"),
        (("run", "show", "7"), {}, 2, "'7' is not a run's id, nor its first 6 or more characters. `./pilot run list`"),
        (("watch", NOWHERE), {"PILOT_API_URL": "ftp://x"}, 1, "set PILOT_API_URL to its address"),
        (("db", "upgrade"), {"DATABASE_URL": ""}, 1, "DATABASE_URL is not set"),
        (("db", "check"), {"DATABASE_URL": "mysql://x/y"}, 1, "this platform needs Postgres"),
        (("token", "create", "x", "--direct"), {"DATABASE_URL": ""}, 1, "DATABASE_URL is not set"),
        (("token", "create", "x", "--scope", "root"), {}, 2, "--scope 'root' is not one of read, run, admin"),
        (("token", "create", "x", "--if-none"), {}, 2, "--if-none goes with --direct"),
        (("run", "list"), {"PILOT_TOKEN": "two words"}, 1, "characters that no token has"),
        (("data", "prepare", "mnist", "--out", "x"), {}, 2, "unknown data set 'mnist'; known: deepmath"),
        (("data", "prepare", "math", "--out", "x", "--from", "a.jsonl"), {}, 2, "--from math-train=FILE"),
        (("data", "prepare", "aime24", "--out", "x", "--from", "a.jsonl"), {}, 2, "a.jsonl cannot be read"),
        (("run", "start", "demo", "--require", "accuracy>=1"), {}, 2, "go with --wait"),
        (("run", "start", "demo", "--wait", "--require", "acc>=1"), {}, 2, "there is no metric 'acc'"),
        (("up", "--exit"), {}, 2, "--exit goes with --demo"),
        (("up", "--port-api", "0"), {}, 2, "--port-api"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], environ: dict[str, str], code: int, words: str) -> None:
    done = pilot(*arguments, **environ)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr


def test_whose_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is given, else the home's own for the home's own platform, and for nobody else."""
    monkeypatch.setenv("PILOT_HOME", str(tmp_path))
    for name in ("PILOT_API_URL", "PILOT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("ours\n")
    assert place.token() is None, "no platform runs from here: another program may listen at the default port"
    place.record_addresses(tmp_path, api="http://127.0.0.1:8702", ui="http://127.0.0.1:8703")
    assert place.token() == "ours"
    monkeypatch.setenv("PILOT_API_URL", "http://10.0.0.1:8702")
    assert place.token() is None
    monkeypatch.setenv("PILOT_TOKEN", "given")
    assert place.token() == "given"


def test_the_first_token(database_url: str) -> None:
    """Made in the database, once; `--if-none` at each start of a deployment makes no second one."""
    command = ("token", "create", "first", "--scope", "admin", "--days", "0", "--direct")
    first = pilot(*command, "--if-none")
    assert first.returncode == 0 and first.stdout.startswith("pilot_")
    again = pilot(*command, "--if-none")
    assert again.stdout == "There is an admin token already; nothing was made.\n"
    assert pilot(*command).stdout.startswith("pilot_"), "whoever has the database may make one in any case"


def test_set_value() -> None:
    data: dict[str, Any] = {"method": {"name": "pilot_commit"}, "name": "a"}
    for change in (
        "method.n_pilot=4",
        "update.lr=1e-4",
        "name=b c",
        "update.off_policy_cap=null",
        "method.binding=false",
    ):
        set_value(data, change)
    assert data == {
        "method": {"name": "pilot_commit", "n_pilot": 4, "binding": False},
        "name": "b c",
        "update": {"lr": 1e-4, "off_policy_cap": None},
    }


@pytest.mark.parametrize("change", ["lr", "=1", "update..lr=1", "name.first=1", "name=[1"])
def test_set_value_refused(change: str) -> None:
    with pytest.raises(Failure, match="--set"):
        set_value({"name": "a"}, change)


@pytest.mark.parametrize(
    ("text", "words"), [("a: [1", "is not YAML or JSON"), ("- 1", "no mapping"), ("", "no mapping")]
)
def test_config_file_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(Failure, match=words):
        read_config(path)


def test_data_prepare(tmp_path: Path) -> None:
    excerpt = CHECKOUT / "tests/pipeline/published/amc23.jsonl"
    done = pilot(
        "data", "prepare", "amc23", "--out", str(tmp_path / "amc"), "--from", str(excerpt), "--instruction", "!"
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/amc/eval.jsonl: 2 prompts of 2 rows\n"
    assert (tmp_path / "amc/eval.jsonl").read_text().count('!", "answer"') == 2


def test_presets_by_name(database_url: str, broker_url: str, tmp_path: Path) -> None:
    settings = Settings(database_url=database_url, redis_url=broker_url)
    with ApiServer(settings) as server, Client(server.url, server.token) as client:
        listed = presets_listed(client.presets())
        assert "\nPilot-Commit paper:\n" in listed and "qwen3-8b-polaris-grpo-64 " in listed
        assert start(client, "demo", ["name=mine", "budget.steps=3"]).name == "mine"
        assert preset(client, "qwen3-8b-polaris-grpo-64")["method"] == {"name": "grpo", "n": 64}
        with pytest.raises(Failure, match="Did you mean .*qwen3-8b-polaris-grpo-64.*run presets"):
            start(client, "qwen3-8b-polaris-grpo", [])
        with pytest.raises(Failure, match="holds several presets"):
            start(client, str(CHECKOUT / "pipeline/presets/paper-pods.yaml"), [])
        with pytest.raises(Failure, match="cannot be read"):
            start(client, str(tmp_path / "absent"), [])


def test_clone_priority_log_delete(
    database_url: str, broker_url: str, engine: sa.Engine, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=home)
    with ApiServer(settings) as server, Client(server.url, server.token) as client:
        source = start(client, "demo", ["budget.steps=3"])
        copy = clone(client, str(source.id), ["name=again", "update.lr=1e-4"], 5)
        assert (copy.name, copy.cloned_from, copy.priority) == ("again", source.id, 5)
        assert copy.config["budget"]["steps"] == 3 and copy.config["update"]["lr"] == 1e-4
        assert "is queued with priority -2: " in prioritise(client, str(copy.id), -2)
        with pytest.raises(Failure, match="stop it first"):
            delete(client, str(copy.id))
        assert tag(client, str(copy.id), ["b", "a", "b"], []) == "Run 'again' has the tags b, a."
        assert tag(client, str(copy.id), ["c"], ["b"]) == "Run 'again' has the tags a, c."
        assert tag(client, str(copy.id), [], []) == "Run 'again' has the tags a, c."
        with pytest.raises(Failure, match="has no tag 'b'; it has a, c"):
            tag(client, str(copy.id), [], ["b"])
        with pytest.raises(Failure, match="stop it first"):
            archive(client, str(copy.id), True)
        client.stop_run(copy.id)
        assert "is archived" in archive(client, str(copy.id), True)
        assert "again" not in listed(client.list_runs(), False)
        assert "a, c" in listed(client.list_runs(archived="only"), True)
        assert archive(client, str(copy.id)[:13], False) == "Run 'again' is in lists again."
        assert listed(client.list_runs(limit=1), False).endswith("\n1 more; --limit shows up to 200 of them.")
        assert "There is no such run" in listed(client.list_runs(tag="none"), True)
        assert delete(client, str(copy.id)) == "Run 'again' is deleted."
        with pytest.raises(Failure, match="no such run"):
            delete(client, str(copy.id))

        with engine.begin() as connection:
            connection.execute(sa.update(Run).where(Run.id == source.id).values(attempt=2, state="succeeded"))
        print_log(client, str(source.id), follow=False)
        assert capsys.readouterr().err.startswith("Its trainer has printed nothing. `./pilot run show ")
        for attempt, said in ((1, "first\n"), (2, "second\n")):
            folder = rundir.log_folder(home / "runs" / str(source.id), attempt)
            folder.mkdir(parents=True)
            rundir.segment_path(folder, 0).write_text(said)
        for follow in (False, True):
            print_log(client, str(source.id), follow=follow)
            assert capsys.readouterr() == ("second\n", "")

        with engine.begin() as connection:
            for attempt, step in ((1, 0), (2, None)):  # the second has loaded nothing yet
                row = {"run_id": source.id, "attempt": attempt, "fence": attempt, "host": "node-1", "from_step": step}
                connection.execute(sa.insert(Attempt).values(row))
        told = shown(client.get_run(source.id)).splitlines()
        assert told[-2:] == ["attempt 1  running (from step 0, on node-1)", "attempt 2  running (on node-1)"]


def test_show_tells_the_newest_of_each_benchmark(
    database_url: str, broker_url: str, engine: sa.Engine, tmp_path: Path
) -> None:
    alone = story.Story(engine, story.config(tmp_path)).start()
    several = story.Story(engine, story.config(tmp_path, evaluation=story.several(tmp_path))).start().train(20, 5)
    with engine.begin() as connection:  # as if somebody had asked for amc23 once more at an older step only
        gone = (
            "UPDATE evaluations SET benchmarks = benchmarks - 2, mean_accuracy = NULL WHERE run_id = :id AND step = 20"
        )
        connection.execute(sa.text(gone), {"id": several.id})
    settings = Settings(database_url=database_url, redis_url=broker_url)
    with ApiServer(settings) as server, Client(server.url, server.token) as client:
        found = client.metrics(several.id).evaluations
        address = {"PILOT_API_URL": server.url, "PILOT_TOKEN": server.token}
        before_the_first_step = pilot("run", "show", str(alone.id), **address)
        told = pilot("run", "show", str(several.id), **address)
    (_, row), newest = before_the_first_step.stdout.split("\n\n")[1].splitlines(), alone.now()
    assert row.split()[:7] == ["held-out", "0", "64", "4", "1", "1", f"{newest.accuracy:.1%}"]
    rows = [line.split() for line in told.stdout.split("\n\n")[1].splitlines()]
    assert [row[:2] for row in rows] == [
        ["BENCHMARK", "STEP"], ["held-out", "20"], ["aime24", "20"], ["amc23", "15"], ["mean", "15"],
    ]  # fmt: skip
    amc, mean = found[-2].benchmarks[2], found[-2]
    pass_at = f"{amc.pass_at['8']:.1%}"
    assert rows[3][2:] == ["64", "8", "1", "1", f"{amc.accuracy:.1%}", "2.0%", pass_at, f"{amc.majority:.1%}", "-", "0"]
    assert rows[4][2:] == [f"{mean.mean_accuracy:.1%}", "1.4%"]


def test_the_command_works_from_any_folder(tmp_path: Path) -> None:
    """Also from one with a package of the name of ours."""
    (tmp_path / "cli").mkdir()
    (tmp_path / "cli" / "__init__.py").touch()
    done = subprocess.run([CHECKOUT / "pilot", "reward", "list"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("exact"), done.stderr
