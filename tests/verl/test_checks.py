"""What cannot run says so in its first seconds, by the field of the config, before Ray is started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from pipeline.config import ConfigProblems
from pipeline.engines.build import build_engine
from pipeline.engines.verl.checks import count_parameters
from pipeline.events import AttemptFinished, events_path, read_events
from pipeline.prompts import load_run_prompts

pytestmark = pytest.mark.timeout(300)


def spoil_config(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def cut(folder):
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "changes", "field", "message"),
    [
        (lambda f: (f / "chat_template.jinja").unlink(), {}, "model.path", "its tokenizer has no chat template"),
        (lambda f: (f / "tokenizer.json").write_text("{"), {}, "model.path", "its tokenizer cannot be loaded"),
        (lambda f: spoil_config(f, architectures=["Qwen9ForCausalLM"]), {}, "model.path", "vLLM cannot load it: "),
        (lambda f: spoil_config(f, model_type="qwen9"), {}, "model.path", "its config.json is not usable"),
        (cut, {}, "model.path", "model.safetensors is not a whole safetensors file"),
        (lambda f: (f / "model.safetensors").unlink(), {}, "model.path", "lacks *.safetensors"),
        (None, {"engine": {"max_prompt_tokens": 8}}, "engine.max_prompt_tokens", "prompts are longer"),
        (None, {"sampling": {"max_new_tokens": 500}}, "model.path", "its context is 256 tokens, less than engine."),
        (None, {"engine": {"device": "cuda", "gpus_per_node": 64}}, "engine.gpus_per_node", "this machine has "),
        (None, {"engine": {"loggers": ["mlflow"]}}, "engine.loggers", "mlflow is not installed"),
        (None, {"model": {"path": "pipeline/bundled/policy"}}, "model.path", "cannot run heads of 24 dimensions"),
        (None, {"engine": {"overrides": {"trainer.nodes": 2}}}, "engine.overrides.trainer.nodes", "unknown to verl"),
    ],
)
def test_refused_before_anything_starts(inputs, configure, tmp_path, spoil, changes, field, message):
    shutil.copytree(inputs / "policy", tmp_path / "policy")
    if spoil is not None:
        spoil(tmp_path / "policy")
    config = configure(tmp_path / "run", **{"model": {"path": str(tmp_path / "policy")}, **changes})
    with pytest.raises(ConfigProblems) as found:
        build_engine(config, *load_run_prompts(config), tmp_path / "run")
    (problem,) = found.value.problems
    assert problem.field == field and message in problem.message


def test_the_run_tells_why(inputs, configure, tmp_path):
    """As a process, as the supervisor starts it: it fails, and its last event says what to change."""
    shutil.copytree(inputs / "policy", tmp_path / "policy")
    (tmp_path / "policy" / "chat_template.jinja").unlink()
    configure(tmp_path / "run", model={"path": str(tmp_path / "policy")})
    command = [sys.executable, "-m", "pipeline", "train", str(tmp_path / "run"), "--attempt", "1"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert process.returncode == 1, process.stdout + process.stderr
    (event,) = [e for e, _ in read_events(events_path(tmp_path / "run", 1))]
    assert isinstance(event, AttemptFinished) and event.outcome == "failed"
    assert event.reason.startswith("model.path: its tokenizer has no chat template; add chat_template.jinja")
    assert "raylet" not in process.stdout + process.stderr


def test_parameters_are_counted_without_loading_them(inputs):
    assert count_parameters(inputs / "policy") == 477_824
