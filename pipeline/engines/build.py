"""An engine samples and learns. The training loop (pipeline/train.py) knows it by this protocol only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from pipeline import step
from pipeline.allocation import Rollouts
from pipeline.config import RunConfig, TorchEngine, VerlEngine
from pipeline.evaluation import Answering
from pipeline.prompts import PromptSet


class Engine(step.Engine, Answering, Protocol):
    """Samples and learns as `pipeline.step.Engine` says, answers as `pipeline.evaluation` asks, is saved and loaded.

    The `data` of every rollout that it samples is a mapping with "text" (the response), "logprob" (of the whole
    response under the policy that sampled it, nats; None when sampling failed) and "verdicts" (rewards.Score.told), and
    whatever the engine needs to train on it. pipeline.checkpoint must be able to save it.
    """

    @property
    def n_parameters(self) -> int: ...

    def keep(self, waiting: Iterable[Rollouts]) -> None:
        """What was sampled and is not among these may be forgotten. Called between steps.

        Raises ValueError when one of these is not there (any more).
        """
        ...

    def save(self, folder: Path) -> None:
        """Write everything of its own that training goes on from. `policy/` in it is a Hugging Face folder."""
        ...

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote. Raises FileNotFoundError or ValueError when it is not whole."""
        ...

    def record(self, metrics: Mapping[str, float | None], step: int) -> None:
        """Send a step's or an evaluation's numbers to the loggers that the config names for this engine."""
        ...

    def close(self) -> None:
        """End every process that it started."""
        ...


def build_engine(config: RunConfig, train: PromptSet, held_out: Sequence[PromptSet], run_dir: Path) -> Engine:
    """The engine that config.engine names, for these prompts; held_out: all that it may be asked to answer.

    Raises ValueError or OSError that says what to change when it cannot run; nothing that it started is left then.
    """
    # Imported here: a faulty config is told before torch is loaded, and neither engine needs what the other does.
    match config.engine:
        case TorchEngine() as settings:
            from pipeline.engines.torch import Engine as Torch

            return Torch(config, settings, train.prompts)
        case VerlEngine() as settings:
            from pipeline.engines.verl.start import start

            return start(config, settings, train, held_out, run_dir)
