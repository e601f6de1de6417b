"""Plans in, groups out: pipeline.engines.Engine on verl. Owns the Ray that it starts and everything that runs in it.

The loop, the allocation and the record of what happened are those of the torch engine. A rollout's tokens stay in
TransferQueue, verl's store; its `data` has their keys, so that whatever fields an agent loop adds come along, and that
a stored pilot is not copied through this process.
"""

from __future__ import annotations

import itertools
import logging
import math
import shutil
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from ray.exceptions import RayError
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.main_ppo import TaskRunnerV1
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.tracking import Tracking

from pipeline.allocation import Batch, Group, Plan, Request, Rollouts
from pipeline.config import ConfigProblems, RunConfig, VerlEngine
from pipeline.engines.verl.sampling import in_words
from pipeline.engines.verl.trainer import PilotCommitTrainer, Row, Sample
from pipeline.evaluation import Answer
from pipeline.prompts import Prompt
from pipeline.rewards import Response, Scorer

log = logging.getLogger(__name__)

PHASES = ("generate", "reward", "update")  # rewards are computed beside sampling: their time is in "generate"
METRICS = {
    "loss": "actor/pg_loss",
    "grad_norm": "actor/grad_norm",
    "entropy": "actor/entropy",
    "clip_fraction": "actor/pg_clipfrac",
    "learning_rate": "actor/lr",
    "off_policy_kl": "rollout_corr/kl",  # of the sampling policies from the one that is trained, per token
}


