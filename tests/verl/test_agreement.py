"""The two engines on the same model, prompts and rewards: same log-probs, advantages, updates and decisions.

verl is imported within the tests: it must find the environment that the engine's start has set.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import transfer_queue as tq

from pipeline.allocation import Batch, Plan, Request, Stage, TrainGroup, prepare
from pipeline.config import TorchEngine
from pipeline.engines.torch import Engine as Torch
from pipeline.engines.torch.model import load
from pipeline.engines.torch.packing import packed_logprobs
from pipeline.events import StepFinished
from pipeline.step import build_allocator, training_step

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def torch_engine(engine, configure, tmp_path):
    """The torch engine with the fresh policy, and verl's engine with the same, and the same settings."""
    config = configure(
        tmp_path / "run",
        seed=5,
        update={"batch_prompts": 6, "mini_batches": 2},
        model={"path": str(engine.fresh / "policy")},
    )
    engine.config = config
    engine.load(engine.fresh)
    engine.keep(())
    return Torch(config, TorchEngine(threads=1), engine.prompts)


def tokens_of(rollouts, *fields):
    """What TransferQueue has of these rollouts, [N] of arrays [T] for each field."""
    keys = [key for data in rollouts.data for key in data["keys"]]
    data = tq.kv_batch_get(keys, "train", select_fields=list(fields))
    return [[row.numpy() for row in data[field].unbind()] for field in fields]


def as_torch(rollouts):
    """The same rollouts as the torch engine keeps them."""
    data = [
        {"text": d["text"], "logprob": d["logprob"], "tokens": t.astype(np.int32), "logprobs": logprobs}
        for d, t, logprobs in zip(rollouts.data, *tokens_of(rollouts, "responses", "rollout_log_probs"), strict=True)
    ]
    return dataclasses.replace(rollouts, data=data)


def sampled(engine, step, prompts, n, stage=Stage.COMMIT):
    return engine.generate(Plan(step, 1, tuple(Request(p, stage, n) for p in prompts)))


def test_log_probs_agree_token_by_token(engine, torch_engine):
    groups = sampled(engine, 1, range(0, 60, 3), 4)
    for group in groups:
        responses, theirs = tokens_of(group.rollouts, "responses", "rollout_log_probs")
        prompt = torch_engine.encode(engine.prompts[group.request.prompt])
        stats = packed_logprobs(torch_engine.model, [prompt], [[r.tolist() for r in responses]], 1.0, 4096)
        apart = np.abs(stats.logprobs.detach().numpy() - np.concatenate(theirs))
        assert apart.max() < 1e-4
        for data, logprobs, n_tokens in zip(group.rollouts.data, theirs, group.rollouts.n_tokens, strict=True):
            assert data["logprob"] == pytest.approx(float(logprobs.sum()), abs=1e-4) and n_tokens == len(logprobs)


def greedily(engine, prompts):
    """Accuracy per prompt of one greedy response, and tokens."""
    found = engine.answers(prompts, 1, temperature=1.0, top_p=1.0, greedy=True, step=1, stream="", scorer=None)
    answers = [answer for group in found for answer in group]
    return [answer.accuracy for answer in answers], sum(answer.n_tokens for answer in answers)


def test_greedy_sampling_gives_the_same_answers(engine, torch_engine):
    prompts = engine.prompts[:40]
    theirs, their_tokens = greedily(engine, prompts)
    torch_engine.reward = lambda response, answer: float(response.strip() == answer.strip())
    ours, our_tokens = greedily(torch_engine, prompts)
    known = [i for i, p in enumerate(prompts) if p.answer not in ("breaks", "no value")]
    assert len(known) >= 38 and our_tokens == pytest.approx(their_tokens, abs=16)
    assert [round(theirs[i]) for i in known] == [ours[i] for i in known]


