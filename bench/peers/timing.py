"""Times a peer: enqueues tasks while a worker of the peer takes and finishes them."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import msgspec

from bench.report import Sample
from chargehand.commands.bench.load import cpu_seconds, quantiles, repeat

WARM_UP = 200  # tasks of the warm-up, whose rate determines how many fill the measured time
MOST = 20_000
POLL_SECONDS = 0.01
PATIENCE_SECONDS = 120.0

Put = Callable[[], Awaitable[object]]
Finished = Callable[[], Awaitable[int]]


async def report(put: Put, finished: Finished, seconds: float, producers: int) -> None:
    """Print a sample. Its times are those of enqueuing; `finished` counts all tasks that were ever finished."""
    before = await finished()
    warm = await _run(put, finished, before + WARM_UP, WARM_UP, producers)
    count = max(WARM_UP, min(MOST, int(warm.rate * seconds)))
    sample = await _run(put, finished, before + WARM_UP + count, count, producers)
    print(msgspec.json.encode(sample).decode())


async def _run(put: Put, finished: Finished, until: int, count: int, producers: int) -> Sample:
    cpu, began = cpu_seconds(), time.perf_counter()
    async with asyncio.timeout(PATIENCE_SECONDS):
        load = await repeat(range(producers), lambda _: put(), count=count)
        await _reached(finished, until)
    seconds = time.perf_counter() - began
    return Sample(count, seconds, *quantiles(load.latencies), client_cpu=cpu_seconds() - cpu)


async def _reached(finished: Finished, count: int) -> None:
    while True:
        if await finished() >= count:
            return
        await asyncio.sleep(POLL_SECONDS)
