"""What a response is worth: named, versioned rewards, and the scorer that applies them. No torch here."""

from pipeline.rewards.latex import last_boxed
from pipeline.rewards.maths import canonical
from pipeline.rewards.registry import RewardConfig, described
from pipeline.rewards.scorer import Scorer
from pipeline.rewards.trial import RewardPart, RewardResult, tried
from pipeline.rewards.types import Response, Score, Verdict

__all__ = [
    "Response",
    "RewardConfig",
    "RewardPart",
    "RewardResult",
    "Score",
    "Scorer",
    "Verdict",
    "canonical",
    "described",
    "last_boxed",
    "tried",
]