def test_the_same_update(engine, torch_engine, tmp_path):
    """Uneven groups, one without a signal, one with stored pilots: padding weighs nothing, mini-batches are the same
    groups, and the weights end up where the torch engine's do."""
    groups = sampled(engine, 2, range(2, 30), 7)
    mixed = [g for g in groups if len(set(g.rollouts.success)) > 1 and not g.rollouts.failed.any()]
    flat = [g for g in groups if len(set(g.rollouts.rewards)) == 1 and not g.rollouts.failed.any()]
    assert len(mixed) >= 5 and flat
    chosen = [g.rollouts.take(np.arange(7 - i)) for i, g in enumerate(mixed[:5])]
    # As if a third of the first group had been sampled by an earlier policy, with other log-probs than the present one.
    (stored,) = tokens_of(chosen[0].take(np.arange(2)), "rollout_log_probs")
    keys = [key for data in chosen[0].data[:2] for key in data["keys"]]
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    others = list_of_dict_to_tensordict([{"rollout_log_probs": torch.from_numpy(x * 1.5 - 0.1)} for x in stored])
    tq.kv_batch_put(keys=keys, partition_id="train", fields=others)
    chosen[0] = dataclasses.replace(chosen[0], steps=np.array([1, 1, *chosen[0].steps[2:]]))
    chosen.append(flat[0].rollouts)
    prompts = [g.request.prompt for g in (*mixed[:5], flat[0])]

    def batch(of):
        trained = tuple(TrainGroup(p, of(r)) for p, r in zip(prompts, chosen, strict=True))
        return prepare(Batch(step=2, groups=trained), engine.config.seed, True)

    ours = batch(as_torch)
    ours_stats = torch_engine.update(ours)
    theirs = batch(lambda r: r)
    engine.trainer.global_steps = 2
    theirs_stats = engine.update(theirs)
    for mine, other in zip(ours.groups, theirs.groups, strict=True):
        assert (mine.advantages == other.advantages).all()
        (trained_on,) = tokens_of(other.rollouts, "advantages")
        for advantage, row in zip(mine.advantages, trained_on, strict=True):
            assert np.allclose(row, advantage, atol=1e-6)
    for name in ("loss", "grad_norm"):
        assert theirs_stats[name] == pytest.approx(ours_stats[name], rel=1e-3), name
    (tmp_path / "after").mkdir()
    engine.save(tmp_path / "after")
    before, after = (load(f / "policy").state_dict() for f in (engine.fresh, tmp_path / "after"))
    apart, moved = [], []
    for name, weight in torch_engine.model.state_dict().items():
        apart.append((weight - after[name]).abs().flatten())
        moved.append((weight - before[name]).abs().flatten())
    apart_W, moved_W = torch.cat(apart), torch.cat(moved)
    assert moved_W.max() > 3e-4
    # AdamW's first steps are the gradient's sign almost: where the gradient is next to nothing, so is its sign.
    assert apart_W.norm() < 0.1 * moved_W.norm()


def test_the_same_decisions_on_the_same_rewards(train, engine, tmp_path):
    """A run on verl, its rewards fed to the loop's step once more: same judgements, same ledger, same advantages."""
    trained, groups = [], []
    update, generate = engine.update, engine.generate
    engine.update = lambda batch: (trained.append(batch), update(batch))[1]
    engine.generate = lambda plan: (groups.append(generate(plan)), groups[-1])[1]
    try:
        run = train(
            seed=151,
            method={"name": "pilot_commit", "n_pilot": 4, "n_commit": 6, "pilot_prompts": 24, "max_age": 1},
            selection={"name": "pods", "keep": 7},
            budget={"steps": 3},
        )
    finally:
        del engine.update, engine.generate
    steps = [e for e in run.events if isinstance(e, StepFinished)]

    class Again:
        def generate(self, plan):
            answer = groups.pop(0)
            assert [g.request for g in answer] == list(plan.requests)
            return answer

        def update(self, batch):
            theirs = trained.pop(0)
            assert [g.prompt for g in batch.groups] == [g.prompt for g in theirs.groups]
            for mine, other in zip(batch.groups, theirs.groups, strict=True):
                assert (mine.advantages == other.advantages).all() and mine.rollouts.data == other.rollouts.data
            return {}

    allocator = build_allocator(run.config, len(engine.prompts))
    for step in steps:
        batch, _ = training_step(allocator, Again(), run.config)
        assert {fate.value: count for fate, count in batch.fates.items()} == {
            fate: (count.rollouts, count.tokens) for fate, count in step.fates.items()
        }
        assert [(engine.prompts[v.prompt].id, v.bucket.value) for v in batch.visits] == [
            (v.prompt_id, v.bucket) for v in step.visits
        ]
        assert {b.value: n for b, n in allocator.bucket_counts().items()} == step.buckets
