"""What k responses per prompt say about a policy: avg@k, pass@k, maj@k, and how sure one can be of a mean. No I/O.

A response is known by its accuracy: 1 is right, NaN means that its reward failed. Failed ones are left out everywhere,
as if they had not been sampled.

Shapes: P prompts, K responses of one prompt.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def average(accuracy_K: Floats) -> float:
    """avg@K of one prompt: the mean accuracy. NaN when every reward failed."""
    known_K = accuracy_K[~np.isnan(accuracy_K)]
    return float(known_K.mean()) if len(known_K) else math.nan


def pass_at(k: int, accuracy_K: Floats) -> float:
    """The chance that one of k responses is right, without bias: 1 - C(n - c, k) / C(n, k) for c right ones of n.

    "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374), eq. 1. NaN when fewer than k responses have
    an accuracy. Accuracies between 0 and 1 are not right.
    """
    known_K = accuracy_K[~np.isnan(accuracy_K)]
    n, c = len(known_K), int((known_K >= 1).sum())
    if n < k:
        return math.nan
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(accuracy_K: Floats, answers_K: Sequence[str | None]) -> float:
    """maj@K of one prompt: the accuracy of the answer that most responses give (self-consistency, arXiv 2203.11171).

    answers_K: what was extracted of each response, None when nothing was: then it has no vote. All right responses are
    one answer, however they write it, for each equals the reference. Between answers with equally many votes the choice
    is random: this is its expected accuracy. 0 when nobody votes; NaN when every reward failed.
    """
    known = [i for i in range(len(accuracy_K)) if not np.isnan(accuracy_K[i])]
    if not known:
        return math.nan
    votes: dict[tuple[bool, str], list[float]] = defaultdict(list)
    for i in known:
        answer, right = answers_K[i], bool(accuracy_K[i] >= 1)
        if answer is not None:
            votes[right, "" if right else answer].append(float(accuracy_K[i]))
    if not votes:
        return 0.0
    most = max(map(len, votes.values()))
    return float(np.mean([np.mean(said) for said in votes.values() if len(said) == most]))


def mean_and_error(value_P: Floats) -> tuple[float, float]:
    """The mean over prompts and its standard error, prompts without a value (NaN) left out. (NaN, NaN) when all are.

    A prompt's responses are alike, so they are one cluster: with a mean per prompt the clustered error is that of P
    independent values ("Adding Error Bars to Evals", arXiv 2411.00640, section 2.2). One prompt alone has error 0.
    """
    known_P = value_P[~np.isnan(value_P)]
    if not len(known_P):
        return math.nan, math.nan
    error = float(known_P.std(ddof=1) / math.sqrt(len(known_P))) if len(known_P) > 1 else 0.0
    return float(known_P.mean()), error


def mean_of_means(means: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The plain mean of independent (mean, standard error) pairs, each counting alike, and its standard error."""
    n = len(means)
    return math.fsum(m for m, _ in means) / n, math.sqrt(math.fsum(e * e for _, e in means)) / n


def budgets(samples: int) -> list[int]:
    """The k at which pass@k is told: powers of two below `samples`, and `samples`."""
    return [*(2**i for i in range(samples.bit_length()) if 2**i < samples), samples]
