"""One verl engine for all scenarios that can share it: starting Ray, FSDP2 and vLLM takes a minute and more.

The policy is the bundled one in the shape that vLLM runs on a CPU. Prompts are the first of the bundled ones, and two
on which the reward function of shaped_reward.py fails. That one is a user's, for verl's own reward manager; our reward
manager is in test_process.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.bundled.widen_policy import widen
from pipeline.config import load_config
from pipeline.engines.build import build_engine
from pipeline.events import EventLog, events_path, read_events
from pipeline.prompts import load_run_prompts
from pipeline.train import Trainer

BUNDLED = Path("pipeline/bundled")
N_TRAIN = 160


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """Folder with policy/, train.jsonl and eval.jsonl."""
    folder = tmp_path_factory.mktemp("inputs")
    widen(folder / "policy")
    for kind, n in (("train", N_TRAIN - 2), ("eval", 12)):
        lines = (BUNDLED / f"prompts.{kind}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (folder / f"{kind}.jsonl").write_text("".join(lines[:n]), encoding="utf-8")
    with (folder / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"prompt": "1+1=", "answer": "breaks"}) + "\n")
        file.write(json.dumps({"prompt": "2+2=", "answer": "no value"}) + "\n")
    return folder


@pytest.fixture(scope="session")
def configure(inputs):
    """configure(run_dir, **changes): write config.json, a section given as a mapping being merged into the default."""

    def write(run_dir, **changes):
        config = {
            "model": {"path": str(inputs / "policy")},
            "data": {"train": str(inputs / "train.jsonl"), "eval": str(inputs / "eval.jsonl")},
            "method": {"name": "grpo", "n": 8},
            "sampling": {"max_new_tokens": 8},
            "update": {"batch_prompts": 4, "mini_batches": 2, "lr": 3e-4},
            "evaluation": {"every": 100, "samples": 2},
            "budget": {"steps": 2},
            "checkpoint": {"every": 100, "keep": 2},
            "engine": {
                "name": "verl",
                "device": "cpu",
                "gpus_per_node": 1,
                "max_prompt_tokens": 64,
                "loggers": ["file"],
                "overrides": {
                    "reward.reward_manager.source": "register",
                    "reward.reward_manager.name": "naive",
                    "reward.custom_reward_function.path": str(Path(__file__).parent / "shaped_reward.py"),
                },
            },
        }
        for key, change in changes.items():
            merge = isinstance(change, dict) and "name" not in change
            config[key] = {**config.get(key, {}), **change} if merge else change
        run_dir.mkdir(exist_ok=True)
        (run_dir / "config.json").write_text(json.dumps(config))
        return load_config(run_dir / "config.json")

    return write


@pytest.fixture(scope="session")
def engine(configure, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("engine")
    config = configure(run_dir)
    engine = build_engine(config, *load_run_prompts(config), run_dir)
    engine.run_dir = run_dir
    engine.fresh = run_dir / "fresh"  # before any update
    engine.fresh.mkdir()
    engine.save(engine.fresh)
    yield engine
    engine.close()


@pytest.fixture
def train(engine, configure, tmp_path):
    """train(**changes): a whole run on the shared engine, from the fresh policy. Returns its folder and events."""

    def run(**changes):
        config = configure(tmp_path / "run", **changes)
        log = EventLog(events_path(tmp_path / "run", 1))
        engine.config = config
        engine.load(engine.fresh)
        finished = Trainer(tmp_path / "run", 1, log).train(engine)
        log.append(finished)
        log.close()
        events = [e for e, _ in read_events(events_path(tmp_path / "run", 1))]
        return SimpleNamespace(folder=tmp_path / "run", config=config, events=events, finished=finished)

    return run
