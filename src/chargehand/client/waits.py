"""How long to wait before the next try."""

import random
from collections.abc import Callable

FIRST_SECONDS = 0.2
LONGEST_SECONDS = 5.0

Random = Callable[[], float]  # from 0 to 1


def pause(failures: int, chance: Random = random.random) -> float:
    """Doubled with each failure and never the same for two clients: a server that comes back is not trampled."""
    longest = min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(failures, 16))
    return longest * (0.5 + chance() / 2)
