"""Run Python's garbage collector in steps so short that callers do not notice them.

By itself Python collects the young generation once many more objects were created than freed. A server creates about as many as it
frees, so that comes late, and by then nearly all objects are young: with 1,000 machines waiting, one collection stopped the loop for
100 ms. So the young generation is collected ten times a second. A full collection is run less often the less garbage it finds.
"""

import asyncio
import gc

YOUNG_SECONDS = 0.1
SHORTEST_SECONDS = 5.0  # between two full collections
LONGEST_SECONDS = 600.0
MUCH = 10_000  # garbage objects in one full collection
BACKSTOP = 100_000  # young objects at which Python collects by itself, however busy the loop is


def calm_collector() -> None:
    """Exempt the objects that exist now from collection: they live as long as the process."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(BACKSTOP, 1_000, 1_000)


async def tend_collector() -> None:
    loop = asyncio.get_running_loop()
    pause = SHORTEST_SECONDS
    full_at = loop.time() + pause
    while True:
        await asyncio.sleep(YOUNG_SECONDS)
        gc.collect(0)
        if loop.time() >= full_at:
            pause = next_pause(pause, gc.collect())
            full_at = loop.time() + pause


def next_pause(pause: float, garbage: int) -> float:
    """Return how long to wait for the next full collection, given how much garbage the last one found."""
    return max(SHORTEST_SECONDS, pause / 4) if garbage > MUCH else min(LONGEST_SECONDS, pause * 2)
