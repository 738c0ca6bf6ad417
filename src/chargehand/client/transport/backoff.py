"""How long to wait before the next try."""

import random
from collections.abc import Callable

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 5.0
LONGEST_ASKED_SECONDS = 60.0

Random = Callable[[], float]  # from 0 to 1


def pause(failures: int, chance: Random = random.random, *, asked: float | None = None) -> float:
    """Double the pause with each failure, with jitter, so that clients do not all return to a restarted server at once.

    `asked` is the server's Retry-After: the pause is at least that long, up to LONGEST_ASKED_SECONDS.
    """
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures, 16))
    return max(longest * (0.5 + chance() / 2), min(asked or 0.0, LONGEST_ASKED_SECONDS))
