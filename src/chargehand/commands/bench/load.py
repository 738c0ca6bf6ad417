"""One operation again and again by many callers at once, and how long it took. `make bench` measures with it too."""

import asyncio
import math
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

C = TypeVar("C")


class Timings(NamedTuple):
    seconds: float  # of the whole run
    latencies: list[float]  # of each operation
    client_cpu: float


async def repeat(
    callers: Sequence[C],
    work: Callable[[C], Awaitable[object]],
    *,
    seconds: float = 3600.0,
    count: int | None = None,
    spread_seconds: float = 0.0,
) -> Timings:
    """Let all callers do the work over and over, until the time is over or it was done `count` times.

    They begin one after the other within `spread_seconds`: callers that begin at once and take as long stay in step for ever.
    """
    latencies: list[float] = []
    clock = time.perf_counter
    left = iter(range(count)) if count is not None else None
    cpu, began = cpu_seconds(), clock()
    until = began + seconds

    async def on(caller: C, delay_seconds: float) -> None:
        await asyncio.sleep(delay_seconds)
        now = clock()
        while now < until and (left is None or next(left, None) is not None):
            await work(caller)
            then, now = now, clock()
            latencies.append(now - then)

    await at_once(on(caller, spread_seconds * number / len(callers)) for number, caller in enumerate(callers))
    return Timings(clock() - began, latencies, cpu_seconds() - cpu)


async def at_once(works: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Wait until all have ended, or the first has failed: then cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    ordered = sorted(values)
    return percentile(ordered, 50), percentile(ordered, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the smallest value that so many percent do not exceed."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]
