"""The update against a plain one: one row per rollout, nothing merged, nothing skipped, autograd on the formula."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch

from pipeline.allocation import Batch, Plan, Request, Stage, TrainGroup, group_advantages, prepare
from pipeline.config import parse_config
from pipeline.engines.torch import Engine
from pipeline.engines.torch.model import causal
from pipeline.estimators import average
from pipeline.prompts import load_run_prompts
from pipeline.rewards import Score

BUNDLED = "pipeline/bundled/"


class By:
    """A scorer by any rule: what trains, and by another rule what judges."""

    def __init__(self, reward, accuracy=None):
        self.reward, self.accuracy = reward, accuracy

    def score(self, responses):
        rewards = [self.reward(r) for r in responses]
        return [Score(r, self.accuracy(x) if self.accuracy else r) for r, x in zip(rewards, responses, strict=True)]


def build(**changes):
    config = parse_config(
        {
            "seed": 3,
            "model": {"path": BUNDLED + "policy"},
            "data": {"train": BUNDLED + "prompts.train.jsonl", "eval": BUNDLED + "prompts.eval.jsonl"},
            "sampling": {"max_new_tokens": 8, "temperature": 0.9},
            "update": {"batch_prompts": 6, "mini_batches": 2, "lr": 0.01, "grad_clip": 1e9, **changes},
            "engine": {"name": "torch", "threads": 1, "token_budget": 256},
        }
    )
    prompts = load_run_prompts(config)[0].prompts
    engine = Engine(config, config.engine, prompts)
    # Plain gradient descent: AdamW's first step is the gradient's sign, which hides a wrong size.
    engine.optimiser = torch.optim.SGD(engine.model.parameters(), lr=0.01)
    # A reward that any policy gets right now and then, so that every group may carry a signal.
    engine.scorer = By(lambda response: float(sum(response.text.encode()) % 3 == 0))
    return engine


def groups_of(engine, step, prompts, n, stage=Stage.COMMIT):
    plan = Plan(step, 1, tuple(Request(p, stage, n) for p in prompts))
    return engine.generate(plan)


def answers(engine, prompts, samples, *, top_p=1.0, greedy=False, stream="", scorer=None):
    return engine.answers(
        prompts, samples, temperature=1.0, top_p=top_p, greedy=greedy, step=0, stream=stream, scorer=scorer
    )


def plain_logprobs(engine, prompt, tokens):
    ids = [*engine.encode(engine.prompts[prompt]), *tokens.tolist()]
    row = torch.tensor([ids[:-1]])
    logits = engine.model(row, torch.arange(row.shape[1])[None], causal)[0]
    logprobs = (logits / engine.config.sampling.temperature).log_softmax(-1)
    start = len(ids) - len(tokens) - 1
    return logprobs[start:].gather(-1, torch.tensor(ids[start + 1 :])[:, None])[:, 0]


def plain_update(engine, batch):
    """The docstring's formula, term by term."""
    s = engine.config.update
    now = {
        (g.prompt, i): plain_logprobs(engine, g.prompt, data["tokens"]).detach()
        for g in batch.groups
        for i, data in enumerate(g.rollouts.data)
    }
    order = np.random.default_rng([engine.config.seed, batch.step]).permutation(len(batch.groups))
    for part in np.array_split(order, s.mini_batches):
        total, n_tokens = torch.zeros(()), 0
        for g in (batch.groups[i] for i in part):
            advantages = group_advantages(g.rollouts.rewards, s.normalise_std)
            for i, (data, advantage) in enumerate(zip(g.rollouts.data, advantages, strict=True)):
                new = plain_logprobs(engine, g.prompt, data["tokens"])
                behaviour = torch.from_numpy(data["logprobs"])
                stale = g.rollouts.steps[i] < batch.step
                proximal = now[g.prompt, i] if stale else behaviour
                weight = torch.ones(())
                if s.off_policy_cap is not None and stale:
                    weight = (proximal - behaviour).exp().clamp(max=s.off_policy_cap)
                ratio = (new - proximal).exp()
                clipped = ratio.clamp(1 - s.clip_low, 1 + s.clip_high)
                total = total - (weight * torch.minimum(ratio * advantage, clipped * advantage)).sum()
                n_tokens += len(new)
        engine.optimiser.zero_grad()
        (total / n_tokens).backward()
        engine.optimiser.step()


