"""The estimators against brute force: every subset, every order, every tie."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.estimators import average, budgets, majority, mean_and_error, mean_of_means, pass_at

RIGHT = st.lists(st.sampled_from([0.0, 1.0, 0.5, math.nan]), max_size=7)


@given(RIGHT, st.integers(1, 7))
def test_pass_at_k_is_the_mean_over_all_subsets(accuracy, k):
    known = [a for a in accuracy if not math.isnan(a)]
    subsets = list(itertools.combinations(known, k))
    found = pass_at(k, np.array(accuracy))
    if not subsets:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(sum(1.0 in subset for subset in subsets) / len(subsets))


def test_pass_at_k_is_exact_for_many_responses():
    """The naive product loses this; c = 1 right of n has pass@k = k / n."""
    accuracy = np.zeros(4096)
    accuracy[0] = 1.0
    assert pass_at(2048, accuracy) == 0.5 and pass_at(1, accuracy) == 1 / 4096


@given(st.lists(st.tuples(st.sampled_from(["7", "8", "9", None]), st.sampled_from([False, True])), max_size=6))
def test_majority_is_the_expected_accuracy_of_a_random_vote(responses):
    """Brute force: "7" is right, however it was written; ballots are drawn in every order and the first of the most
    frequent answers wins, which breaks ties evenly."""
    accuracy = [math.nan if failed else float(answer == "7") for answer, failed in responses]
    answers = [answer for answer, _ in responses]
    counted = [answer for answer, failed in responses if not failed]
    found = majority(np.array(accuracy), answers)
    votes = [answer for answer in counted if answer is not None]
    if not counted:
        assert math.isnan(found)
    elif not votes:
        assert found == 0.0
    else:
        ballots = list(itertools.permutations(votes))
        won = [max(ballot, key=ballot.count) for ballot in ballots]
        # Among tied answers the one that is drawn first wins: over all orders each as often as the others.
        assert found == pytest.approx(won.count("7") / len(won))


def test_right_answers_vote_together_and_wrong_ones_do_not():
    right = np.array([1.0, 1.0, 0.0, 0.0])
    assert majority(right, ["1/2", "0.5", "3", "4"]) == 1.0
    assert majority(right, ["1/2", "0.5", "3", "3"]) == 0.5
    assert majority(np.array([0.6, 0.2, 1.0]), ["a", "a", "b"]) == pytest.approx(0.4), "graded answers: their mean"


def test_mean_and_error_are_clustered_by_prompt():
    rng = np.random.default_rng(0)
    accuracy = (rng.random((40, 8)) < rng.random((40, 1))).astype(float)
    value = np.array([average(row) for row in accuracy])
    mean, error = mean_and_error(value)
    assert mean == pytest.approx(accuracy.mean())
    # The cluster-robust formula, written out: residuals summed within clusters, with the small-sample factor.
    residual = accuracy - accuracy.mean()
    clustered = math.sqrt(40 / 39 * (residual.sum(1) ** 2).sum()) / accuracy.size
    assert error == pytest.approx(clustered)
    assert error > accuracy.std(ddof=1) / math.sqrt(accuracy.size), "as if all responses were independent"
    assert mean_and_error(np.array([0.25, math.nan])) == (0.25, 0.0)
    assert all(math.isnan(x) for x in mean_and_error(np.array([math.nan])))
    assert mean_of_means([(0.2, 0.03), (0.4, 0.04)]) == pytest.approx((0.3, 0.025))


def test_budgets():
    assert budgets(1) == [1] and budgets(6) == [1, 2, 4, 6] and budgets(8) == [1, 2, 4, 8]
