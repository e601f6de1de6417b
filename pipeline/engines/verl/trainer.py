"""verl's synchronous trainer for prompts that have unequal numbers of rollouts.

`PPOTrainerSync` gives models, vLLM servers, reward workers and the order of a training step. What it takes for granted
and is not so here is replaced: that every step samples the same number of rollouts for the same number of prompts,
that mini-batches count rows, and that advantages follow from the rewards that lie in the batch alone.

A trajectory (a row of TransferQueue, verl's store) is known here by its key; its tag says how long it is.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.protocol import DataProto
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions
from verl.workers.utils.padding import response_to_nested

PARTITION = "train"  # of TransferQueue
POLL_S = 0.1
ALIVE_S = 10.0  # how often the workers are asked whether they live while we wait for them

Tag = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished rollout. An agent loop may leave several trajectories of one; the last has the reward.

    reward is NaN where none could be computed. acc is the accuracy signal. verdicts: the reward's parts, as JSON.
    extracted: the final answer, as the reward took it from the text; None with rewards other than ours.
    n_tokens: what the policy sampled, without what tools answered. logprob: of these tokens under the policy that
    sampled them.
    """

    keys: list[str]
    tags: list[Tag]
    text: str
    reward: float
    acc: float
    verdicts: str | None
    extracted: str | None
    n_tokens: int
    logprob: float


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory to train on, in the mini-batch `part`."""

    key: str
    tag: Tag
    advantage: float
    part: int


class Handover:
    """Stands where verl has its replay buffer, and hands out the batch that `learn` was given."""

    def __init__(self) -> None:
        self.batch: KVBatchMeta | None = None

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        assert self.batch is not None
        return self.batch, {}


@register_trainer("pilot_commit")
class PilotCommitTrainer(PPOTrainerSync):  # type: ignore[misc]
    """Samples what it is asked for, and trains on what it is given. The loop is pipeline.train's, not `fit`."""

    def __init__(self, config: DictConfig) -> None:
        super().__init__(config)
        self.global_steps = 0  # the training step under way
        self.curr_step_profile = False
        self.in_sync = True  # the vLLM servers are awake and have the policy's weights
        self._rows: dict[str, Row] = {}

    # --- what verl's trainer does and this one does not ---------------------------------------------------------

    def _build_replay_buffer(self) -> Handover:
        return Handover()

    def _init_dataloader(self) -> None:
        """Prompts come from the run's prompt sets. verl's learning rate schedule wants to know how many steps come."""
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = self.config.trainer.total_training_steps

    def _load_checkpoint(self) -> None:
        """Not while it starts: the loop says which checkpoint, with `load`."""

    # --- sampling -----------------------------------------------------------------------------------------------

    def sample(
        self,
        rows: Sequence[Mapping[str, Any]],
        n: Sequence[int],
        step: int,
        *,
        greedy: bool = False,
        evaluation: Mapping[str, float] | None = None,
    ) -> list[list[Sample]]:
        """n[i] rollouts of the prompt rows[i], less those that failed. evaluation: sampling parameters in place of
        training's. Greedy ones and those of an evaluation are not kept.

        One dispatch: prompts with few and with many rollouts together. Raises RuntimeError when every prompt of it
        failed, and what Ray raises when a worker died.
        """
        self.wake()
        self.global_steps = step
        uids = [uuid.uuid4().hex for _ in rows]
        # verl cuts the dispatch into one piece for each of its workers: every piece gets some of each kind.
        n_workers = len(self.agent_loop_manager.agent_loop_workers)
        order = [i for first in range(n_workers) for i in range(first, len(rows), n_workers)]
        columns: dict[str, list[Any]] = {name: [rows[i][name] for i in order] for name in rows[0]}
        columns |= {"uid": [uids[i] for i in order], "__rollout_n__": [n[i] for i in order]}
        columns |= {"__do_sample__": [not greedy] * len(rows)}
        validate = evaluation is not None
        if evaluation is not None:
            columns["sampling"] = [dict(evaluation) for _ in rows]  # for sampling.Worker
        batch = tu.get_tensordict(columns)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tu.assign_non_tensor_data(batch, "validate", validate)
        partition = "val" if validate else PARTITION
        pending = {"is_prompt": True, "status": "pending", "global_steps": step}
        tq.kv_batch_put(keys=uids, partition_id=partition, tags=[dict(pending) for _ in uids])
        self.agent_loop_manager.generate_sequences(batch)
        tags = self._wait(set(uids), partition)
        tq.kv_clear(keys=uids, partition_id=partition)
        if all(tags[uid]["status"] == "failure" for uid in uids):
            errors = ray.get([worker.last_error.remote() for worker in self.agent_loop_manager.agent_loop_workers])
            raise RuntimeError(f"sampling failed for every prompt of a pass: {max(errors)}; the log has more")
        # A trajectory's key is {uid}_{session}_{index}.
        sessions: dict[tuple[str, int], list[tuple[int, str]]] = {}
        for key in tags.keys() - set(uids):
            uid, session, index = key.rsplit("_", 2)
            sessions.setdefault((uid, int(session)), []).append((int(index), key))
        keys = {session: [key for _, key in sorted(found)] for session, found in sorted(sessions.items())}
        of_uid: dict[str, list[Sample]] = {uid: [] for uid in uids}
        wanted = {session: k for session, k in keys.items() if session[0] in of_uid}
        for (uid, _), sample in zip(wanted, self._read(list(wanted.values()), tags, partition), strict=True):
            of_uid[uid].append(sample)
        if validate or greedy:
            tq.kv_clear(keys=[key for k in wanted.values() for key in k], partition_id=partition)
        return [of_uid[uid] for uid in uids]

    def _read(self, sessions: list[list[str]], tags: Mapping[str, Tag], partition: str) -> list[Sample]:
        """What the allocation has to know of these rollouts, given by their keys; at least one."""
        every, last = [key for keys in sessions for key in keys], [keys[-1] for keys in sessions]
        data = tq.kv_batch_get(every, partition, select_fields=["response_mask", "rollout_log_probs"])
        masks, logprobs = data["response_mask"].unbind(), data["rollout_log_probs"].unbind()  # [T] each
        counts = {key: int(mask.sum()) for key, mask in zip(every, masks, strict=True)}
        sums = {
            key: float((logprob.double() * mask).sum())
            for key, mask, logprob in zip(every, masks, logprobs, strict=True)
        }
        data = tq.kv_batch_get(last, partition, select_fields=["rm_scores", "extra_fields"])
        extras = [getattr(extra, "data", extra) for extra in data["extra_fields"]]
        samples = []
        for keys, scores, extra in zip(sessions, data["rm_scores"].unbind(), extras, strict=True):
            told = extra.get("reward_extra_info", {})
            # rm_scores is float32; a reward function that answers with a mapping tells its value exactly.
            reward = float(told.get("score", scores.sum()))
            text = told.get("text")
            samples.append(
                Sample(
                    keys=keys,
                    tags=[dict(tags[key]) for key in keys],
                    text=self._decode(keys[-1], partition) if text is None else str(text),
                    reward=reward,
                    acc=float(told.get("acc", reward)),
                    verdicts=told.get("verdicts"),
                    extracted=told.get("extracted"),
                    n_tokens=sum(counts[key] for key in keys),
                    logprob=sum(sums[key] for key in keys),
                )
            )
        return samples

    def _decode(self, key: str, partition: str) -> str:
        """For reward functions other than ours, which hands the text back: it has it already."""
        tokens = tq.kv_batch_get([key], partition, select_fields=["responses"])["responses"][0]
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def _wait(self, uids: set[str], partition: str) -> dict[str, Tag]:
        """Until these prompts are sampled. Returns the tags of everything in the partition."""
        workers = self.agent_loop_manager.agent_loop_workers
        alive, asked = [worker.__ray_ready__.remote() for worker in workers], time.monotonic()
        while True:
            start = time.monotonic()
            tags: dict[str, Tag] = tq.kv_list(partition_id=partition)[partition]
            if all(tags[uid]["status"] in ("finished", "failure") for uid in uids):
                return tags
            if start - asked > ALIVE_S:
                ray.get(ray.wait(alive, num_returns=len(alive), timeout=0)[0])  # raises when one has died
                alive, asked = [worker.__ray_ready__.remote() for worker in workers], start
            # Of tens of thousands of rollouts even the list of tags is long: it must not be all that the store does.
            time.sleep(max(POLL_S, 4 * (time.monotonic() - start)))

    def wake(self) -> None:
        """Give the vLLM servers the policy's weights, if they have not got them."""
        if not self.in_sync:
            self.checkpoint_manager.update_weights(self.global_steps)
            self.in_sync = True

    def sleep(self) -> None:
        """Free the memory that the vLLM servers hold, for the training workers."""
        if self.in_sync:
            self.checkpoint_manager.sleep_replicas()
            self.in_sync = False

    def on_sample_end(self) -> None:
        self.sleep()

    # --- learning -----------------------------------------------------------------------------------------------

    def learn(self, rows: Sequence[Row], step: int) -> dict[str, float]:
        """One optimiser update for each part, in order, by verl's own step. Returns verl's metrics."""
        self.global_steps = step
        self._rows = {row.key: row for row in rows}
        self.replay_buffer.batch = KVBatchMeta(
            partition_id=PARTITION, keys=[row.key for row in rows], tags=[row.tag for row in rows]
        )
        metrics: dict[str, float] = {}
        self._step_once(metrics, {}, len(rows))
        return metrics

    def _balance_batch(self, batch: KVBatchMeta, metrics: dict[str, float]) -> KVBatchMeta:
        """Lay the rows out so that each part is a mini-batch of verl's: equally many rows, spread over all ranks.

        verl gives every data parallel rank an equal slice of the batch, and cuts each slice into mini-batches of equal
        length. Parts with fewer rows are filled up with verl's padding rows: no token of theirs is in the loss, nor
        counted in its mean.
        """
        if "actor" not in self.actor_rollout_wg._dispatch_info:
            self.actor_rollout_wg._dispatch_info["actor"] = self.actor_rollout_wg._query_dispatch_info("actor")
        n_ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        n_parts = 1 + max(row.part for row in self._rows.values())
        parts: list[list[int]] = [[] for _ in range(n_parts)]
        for i, key in enumerate(batch.keys):
            parts[self._rows[key].part].append(i)
        size = -(-max(map(len, parts)) // n_ranks) * n_ranks
        n_rows = len(batch)
        batch = upsample_batch_to_divisible_size(batch, size * n_parts, self.tokenizer.eos_token_id)
        padding = iter(range(n_rows, size * n_parts))
        slices: list[list[int]] = [[] for _ in range(n_ranks)]
        for part in parts:
            part += [next(padding) for _ in range(size - len(part))]
            work = calculate_workload(torch.tensor([batch.tags[i]["seq_len"] for i in part]))
            for rank, places in enumerate(get_seqlen_balanced_partitions(work, n_ranks, equal_size=True)):
                slices[rank] += [part[place] for place in places]
        batch.reorder([i for rows in slices for i in rows])
        # This process's copy of the config, from which verl computes the size of a mini-batch as their product.
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.ppo_mini_batch_size = size
            self.config.actor_rollout_ref.rollout.n = 1
        metrics["padding_rows"] = size * n_parts - n_rows
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, float]) -> KVBatchMeta:
        """Advantages are those that the allocation gave; weights against stale and mismatched log-probs are verl's."""
        fields = ["response_mask", "rollout_log_probs", "old_log_probs"]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        lengths = data["response_mask"]  # jagged [B, T]
        padded = DataProto(batch=data.to_padded_tensor())
        padded, correction = compute_rollout_correction_and_add_to_batch(
            padded, self.config.algorithm.rollout_correction
        )
        metrics.update(correction)
        advantages_B = torch.tensor([row.advantage if (row := self._rows.get(key)) else 0.0 for key in batch.keys])
        padded.batch["advantages"] = advantages_B[:, None] * padded.batch["response_mask"]
        written = ["advantages", "response_mask"]
        if "rollout_is_weights" in padded.batch:
            written.append("rollout_is_weights")
        output = {name: response_to_nested(padded.batch[name], lengths) for name in written}
        return tq.kv_batch_put(
            keys=batch.keys, partition_id=batch.partition_id, fields=TensorDict(output, batch_size=len(batch))
        )

    # --- the store and checkpoints ------------------------------------------------------------------------------

    def keep(self, keys: set[str]) -> None:
        """Forget every trajectory but these. Raises ValueError when one of them is not there."""
        stored = set(tq.kv_list(partition_id=PARTITION).get(PARTITION, {}))
        if missing := keys - stored:
            raise ValueError(f"{len(missing)} of {len(keys)} stored trajectories are gone, {min(missing)} among them")
        if stored - keys:
            tq.kv_clear(keys=sorted(stored - keys), partition_id=PARTITION)

    def save(self, folder: Path) -> None:
        """`actor/` in verl's own format, `trajectories/` (what `keep` left in the store) and, with FSDP, `policy/`."""
        self.sleep()
        self.actor_rollout_wg.save_checkpoint(str(folder / "actor"), None, self.global_steps)
        tq.save_checkpoint(folder / "trajectories")
        exported = folder / "actor" / "huggingface"
        if any(exported.glob("*.safetensors")):
            exported.rename(folder / "policy")
            # verl's says bfloat16 whatever the weights beside it are.
            shutil.copy(Path(self.config.actor_rollout_ref.model.path) / "config.json", folder / "policy")

    def load(self, folder: Path) -> None:
        self.sleep()
        self.actor_rollout_wg.load_checkpoint(str(folder / "actor"))
        tq.load_checkpoint(folder / "trajectories")
