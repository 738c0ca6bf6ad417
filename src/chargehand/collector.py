"""Python's garbage collector, in steps that no caller notices.

By itself it looks at the young objects once many more were made than freed. A server makes about as many as it frees, so that comes
late, and by then nearly all objects are young: with 1,000 machines waiting, one look stopped the loop for 100 ms. So the young ones are
looked at ten times a second, when they are few. All objects are looked at the less often, the less garbage there was among them.
"""

import asyncio
import gc

YOUNG_SECONDS = 0.1
SHORTEST_SECONDS = 5.0  # between two looks at all objects
LONGEST_SECONDS = 600.0
MUCH = 10_000  # objects that were garbage in one look at all of them
BACKSTOP = 100_000  # young objects more than were freed, at which Python looks by itself, however busy the loop is


def calm_collector() -> None:
    """What was made at the start lives as long as the process: it is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(BACKSTOP, 1_000, 1_000)


async def tend_collector() -> None:
    loop = asyncio.get_running_loop()
    pause = SHORTEST_SECONDS
    look_at = loop.time() + pause
    while True:
        await asyncio.sleep(YOUNG_SECONDS)
        gc.collect(0)
        if loop.time() >= look_at:
            pause = next_pause(pause, gc.collect())
            look_at = loop.time() + pause


def next_pause(pause: float, garbage: int) -> float:
    """How long to wait for the next look at all objects, by how many the last one found to be garbage."""
    return max(SHORTEST_SECONDS, pause / 4) if garbage > MUCH else min(LONGEST_SECONDS, pause * 2)
