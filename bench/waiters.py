"""Workers that wait: what they cost while nothing happens, and how soon one has a job that comes in."""

import asyncio
import time
from collections.abc import AsyncIterator

from bench import work
from bench.bench import Bench
from bench.client import Answer, Connection, connected
from bench.report import Row, Target, quantiles

WAIT_SECONDS = 60.0
SETTLE_SECONDS = 1.0


async def waiters(bench: Bench) -> AsyncIterator[Row]:
    scale = bench.scale
    async with bench.server() as server, connected(server.url, scale.waiters) as waiting:
        answered: asyncio.Queue[float] = asyncio.Queue()

        def note(answer: "asyncio.Future[Answer]") -> None:
            if not answer.cancelled() and not answer.exception() and answer.result().status == 200:
                answered.put_nowait(time.perf_counter())

        for connection in waiting:
            connection.send(work.claiming(WAIT_SECONDS)).add_done_callback(note)
        await asyncio.sleep(SETTLE_SECONDS)
        before = server.cpu()
        await asyncio.sleep(scale.idle_seconds)
        server_percent, store_percent, others = (
            seconds / scale.idle_seconds * 100 for seconds in server.cpu().since(before)
        )
        bench.say(
            f"  idle: server {server_percent:.2f} %, store {store_percent:.2f} %, others {others:.0f} % of a core"
        )
        async with connected(server.url, 1) as [caller]:
            latencies = [await _wake(caller, answered) for _ in range(scale.wakeups)]
    label = f"{scale.waiters:,} waiters"
    yield Row(
        measurement=f"{label}, idle: share of a core",
        value=server_percent + store_percent,
        unit="%",
        target=Target("<", 5),
    )
    p50, p99 = quantiles(latencies)
    yield Row(measurement=f"{label}: submitted to claimed, p50", value=p50 * 1e3, unit="ms")
    yield Row(measurement=f"{label}: submitted to claimed, p99", value=p99 * 1e3, unit="ms", target=Target("≤", 20))


async def _wake(caller: Connection, answered: "asyncio.Queue[float]") -> float:
    """From the answer to whoever submits to the answer to whoever waits; the latter may come first."""
    await work.submit(caller)
    submitted = time.perf_counter()
    async with asyncio.timeout(WAIT_SECONDS):
        return max(0.0, await answered.get() - submitted)
