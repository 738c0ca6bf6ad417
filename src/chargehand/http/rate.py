"""How often a caller may ask: a token bucket per key, in memory."""

import time
from collections import OrderedDict
from collections.abc import Callable


class RateLimiter:
    """Each bucket is kept as one number, the instant at which it will be full again; there is nothing to refill."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, max_keys: int = 10_000) -> None:
        self._clock = clock
        self._max_keys = max_keys
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._full_at)

    def take(self, key: str, rate: float, burst: float = 0) -> float:
        """Seconds to wait; 0: one token was taken. A rate of 0 is no limit, a burst of 0 two seconds' worth."""
        if rate <= 0:
            return 0.0
        now = self._clock()
        room = max(1.0, burst or 2 * rate) / rate
        full_at = max(self._full_at.pop(key, now), now)
        wait = full_at + 1 / rate - (now + room)
        if wait < 1e-6:  # sums of 1/rate are not exact: without slack the last token of a burst could be refused
            full_at += 1 / rate
            wait = 0.0
        # Put back at the end: the first is the one unused for longest, so the nearest to full, and the one to forget.
        self._full_at[key] = full_at
        if len(self._full_at) > self._max_keys:
            self._full_at.popitem(last=False)
        return wait
