"""How many requests a token may send: a bucket of them for each, refilled steadily. One process counts for itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

_MOST: Final = 10_000  # buckets; more are those of senders that have long been silent


class Rates:
    """per_s: requests a second in the long run; 0: no limit. burst: at once, after a pause."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._left: dict[object, tuple[float, float]] = {}  # sender -> (requests left, at this time)

    def wait_s(self, sender: object) -> float:
        """Take one request from the sender's bucket. Returns 0, or in how many seconds there will be one."""
        if not self._per_s:
            return 0.0
        now = self._clock()
        left, at = self._left.get(sender, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        if left < 1:
            return (1 - left) / self._per_s
        self._left[sender] = (left - 1, now)
        if len(self._left) > _MOST:
            full_after = self._burst / self._per_s
            self._left = {who: (n, t) for who, (n, t) in self._left.items() if now - t < full_after}
        return 0.0
