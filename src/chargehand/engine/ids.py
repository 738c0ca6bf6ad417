"""ULIDs: 48 bits of milliseconds, 80 of randomness, sortable as text, strictly increasing within a process."""

import os
import re
import time
from collections.abc import Callable

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]
_VALID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")


class UlidMaker:
    def __init__(
        self,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._now_ms = now_ms
        self._random_bytes = random_bytes
        self._last = 0

    def __call__(self) -> str:
        """Return a new id: a fresh random part each millisecond; within one, or when the clock steps back, the last id plus one."""
        value = self._now_ms() << 80
        if value >> 80 > self._last >> 80:
            # The top bit of the random part stays free, so that counting up cannot overflow into the time.
            value |= int.from_bytes(self._random_bytes(10), "big") >> 1
        else:
            value = self._last + 1
        self._last = value
        return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])


def is_ulid(text: str) -> bool:
    return _VALID.fullmatch(text) is not None


def first_id_at(at: int) -> str:
    """Return the lowest id of an instant, given in microseconds."""
    value = min(max(at // 1000, 0), 2**48 - 1) << 80
    return "".join([_PAIRS[value >> shift & 1023] for shift in range(120, -1, -10)])


def made_at(ulid: str) -> float:
    """Return when the id was made, by its maker's clock: seconds since the epoch."""
    value = 0
    for character in ulid[:10]:
        value = value << 5 | _ALPHABET.index(character)
    return value / 1000
