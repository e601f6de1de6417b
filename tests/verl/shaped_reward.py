"""A user's own reward function: what trains is not what judges; it breaks on one prompt and fails on another."""

from __future__ import annotations

import math


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    if ground_truth == "breaks":
        raise OSError("the grader is not there")
    if ground_truth == "no value":
        return {"score": math.nan, "acc": math.nan}
    acc = float(solution_str.strip() == ground_truth.strip())
    return {"score": acc + 0.001 * len(solution_str), "acc": acc}