@pytest.mark.parametrize(
    "changes", [{}, {"off_policy_cap": None}, {"off_policy_cap": 0.9}, {"normalise_std": False}, {"clip_low": 0.001}]
)
def test_update_equals_the_plain_computation(changes):
    """Merged responses, packed rows, skipped groups and micro-batches change nothing; stored pilots are corrected."""
    engine = build(**changes)
    commits = groups_of(engine, 2, range(6), 12)
    # Pilots of an earlier policy, whose log-probs were others than the current policy's.
    pilots = groups_of(engine, 1, range(6), 4, Stage.PILOT)
    for data in (d for group in pilots for d in group.rollouts.data):
        data["logprobs"] = data["logprobs"] * np.float32(1.3) + np.float32(0.1)
    groups = tuple(TrainGroup(p.request.prompt, p.rollouts + c.rollouts) for p, c in zip(pilots, commits, strict=True))
    assert sum(len(set(g.rollouts.rewards)) > 1 for g in groups) >= 2, "some groups must carry a signal"
    batch = prepare(Batch(step=2, groups=groups), 0, engine.config.update.normalise_std)
    start = copy.deepcopy(engine.model.state_dict())
    stats = engine.update(batch)
    mine = copy.deepcopy(engine.model.state_dict())
    engine.model.load_state_dict(start)
    plain_update(engine, batch)
    moved = max(float((mine[k] - start[k]).abs().max()) for k in mine)
    apart = max(float((mine[k] - w).abs().max()) for k, w in engine.model.state_dict().items())
    assert moved > 1e-4 and apart < moved * 1e-3
    assert engine.updates == 2 and stats["grad_norm"] > 0 and stats["entropy"] > 0


def test_groups_without_a_signal_move_nothing_and_still_count_as_updates():
    engine = build()
    (group,) = groups_of(engine, 1, [0], 4)
    same = dataclasses.replace(group.rollouts, rewards=np.ones(4))
    before = copy.deepcopy(engine.model.state_dict())
    stats = engine.update(prepare(Batch(step=1, groups=(TrainGroup(0, same),)), 0, True))
    assert all(torch.equal(before[k], w) for k, w in engine.model.state_dict().items())
    assert engine.updates == 2 and stats["loss"] is None
    assert engine.update(Batch(step=2, groups=()))["loss"] is None and engine.updates == 4


def test_an_update_raises_what_was_rewarded():
    engine = build(batch_prompts=1, mini_batches=1)
    (group,) = groups_of(engine, 1, [1], 64)
    first = group.rollouts.data[0]["tokens"]
    rewards = np.array([float(d["tokens"].tobytes() == first.tobytes()) for d in group.rollouts.data])
    assert 0 < rewards.sum() < 64
    before = float(plain_logprobs(engine, 1, first).sum().detach())
    rewarded = TrainGroup(1, dataclasses.replace(group.rollouts, rewards=rewards))
    engine.update(prepare(Batch(step=1, groups=(rewarded,)), 0, True))
    assert float(plain_logprobs(engine, 1, first).sum().detach()) > before


def texts(groups):
    return [data["text"] for group in groups for data in group.rollouts.data]


