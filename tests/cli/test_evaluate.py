"""`pilot eval ID`: a checkpoint measured by the platform, from the question to the responses on disk."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from api import examples
from api.client import Client
from api.schemas import CheckpointEvaluation
from api.settings import Settings
from cli.evaluate import ask, follow, keep, reward_of, shown
from cli.failure import Failure
from tests.api.served import ApiServer
from tests.ui import story
from tests.worker import logs


def test_a_checkpoint_is_evaluated_by_the_platform(
    engine: sa.Engine, database_url: str, broker_url: str, home: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run = story.Story(engine, story.config(tmp_path)).start().train(5)
    folder = home / "runs" / str(run.id)
    (folder / "checkpoints" / "step_000005").mkdir(parents=True)
    settings = Settings(database_url=database_url, redis_url=broker_url, pilot_home=home)
    with ApiServer(settings) as server, Client(server.url, server.token) as client:
        nothing = dict.fromkeys(("protocol", "temperature", "top_p", "greedy", "reward"))
        with pytest.raises(Failure, match="the run has come to step 5; there are checkpoints of step 5") as refused:
            ask(client, str(run.id), {"step": "9", "benchmarks": None, "samples": 8, **nothing})
        assert refused.value.code == 2
        asked = ask(client, run.id.hex[:8], {"step": "newest", "benchmarks": ["held-out"], "samples": 8, **nothing})
        assert asked.step == 5 and "queued: held-out, held-out.k8" in shown(asked)
        found = {"held-out": 0.25, "held-out.k8": 0.625}
        worker = threading.Timer(0.7, run.evaluated, (asked.id, 5, found))
        worker.start()
        done = follow(client, asked)
        worker.join()
        said = capsys.readouterr().err.splitlines()
        assert (said[0], said[-1]) == ("queued: no worker is running that could start it", "succeeded: all steps done")
        assert [line.split()[:6] for line in shown(done).splitlines()[2:]] == [
            ["held-out", "2", "2", "1", "0.7", "25.0%"], ["held-out.k8", "2", "2", "1", "0.7", "62.5%"],
        ]  # fmt: skip
        kept = folder / "evaluations" / "step_000005"
        kept.mkdir(parents=True)
        for name in found:
            (kept / f"{name}.parquet").write_bytes(name.encode())
        keep(client, done, tmp_path / "out")
        assert (tmp_path / "out" / "held-out.k8.parquet").read_bytes() == b"held-out.k8"
        with pytest.raises(Failure, match="is there already; give --out a new folder"):
            keep(client, done, tmp_path / "out")


def test_the_mean_of_several_benchmarks_is_told() -> None:
    """Of those that are not the held-out set, however often that was measured; of one there is none to tell."""

    def told(**accuracies: float) -> list[list[str]]:
        results = [logs.benchmark(name, accuracy, 40) for name, accuracy in accuracies.items()]
        found = examples._EVALUATION | {"results": [r.model_dump() for r in results]}
        return [line.split() for line in shown(CheckpointEvaluation.model_validate(found)).splitlines()[2:]]

    held_out = {"held-out": 0.25, "held-out.k8": 0.25}
    rows = told(**held_out, **{"aime24.k8": 0.5, "amc23.k8": 0.75})
    assert [row[0] for row in rows] == ["held-out", "held-out.k8", "aime24.k8", "amc23.k8", "mean"]
    assert rows[-1] == ["mean", "of", "2", "62.5%", "0.7%"], "0.01 / sqrt(2)"
    assert [row[0] for row in told(**held_out, aime24=0.5)] == ["held-out", "held-out.k8", "aime24"]


def test_a_reward_is_a_name_or_json() -> None:
    assert reward_of("numeric") == {"name": "numeric"} and reward_of(' {"name": "math"}') == {"name": "math"}
    with pytest.raises(Failure, match="is not JSON"):
        reward_of("{name: math}")
