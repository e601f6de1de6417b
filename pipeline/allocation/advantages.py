"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EPSILON = 1e-6  # added to the standard deviation, as verl does


def group_advantages(rewards_N: npt.NDArray[np.float64], normalise_std: bool = True) -> npt.NDArray[np.float64]:
    """Advantage of each rollout within its group, float64 [N]: (r - mean) / (std + 1e-6), or r - mean.

    std is the sample standard deviation (n - 1). Equal rewards give exact zeros: they are compared, not their
    rounded deviation, so that a group without a signal can be recognised and left out of the update.

    Raises ValueError for an empty group or a reward that is not finite (failed rollouts must be left out before).
    """
    if rewards_N.ndim != 1 or len(rewards_N) == 0:
        raise ValueError(f"a group's rewards must be a vector with at least one entry, not shape {rewards_N.shape}")
    if not np.isfinite(rewards_N).all():
        raise ValueError("a group's rewards must be finite: leave failed rollouts out")
    if (rewards_N == rewards_N[0]).all():
        return np.zeros_like(rewards_N)
    centred_N: npt.NDArray[np.float64] = rewards_N - rewards_N.mean()
    scale = float(rewards_N.std(ddof=1)) + EPSILON if normalise_std else 1.0
    return centred_N / scale