class Engine:
    """`config` is the run's, `verl` is what compose.py made of it."""

    def __init__(
        self,
        config: RunConfig,
        settings: VerlEngine,
        verl: DictConfig,
        prompts: Sequence[Prompt],
        n_parameters: int,
        env: Mapping[str, str],
        scratch: Path,
    ) -> None:
        """env: what every process of this engine finds in its environment. scratch: Ray's own folder, removed at the
        end. Raises ValueError that says why it could not start; nothing of it is left then."""
        self.config, self.settings, self.verl, self.prompts = config, settings, verl, prompts
        self.n_parameters, self.scratch = n_parameters, scratch
        self.seconds = dict.fromkeys(PHASES, 0.0)  # of the training step under way
        self.verl_metrics: dict[str, float] = {}  # of the last update, until they are recorded
        self.tracking: Tracking | None = None
        try:
            self._start_ray(env)
            self.trainer = self._start_trainer()
            self.tracking = Tracking(
                project_name=verl.trainer.project_name,
                experiment_name=verl.trainer.experiment_name,
                default_backend=list(verl.trainer.logger),
                config=OmegaConf.to_container(verl, resolve=True),
            )
        except BaseException as error:
            self.close()
            if isinstance(error, RayError):
                raise ValueError(f"verl could not start: {in_words(error)}; the log of the run has more") from error
            raise

    def _start_ray(self, env: Mapping[str, str]) -> None:
        runtime_env = OmegaConf.merge(
            get_ppo_ray_runtime_env(self.verl),
            {"env_vars": {"TRANSFER_QUEUE_ENABLE": "1", **env}},
            self.verl.ray_kwargs.ray_init.get("runtime_env") or {},
        )
        options = {**self.verl.ray_kwargs.ray_init, "runtime_env": runtime_env}
        if self.settings.ray_address is None:
            # Nobody else is to reach it: who does may run anything.
            options |= {"address": "local", "_node_ip_address": "127.0.0.1", "_temp_dir": str(self.scratch)}
        else:
            options["address"] = "auto"
        stop = signal.getsignal(signal.SIGTERM)
        ray.init(**OmegaConf.to_container(OmegaConf.create(options)))
        signal.signal(signal.SIGTERM, stop)  # Ray's, in Python and in its native part, end the process at once
        if self.settings.ray_address is not None:
            self._check_cluster()

    def _check_cluster(self) -> None:
        """What only the cluster knows. Raises ConfigProblems."""
        settings = self.settings
        wanted, there = settings.nodes * settings.gpus_per_node, int(ray.cluster_resources().get("GPU", 0))
        if wanted > there:
            raise ConfigProblems.one(
                "engine.gpus_per_node",
                settings.gpus_per_node,
                f"the Ray cluster has {there} GPUs, fewer than nodes={settings.nodes} x "
                f"gpus_per_node={settings.gpus_per_node}",
            )
        # TransferQueue has one name on a cluster: this run would share that of the other job.
        if any(actor["name"] == "TransferQueueController" for actor in ray.util.list_named_actors(all_namespaces=True)):
            raise ConfigProblems.one(
                "engine.ray_address", settings.ray_address, "another verl job runs on the cluster; it takes one"
            )

    def _start_trainer(self) -> PilotCommitTrainer:
        """What verl's own task runner does, in this process: signals, events and the exit status are ours."""
        runner = TaskRunnerV1.__ray_metadata__.modified_class()
        self.verl.transfer_queue.enable = True
        OmegaConf.resolve(self.verl)
        tq.init(self.verl.transfer_queue)
        trainer: PilotCommitTrainer = get_trainer_cls(self.verl.trainer.v1.trainer_mode)(config=self.verl)
        trainer.init()
        runner.config, runner.trainer = self.verl, trainer
        runner.init_agent_loop_manager()
        trainer.agent_loop_manager = runner.agent_loop_manager
        return trainer

    # --- sampling -----------------------------------------------------------------------------------------------

    def generate(self, plan: Plan) -> list[Group]:
        """The plan's groups, in order. Data of each rollout: text, logprob, verdicts, and keys and tags of its
        trajectories in TransferQueue; of a rollout that failed none."""
        if plan.round == 1:
            self.seconds = dict.fromkeys(PHASES, 0.0)
        if not plan.requests:
            return []
        start = time.perf_counter()
        answers = self.trainer.sample(
            [row_of(r.prompt, self.prompts[r.prompt]) for r in plan.requests],
            [r.n for r in plan.requests],
            plan.step,
        )
        self.seconds["generate"] += time.perf_counter() - start
        return [group_of(request, found, plan.step) for request, found in zip(plan.requests, answers, strict=True)]

    def answers(
        self,
        prompts: Sequence[Prompt],
        samples: int,
        *,
        temperature: float,
        top_p: float,
        greedy: bool,
        step: int,
        stream: str,
        scorer: Scorer | None,
    ) -> list[list[Answer]]:
        """pipeline.evaluation.Answering says what these mean; vLLM draws as it likes, whatever the stream.

        The reward workers score everything by the run's reward; with a scorer that verdict is replaced here."""
        rows = [row_of(i, prompt) for i, prompt in enumerate(prompts)]
        sampling = None if greedy else {"temperature": temperature, "top_p": top_p}
        found = self.trainer.sample(rows, [samples] * len(rows), step, greedy=greedy, evaluation=sampling)
        if scorer is None:
            return [[Answer(s.text, s.n_tokens, s.reward, s.acc, s.extracted, s.verdicts) for s in g] for g in found]
        asked = [Response(s.text, p.answer, p.text, s.n_tokens) for p, g in zip(prompts, found, strict=True) for s in g]
        scores = iter(scorer.score(asked))
        return [
            [
                Answer(s.text, s.n_tokens, score.reward, score.accuracy, score.extracted, score.told)
                for s, score in zip(group, itertools.islice(scores, len(group)), strict=True)
            ]
            for group in found
        ]

    # --- learning -----------------------------------------------------------------------------------------------

    def update(self, batch: Batch) -> dict[str, float | None]:
        """`mini_batches` optimiser updates on the batch, each on whole groups, as on the torch engine and on the same
        groups in the same order. A batch of none updates nothing."""
        start = time.perf_counter()
        order = np.random.default_rng([self.config.seed, batch.step]).permutation(len(batch.groups))
        parts = [part for part in np.array_split(order, self.config.update.mini_batches) if len(part)]
        rows = [
            Row(key, tag, advantage, number)
            for number, part in enumerate(parts)
            for group in (batch.groups[i] for i in part)
            for data, advantage in zip(group.rollouts.data, group.advantages.tolist(), strict=True)
            for key, tag in zip(data["keys"], data["tags"], strict=True)
        ]
        told = self.verl_metrics = self.trainer.learn(rows, batch.step) if rows else {}
        self.seconds["update"] += time.perf_counter() - start
        return {
            **{ours: float(told[theirs]) if theirs in told else None for ours, theirs in METRICS.items()},
            **{f"seconds_{phase}": seconds for phase, seconds in self.seconds.items()},
        }

    def record(self, metrics: Mapping[str, float | None], step: int) -> None:
        assert self.tracking is not None
        told = {f"pilot_commit/{name}": value for name, value in metrics.items() if value is not None}
        self.tracking.log(data={**told, **self.verl_metrics}, step=step)
        self.verl_metrics = {}

    # --- checkpoints --------------------------------------------------------------------------------------------

    def keep(self, waiting: Iterable[Rollouts]) -> None:
        self.trainer.keep({key for rollouts in waiting for data in rollouts.data for key in data["keys"]})

    def save(self, folder: Path) -> None:
        self.trainer.save(folder)

    def load(self, folder: Path) -> None:
        self.trainer.load(folder)

    def close(self) -> None:
        """Ends Ray and all that runs in it, whatever state it is in."""
        if self.tracking is not None:
            self.tracking.finish(exit_code=0)
        if ray.is_initialized():
            tq.close()
            ray.shutdown()
        shutil.rmtree(self.scratch, ignore_errors=True)


def row_of(index: int, prompt: Prompt) -> dict[str, Any]:
    """A prompt as verl's agent loops and reward managers know it."""
    return {
        "raw_prompt": prompt.chat,
        "data_source": "pilot_commit",
        "reward_model": {"style": "rule", "ground_truth": prompt.answer},
        "extra_info": {
            "index": index, "id": prompt.id, "prompt": prompt.text, "tags": list(prompt.tags), "reward": prompt.reward,
        },
        "index": index,
        "tools_kwargs": {},
        "interaction_kwargs": {},
    }  # fmt: skip


def group_of(request: Request, found: Sequence[Sample], step: int) -> Group:
    """The samples as a group; those missing of request.n failed, and so did their rewards."""
    missing = request.n - len(found)
    nan = [math.nan] * missing
    nothing: dict[str, Any] = {"text": "", "logprob": None, "verdicts": None, "keys": [], "tags": []}
    data: list[dict[str, Any]] = [
        {"text": s.text, "logprob": s.logprob, "verdicts": s.verdicts, "keys": s.keys, "tags": s.tags} for s in found
    ]
    return Group(
        request,
        Rollouts(
            rewards=np.array([s.reward for s in found] + nan),
            success=np.array([s.acc for s in found] + nan),
            n_tokens=np.array([s.n_tokens for s in found] + [0] * missing),
            steps=np.full(request.n, step),
            data=data + [nothing] * missing,
        ),
    )
