"""How long to wait before the next try."""

import random
from collections.abc import Callable

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 5.0
LONGEST_ASKED_SECONDS = 60.0

Random = Callable[[], float]  # from 0 to 1


def pause(failures: int, chance: Random = random.random, *, asked: float | None = None) -> float:
    """Doubled with each failure and never the same for two clients: a server that comes back is not trampled.

    `asked` is what the server wants (Retry-After). It gets no less than that, but whatever it says, nobody spins and nobody sleeps for ever.
    """
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures, 16))
    return max(longest * (0.5 + chance() / 2), min(asked or 0.0, LONGEST_ASKED_SECONDS))
