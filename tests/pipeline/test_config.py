from __future__ import annotations

import json
from typing import get_args, get_origin

import pytest
import yaml

from pipeline.config import ConfigProblems, RunConfig, load_config, merge, parse_config, presets
from pipeline.section import Section

GOOD = {"model": {"path": "m"}, "data": {"train": "a.jsonl", "eval": "b.jsonl"}}


def problems(**changes):
    with pytest.raises(ConfigProblems) as caught:
        parse_config({**GOOD, **changes})
    return {p.field: p for p in caught.value.problems}


def test_defaults_are_the_papers():
    config = parse_config(GOOD)
    method = config.method
    assert method.name == "pilot_commit"
    assert (method.p_lower, method.p_upper, method.p_solve, method.max_age) == (0.125, 0.75, 1.0, 4)
    assert (method.n_pilot, method.n_commit, config.update.batch_prompts) == (32, 96, 128)
    assert (config.update.clip_low, config.update.clip_high, config.update.lr) == (0.2, 0.28, 1e-6)


def test_every_fault_is_named_with_field_and_value():
    found = problems(
        seeed=1,
        method={"name": "pilot_commit", "p_lower": 1.5, "nn": 3},
        budget={"steps": 0},
        update={"lr": float("nan")},
    )
    assert found["seeed"].message == "unknown field 'seeed'; did you mean 'seed'?" and found["seeed"].value == 1
    assert found["method.nn"].value == 3 and "known here: name, n_pilot" in found["method.nn"].message
    assert found["method.p_lower"].value == 1.5 and "less than or equal to 1" in found["method.p_lower"].message
    assert found["budget.steps"].value == 0
    assert "finite" in found["update.lr"].message


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"p_lower": 0.9}, "p_lower=0.9 is above p_upper=0.75"),
        ({"p_solve": 0.5}, "p_solve=0.5 is not above p_upper=0.75"),
        ({"p_upper": 1.0}, "p_solve=1.0 is not above p_upper=1.0"),
    ],
)
def test_impossible_thresholds(method, message):
    found = problems(method={"name": "pilot_commit", **method})
    assert message in found["method"].message


def unions(section, path=(), seen=()):
    """(path, what, names) of every choice of kinds in a config: "0" is a place in a list, "code" a key of a mapping."""
    for name, field in section.model_fields.items():
        here, what, at = field.annotation, name, (*path, name)
        if get_origin(here) in (tuple, dict):
            here, what = get_args(here)[get_origin(here) is dict], name.removesuffix("s")
            at = (*at, "0" if get_origin(field.annotation) is tuple else "code")
        pending, kinds = [here], []
        while pending:
            option = pending.pop()
            pending += get_args(option)
            kinds += [option] if isinstance(option, type) and issubclass(option, Section) else []
        if len(kinds) > 1:
            yield at, what, {kind.model_fields["name"].default for kind in kinds}
        for kind in set(kinds) - set(seen):
            within = (*at, kind.model_fields["name"].default) if len(kinds) > 1 else at
            yield from unions(kind, within, (*seen, kind))


CHOICES = list(unions(RunConfig))


def test_every_choice_of_kinds_is_found():
    assert {".".join(path) for path, _, _ in CHOICES} >= {
        "method", "selection", "reward", "rewards.code", "engine", "evaluation.benchmarks.0.reward",
        "reward.sum.parts.0.reward", "rewards.code.sum.parts.0.reward",
        "evaluation.benchmarks.0.reward.sum.parts.0.reward",
    }  # fmt: skip


@pytest.mark.parametrize(("path", "what", "names"), CHOICES, ids=[".".join(path) for path, _, _ in CHOICES])
@pytest.mark.parametrize("given", [{"name": "nosuch"}, {}])
def test_an_unknown_kind_is_told_which_there_are(path, what, names, given):
    value, written = given, []
    for part, before in zip(reversed(path), (*reversed(path[:-1]), ""), strict=True):
        if part == "0":
            value = [value]
        elif part == "sum" and before in ("reward", "code", "0"):
            value = {"name": "sum", **value}
            continue
        else:
            value = {part: value}
        written.insert(0, part)
    found = problems(**value)[".".join([*written, "name"])].message
    assert found.startswith(f"unknown {what} 'nosuch'; known: " if given else "this field is required; one of ")
    assert set(found.rpartition(": " if given else "one of ")[2].split(", ")) == names


