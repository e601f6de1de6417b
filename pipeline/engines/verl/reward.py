"""The run's reward as a reward manager of verl's. It runs in verl's reward workers, beside sampling."""

from __future__ import annotations

import os
from typing import Any

from pydantic import TypeAdapter
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from pipeline.rewards import Response, RewardConfig, Scorer


class RewardManager(RewardManagerBase):  # type: ignore[misc]
    """`score` is what advantages are computed from, `acc` what judges the prompt. NaN says that there is no value: the
    rollout then leaves its group."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, **_: Any) -> None:
        """Raises ValueError when a part of the reward cannot start."""
        super().__init__(config, tokenizer, compute_score)
        ours = config.trainer.v1.pilot_commit
        reward: RewardConfig = TypeAdapter(RewardConfig).validate_json(ours.reward)
        named = TypeAdapter(dict[str, RewardConfig]).validate_json(ours.rewards)
        self.scorer = Scorer(reward, max(1, (os.cpu_count() or 1) // int(config.reward.num_workers)), named)

    async def run_single(self, data: Any) -> dict[str, Any]:
        """data: the trajectories of one rollout. The last one's response is judged."""
        return dict(await self.loop.run_in_executor(None, self._score, data[-1]))

    def _score(self, item: Any) -> dict[str, Any]:
        n_tokens = int(item.non_tensor_batch["response_len"])
        text = self.tokenizer.decode(item.batch["responses"][:n_tokens], skip_special_tokens=True)
        answer = item.non_tensor_batch["reward_model"]["ground_truth"]
        prompt = item.non_tensor_batch["extra_info"]
        (score,) = self.scorer.score([Response(text, answer, prompt["prompt"], n_tokens, prompt["reward"])])
        told = {"score": score.reward, "acc": score.accuracy, "text": text}
        told |= {"verdicts": score.told, "extracted": score.extracted}
        return {"reward_score": score.reward, "reward_extra_info": told}
