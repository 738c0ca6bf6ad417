"""A time budget for retries within one call, with growing, randomised pauses.

Clock, randomness and sleep are arguments, so that tests need not wait.
"""

import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from random import Random

BASE_SECONDS = 0.5
LONGEST_SECONDS = 8.0


class Patience:
    def __init__(
        self,
        seconds: float,
        random: Random,
        sleep: Callable[[float], Awaitable[None]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._random = random
        self._sleep = sleep
        self._clock = clock
        self._until = clock() + seconds
        self._pauses = 0

    @property
    def left(self) -> float:
        return max(0.0, self._until - self._clock())

    async def pause(self, at_least: float | None = None) -> bool:
        """Wait before the next try and return True; return False, without waiting, if the time is over.

        A BMC's Retry-After is respected as long as there is time; a last try comes at the end of the time, because a BMC that
        asks for ten minutes is often back in one.
        """
        left = self.left
        if left <= 0:
            return False
        step: float = min(LONGEST_SECONDS, BASE_SECONDS * 2.0**self._pauses)
        self._pauses = min(self._pauses + 1, 16)
        await self._sleep(min(left, max(at_least or 0.0, step * self._random.uniform(0.5, 1.0))))
        return True

    def within(self, seconds: float) -> "Patience":
        """Return a shorter budget for a part of the work; its pauses begin small again."""
        return Patience(min(seconds, self.left), self._random, self._sleep, self._clock)


def retry_after(value: str | None, date: str | None, now: float) -> float | None:
    """Return the seconds to wait, or None. A date is compared with the BMC's own clock, which need not agree with ours."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    if not text:
        return None
    try:
        then = parsedate_to_datetime(text).timestamp()
        return max(0.0, then - (parsedate_to_datetime(date).timestamp() if date else now))
    except ValueError:
        return None