def test_a_fault_in_a_mapping_is_named_by_its_key():
    """Also where the key is the name of a reward, as that of its kind."""
    found = problems(rewards={"code": {"name": "code", "timeout": 3}, "parts": {"name": "math", "timeout_s": -1}})
    assert found["rewards.code.timeout"].message.startswith("unknown field 'timeout'; did you mean 'timeout_s'")
    assert "greater than 0" in found["rewards.parts.timeout_s"].message


def test_missing_fields_and_wrong_shapes():
    with pytest.raises(ConfigProblems, match="model: this field is required"):
        parse_config({"data": GOOD["data"]})
    with pytest.raises(ConfigProblems, match="a config is a mapping"):
        parse_config([1])
    unknown = problems(method={"name": "ppo"})["method.name"]
    assert unknown.value == "ppo" and unknown.message == "unknown method 'ppo'; known: grpo, dapo, pilot_commit"
    assert "one of exact, numeric" in problems(reward={})["reward.name"].message
    assert problems(update=3)["update"].message == "must be a mapping of fields"
    assert problems(name="x" * 5000)["name"].value == '"' + "x" * 199 + "..."
    assert problems(seed={"a": [1]})["seed"].value == {"a": [1]}
    assert "model.path" in problems(model={"path": "a\0b"})
    assert "update" in problems(update={"mini_batches": 4, "batch_prompts": 2})


def test_files(tmp_path):
    path = tmp_path / "run.yaml"
    with pytest.raises(ConfigProblems, match="cannot be read"):
        load_config(path)
    path.write_text("a: [")
    with pytest.raises(ConfigProblems, match="not YAML"):
        load_config(path)
    path.write_text(yaml.safe_dump(GOOD))
    as_json = tmp_path / "run.json"
    as_json.write_text(json.dumps(parse_config(GOOD).model_dump(mode="json")))
    assert load_config(path) == load_config(as_json)


def test_digest_changes_with_what_decides_the_run():
    config = parse_config(GOOD)
    assert config.digest() == parse_config(GOOD).digest()
    assert config.digest() != parse_config({**GOOD, "seed": 1}).digest()


def test_every_preset_is_a_valid_config():
    found = presets()
    names = [p["name"] for p in found]
    assert {"demo", "demo-grpo"} <= set(names) and len(names) == len(set(names))
    for preset in found:
        assert preset["title"] and preset["description"]
        parse_config(preset["config"])


def test_a_family_of_presets_is_its_settings_with_its_methods():
    found = {p["name"]: p for p in presets()}
    preset = found["qwen2.5-math-1.5b-deepmath-pilot-commit-32-96"]
    assert preset["title"] == "Qwen2.5-Math-1.5B on DeepMath-103K, Pilot-Commit 32 + 96"
    assert "8 GPUs" in preset["description"] and preset["group"] == "Pilot-Commit paper"
    config = parse_config(preset["config"])
    assert (config.method.n_pilot, config.method.n_commit, config.update.batch_prompts) == (32, 96, 128)
    assert config.update.batch_prompts // config.update.mini_batches == 32 and config.sampling.max_new_tokens == 8192
    assert (config.update.lr, config.update.clip_low, config.update.clip_high) == (1e-6, 0.2, 0.28)
    assert config.engine.name == "verl" and config.evaluation.every == 5 and config.name == preset["name"]
    assert [(b.samples, b.top_p) for b in config.benchmarks[1:]] == [(n, 0.7) for n in (32, 32, 32, 1, 1, 1, 1)]
    assert found["qwen3-14b-polaris-dapo-16"]["config"]["method"] == {"name": "dapo", "n": 16, "keep_surplus": False}
    pods = parse_config(found["qwen2.5-3b-math-pods-32-8"]["config"])
    assert (pods.method.n, pods.selection.keep) == (32, 8)


