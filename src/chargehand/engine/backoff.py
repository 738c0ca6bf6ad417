"""How long to wait before the next attempt. Randomness comes in as an argument."""

from random import Random


def full_jitter(attempt: int, base_seconds: float, max_seconds: float, random: Random) -> float:
    """Uniform between 0 and base * 2**(attempt-1), capped: spreads callers that failed together."""
    return random.uniform(0.0, ceiling(attempt, base_seconds, max_seconds))


def equal_jitter(attempt: int, base_seconds: float, max_seconds: float, random: Random) -> float:
    """Half fixed, half random: spreads as well, and never retries at once."""
    top = ceiling(attempt, base_seconds, max_seconds)
    return top / 2 + random.uniform(0.0, top / 2)


def added_jitter(attempt: int, base_seconds: float, max_seconds: float, random: Random) -> float:
    """The whole pause and up to a quarter more: for policies that promise a minimum."""
    top = ceiling(attempt, base_seconds, max_seconds)
    return top + random.uniform(0.0, top / 4)


def ceiling(attempt: int, base_seconds: float, max_seconds: float) -> float:
    # 2.0**62 is beyond any sane maximum; the bound keeps a huge attempt from overflowing.
    return min(max_seconds, base_seconds * 2.0 ** min(max(attempt - 1, 0), 62))