def test_generation_depends_on_seed_step_and_round_only():
    engine, twin = build(), build()
    a, b = groups_of(engine, 5, [1, 2, 3], 6), groups_of(twin, 5, [1, 2, 3], 6)
    assert texts(a) == texts(b)
    c = groups_of(engine, 6, [1, 2, 3], 6)
    assert texts(a) != texts(c)
    for group in a:
        assert (group.rollouts.steps == 5).all()
        for data, n_tokens in zip(group.rollouts.data, group.rollouts.n_tokens, strict=True):
            assert n_tokens == len(data["tokens"])
            expected = plain_logprobs(engine, group.request.prompt, data["tokens"]).detach().numpy()
            assert data["logprobs"] == pytest.approx(expected, abs=1e-4)


def test_warm_up_then_constant():
    engine = build(warmup_updates=3, lr=0.4, mini_batches=1, batch_prompts=1)
    rates = [engine.update(Batch(step=i, groups=()))["learning_rate"] for i in range(1, 6)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])


def test_a_failed_reward_stays_out_of_the_accuracy():
    engine = build()
    calls = iter([1.0, math.nan, 0.0, math.nan, math.nan, math.nan])
    engine.scorer = By(lambda response: next(calls))
    found = answers(engine, engine.prompts[:2], 3)
    accuracy = [average(np.array([a.accuracy for a in group])) for group in found]
    assert accuracy[0] == 0.5 and math.isnan(accuracy[1]) and all(a.n_tokens >= 1 for group in found for a in group)


def test_evaluation_samples_as_it_is_asked_to():
    """Top-p next to nothing is greedy; streams are independent and repeat; a scorer that is given judges."""
    engine = build()
    prompts = engine.prompts[:12]

    def texts(**how):
        return [[a.text for a in group] for group in answers(engine, prompts, 6, **how)]

    greedy = [group[0].text for group in answers(engine, prompts, 1, greedy=True)]
    assert texts(top_p=1e-6) == [[text] * 6 for text in greedy]
    assert texts() == texts() != texts(stream="aime24")
    assert len({text for group in texts() for text in group}) > len({text for g in texts(top_p=0.5) for text in g})
    other = By(lambda response: 0.25)
    assert {a.accuracy for group in answers(engine, prompts, 2, scorer=other) for a in group} == {0.25}


def test_what_trains_and_what_judges_are_kept_apart():
    engine = build()
    engine.scorer = By(lambda r: -float(r.n_tokens), accuracy=lambda r: float(r.prompt == engine.prompts[1].text))
    groups = groups_of(engine, 1, [0, 1], 4)
    for group in groups:
        assert (group.rollouts.rewards == -group.rollouts.n_tokens).all()
    assert [group.rollouts.success.tolist() for group in groups] == [[0.0] * 4, [1.0] * 4]
    found = answers(engine, engine.prompts[:2], 2)
    assert [[a.accuracy for a in group] for group in found] == [[0.0, 0.0], [1.0, 1.0]]


def test_what_cannot_start_says_why(tmp_path):
    engine = build()
    if not torch.cuda.is_available():
        settings = engine.config.engine.model_copy(update={"device": "cuda"})
        with pytest.raises(ValueError, match="no CUDA device is available; set engine.device to 'cpu'"):
            Engine(engine.config, settings, engine.prompts)


class Trap:
    """A pickle that runs code when it is loaded."""

    def __init__(self, caught):
        self.caught = caught

    def __reduce__(self):
        return (type(self.caught).touch, (self.caught,))


@pytest.mark.parametrize("name", ["optimiser.safetensors", "policy/model.safetensors"])
@pytest.mark.parametrize("written", [pickle.dump, torch.save], ids=["pickle", "torch"])
def test_a_pickle_in_a_checkpoint_is_refused_and_never_run(tmp_path, name, written):
    engine = build()
    engine.save(tmp_path)
    engine.load(tmp_path)
    with (tmp_path / name).open("wb") as file:
        written(Trap(tmp_path / "caught"), file)
    before = [p.clone() for p in engine.model.parameters()]
    with pytest.raises(ValueError, match="is not whole"):
        engine.load(tmp_path)
    assert not (tmp_path / "caught").exists()
    assert all(torch.equal(a, b) for a, b in zip(before, engine.model.parameters(), strict=True))
