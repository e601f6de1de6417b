"""verl's agent loop workers, with three things mended. They run agent loops against the vLLM servers."""

from __future__ import annotations

import logging
from typing import Any

import ray
from ray.exceptions import RayTaskError
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ
from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

log = logging.getLogger(__name__)


def in_words(error: BaseException) -> str:
    """One line of an error. Ray wraps what went wrong in a worker, once for every worker that it came through."""
    while isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        error = error.cause
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:500]


class Worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """verl picks how turns are joined by the model's type alone, and fails where the tokenizer is of another family:
    DeepSeek's distilled Qwens, and our bundled policy. Such a model gets verl's way for models that it does not know.
    """

    hf_model_type: str | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.error = ""  # the last one of a rollout
        try:
            create_continuous_token_builder(
                self.tokenizer, hf_model_type=self.hf_model_type, processor=self.processor, chat_template_kwargs={}
            )
        except ValueError as error:
            log.warning("turns are joined in the default way, not in that of %s: %s", self.hf_model_type, error)
            self.hf_model_type = None
            # verl would say so for every single rollout.
            logging.getLogger(create_continuous_token_builder.__module__).setLevel(logging.ERROR)

    async def _run_agent_loop(
        self, sampling_params: dict[str, Any], *args: Any, sampling: dict[str, float] | None = None, **kwargs: Any
    ) -> Any:
        """sampling: this prompt's own temperature and top-p, in place of those of verl's config."""
        try:
            return await super()._run_agent_loop({**sampling_params, **(sampling or {})}, *args, **kwargs)
        except Exception as error:
            self.error = in_words(error)
            raise

    def last_error(self) -> str:
        return self.error


class AgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(Worker)
