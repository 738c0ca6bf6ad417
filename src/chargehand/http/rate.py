"""Rate limits: a token bucket for each key, in memory."""

import time
from collections import OrderedDict
from collections.abc import Callable


class RateLimiter:
    """Stores each bucket as the instant at which it will be full again, so that nothing has to refill it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_keys: int = 10_000) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, rate: float, burst: float = 0) -> float:
        """Take one token and return 0, or return the seconds to wait. A rate of 0: no limit; a burst of 0: two seconds' worth."""
        if rate <= 0:
            return 0.0
        now = self._clock()
        room = max(1.0, burst or 2 * rate) / rate
        full_at = max(self._full_at.pop(key, now), now)
        wait = full_at + 1 / rate - (now + room)
        if wait < 1e-6:  # sums of 1/rate are inexact: without slack the last token of a burst could be refused
            full_at += 1 / rate
            wait = 0.0
        # Moved to the end: the first is the least recently used, so the nearest to full, and evicted first.
        self._full_at[key] = full_at
        if len(self._full_at) > self._max_keys:
            self._full_at.popitem(last=False)
        return wait
