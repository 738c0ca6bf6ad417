"""Workers that wait: what they cost while nothing happens, and how soon one of them gets a new job."""

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

from bench import work
from bench.bench import Bench
from bench.client import Answer, Connection, Work, connected
from bench.report import Row, Target
from chargehand.commands.bench.load import quantiles

WAIT_SECONDS = 60.0
SETTLE_SECONDS = 1.0


async def waiters(bench: Bench) -> AsyncIterator[Row]:
    async for row in waited(bench, "waiters", work.claiming(WAIT_SECONDS), work.submit, bench.scale.wakeups):
        yield row


async def waited(bench: Bench, name: str, claim: bytes, submit: Work, wakeups: int) -> AsyncIterator[Row]:
    scale = bench.scale
    async with bench.server() as server, connected(server.url, scale.waiters) as waiting:
        answered: asyncio.Queue[float] = asyncio.Queue()

        def wait(connection: Connection) -> None:
            connection.send(claim).add_done_callback(partial(note, connection))

        def note(connection: Connection, answer: "asyncio.Future[Answer]") -> None:
            if answer.cancelled() or answer.exception():
                return
            if answer.result().status == 200:
                answered.put_nowait(time.perf_counter())
            elif answer.result().status == 204:  # no job came within the longest wait
                wait(connection)

        for connection in waiting:
            wait(connection)
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
            latencies = [await _wake(caller, submit, answered) for _ in range(wakeups)]
    label = f"{scale.waiters:,} {name}"
    yield Row(
        measurement=f"{label}, idle: share of a core",
        value=server_percent + store_percent,
        unit="%",
        target=Target("<", 5),
    )
    p50, p99 = quantiles(latencies)
    yield Row(measurement=f"{label}: submitted to claimed, p50", value=p50 * 1e3, unit="ms")
    yield Row(measurement=f"{label}: submitted to claimed, p99", value=p99 * 1e3, unit="ms", target=Target("≤", 20))


async def _wake(caller: Connection, submit: Work, answered: "asyncio.Queue[float]") -> float:
    """Measure from the answer to the submitter to the answer to the waiting worker; the latter may come first."""
    await submit(caller)
    submitted = time.perf_counter()
    async with asyncio.timeout(WAIT_SECONDS):
        return max(0.0, await answered.get() - submitted)
