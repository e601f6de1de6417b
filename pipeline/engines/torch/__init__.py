"""The torch engine: one process, CPU or one GPU."""

from pipeline.engines.torch.engine import Engine

__all__ = ["Engine"]
