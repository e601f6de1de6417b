from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.allocation.pool import Order, Pool
from pipeline.allocation.types import Bucket


@settings(max_examples=100, deadline=None)
@given(n=st.integers(1, 3000), seed=st.integers(0, 2**31 - 1), epoch=st.integers(1, 10**6))
def test_an_order_is_a_permutation_however_it_is_cut(n, seed, epoch):
    order = Order(n, seed, epoch)
    whole = order.at(0, n)
    assert sorted(whole.tolist()) == list(range(n))
    cut = n // 3
    assert (np.concatenate((order.at(0, cut), order.at(cut, n))) == whole).all()


def test_orders_look_random():
    """Places and prompts are uncorrelated, epochs and seeds too, and every prompt comes first now and then."""
    n = 20_000
    a, b, c = Order(n, 1, 1).at(0, n), Order(n, 1, 2).at(0, n), Order(n, 2, 1).at(0, n)
    for x, y in ((a, np.arange(n)), (a, b), (a, c), (a[1:], a[:-1])):
        assert abs(np.corrcoef(x, y)[0, 1]) < 4 / n**0.5
    first = np.bincount([int(Order(10, 3, epoch).at(0, 1)[0]) for epoch in range(2000)], minlength=10)
    assert first.min() > 130 and first.max() < 270
    pairs = {tuple(Order(4, 0, epoch).at(0, 4).tolist()) for epoch in range(2000)}
    assert len(pairs) == 24
    with pytest.raises(ValueError, match="at least one"):
        Pool(0, 0)


def test_a_deferred_prompt_is_not_handed_out_before_it_is_due():
    """Even when it was given back: too hard in this epoch means not again in this epoch."""
    pool = Pool(10, 0)
    pool.begin_step()
    (first, *_) = pool.take(3)
    pool.move([first], Bucket.DEFERRED)
    pool.give_back(first)
    assert pool.due_epoch(first) == 2
    pool.begin_step()
    assert first not in pool.take(7) and pool.epoch == 1
    pool.begin_step()
    assert first in pool.take(10) and pool.epoch == 2