def test_merged_section_by_section():
    base = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merge(base, {"a": {"c": {"f": 4}}, "e": 5}) == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": 5}
    assert base == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


def test_a_selection_must_leave_something_out():
    pods = {"name": "pods", "keep": 16}
    assert parse_config({**GOOD, "method": {"name": "grpo", "n": 64}, "selection": pods}).selection.keep == 16
    found = problems(method={"name": "pilot_commit", "n_pilot": 8, "n_commit": 8}, selection=pods)
    assert "selection.keep=16 leaves nothing out of pilot_commit's groups of 16" in found["config"].message


VERL = {"name": "verl"}


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"engine": VERL | {"tensor_parallel": 3}}, "engine", "tensor_parallel=3 does not divide the 8 GPUs"),
        ({"engine": VERL | {"nodes": 2}}, "engine", "nodes=2 needs ray_address"),
        ({"engine": VERL | {"device": "cpu"}}, "engine", "device=cpu runs one training process"),
        ({"engine": VERL | {"loggers": ["file", "file"]}}, "engine.loggers", "name each logger once"),
        ({"engine": VERL | {"ray_address": "head:8265"}}, "engine.ray_address", "accepted: http://HOST:PORT"),
        ({"engine": VERL | {"overrides": 3}}, "engine.overrides", "must be a mapping"),
        ({"engine": VERL | {"overrides": {"a": float("nan")}}}, "engine.overrides.a.float", "finite"),
        ({"engine": VERL | {"threads": 2}}, "engine.threads", "known here: name, device, nodes"),
        ({"engine": {"name": "jax"}}, "engine.name", "known: torch, verl"),
        ({"engine": VERL | {"token_budget": 2047}}, "config", "longest sequence, engine.max_prompt_tokens=1024"),
        ({"engine": VERL, "update": {"mini_batches": 3}}, "config", "verl trains mini-batches of equal size"),
        ({"engine": VERL, "update": {"warmup_updates": 2}}, "config", "changes the learning rate once a step"),
    ],
)
def test_what_the_verl_engine_refuses(changes, field, message):
    found = problems(**changes)
    assert message in found[field].message


def test_the_torch_engine_takes_uneven_mini_batches():
    assert parse_config({**GOOD, "update": {"mini_batches": 3, "warmup_updates": 2}}).update.mini_batches == 3


@pytest.mark.parametrize(
    ("engine", "devices", "n_gpus"),
    [
        ({"name": "torch"}, ("cpu", 1), 1),
        ({"name": "torch", "device": "cuda"}, ("cuda", 1), 1),
        ({"name": "verl", "gpus_per_node": 4}, ("cuda", 4), 4),
        ({"name": "verl", "gpus_per_node": 1, "device": "cpu"}, ("cpu", 1), 1),
        ({"name": "verl", "nodes": 2, "gpus_per_node": 4, "ray_address": "http://head:8265"}, ("cpu", 1), 8),
    ],
)
def test_what_an_engine_holds_of_its_host(engine, devices, n_gpus):
    config = parse_config({**GOOD, "engine": engine})
    assert (config.engine.devices, config.engine.n_gpus) == (devices, n_gpus)


def test_an_overlong_penalty_must_be_within_reach():
    parts = [{"reward": {"name": "exact"}}, {"reward": {"name": "overlong", "max_tokens": 2000, "cache": 500}}]
    reward = {"name": "sum", "parts": parts}
    config = {"model": {"path": "m"}, "data": {"train": "t", "eval": "e"}, "reward": reward}
    parse_config({**config, "sampling": {"max_new_tokens": 1501}})
    with pytest.raises(ConfigProblems, match="starts beyond 1500 tokens, which no response reaches"):
        parse_config({**config, "sampling": {"max_new_tokens": 1500}})
    bad = {**config, "reward": {**reward, "parts": [*parts, {"reward": {"name": "numeric", "tolerence": 1}}]}}
    with pytest.raises(ConfigProblems) as refused:
        parse_config(bad)
    (problem,) = refused.value.problems
    assert problem.field == "reward.parts.2.reward.tolerence" and "did you mean 'tolerance'?" in problem.message
