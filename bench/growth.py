"""PostgreSQL with millions of jobs beside an empty database, and after a million cycles."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack
from statistics import median

import asyncpg

from bench import grown, work
from bench.bench import Bench
from bench.client import Connection, Work, connected, request
from bench.jobs import CONNECTIONS
from bench.processes import running
from bench.report import Row, Sample, Target, megabytes
from bench.stores import postgres_stores
from chargehand.engine.job import SECOND
from chargehand.engine.store import OldJobs, OldPeriods
from chargehand.store import open_store
from chargehand.store.postgres.connecting import Connection as Connected

CALLS = 100  # of one after another
PRUNED = 1_000  # jobs
AT_LONGEST = 20.0  # seconds: of one run, should a call take long
A_DAY = 86_400.0  # seconds: a bound that no run should meet
AT_MOST = Target("≤", 1.5)
_SMALL = Target("<", 100)
_TABLES = (
    ("jobs_live", "live jobs", _SMALL),
    ("deliveries_pending", "pending deliveries", _SMALL),
    ("job_keys", "keys", None),
)


Works = Mapping[str, tuple[int, Work]]  # on so many connections


def get(path: str) -> Work:
    asked = request("GET", path)

    async def get(connection: Connection) -> None:
        await connection.expect(asked, 200)

    return get


_WORKS = {
    "submit": (CONNECTIONS, work.submit),
    "claim and finish": (CONNECTIONS, work.claim_and_succeed),
    "claim and finish, alone": (1, work.claim_and_succeed),
    "list of jobs": (1, get("/engine/jobs?limit=50")),
    "list of failed jobs": (1, get("/engine/jobs?limit=50&state=failed")),
    "list of finished jobs": (1, get("/engine/jobs?limit=50&state=succeeded")),
    "list of queued jobs": (1, get("/engine/jobs?limit=50&state=queued")),
    "list of running jobs": (1, get("/engine/jobs?limit=50&state=running")),
    "list of a queue's jobs": (1, get("/engine/jobs?limit=50&queue=bench")),
    "list of a rare queue's jobs": (1, get(f"/engine/jobs?limit=50&queue={grown.RARE}")),
    "list of a day's jobs": (1, get(f"/engine/jobs?limit=50&since={grown.days_ago(3)}&until={grown.days_ago(2)}")),
    "dead deliveries": (1, get("/engine/deliveries?limit=50&state=dead")),
    "queues": (1, get("/engine/queues")),
    "metrics": (1, get("/metrics")),
    "console": (1, get("/engine/overview")),
}


async def growth(bench: Bench) -> AsyncIterator[Row]:
    """An old and large database beside an empty one: they take turns."""
    with postgres_stores(bench.kept) as stores:
        urls = {"empty": await grown.empty(bench, stores), "grown": await grown.grown(bench, stores)}
        async for row in compared(Bench(stores, bench.scale, bench.say), urls, _WORKS):
            yield row
        async for row in _pruned(urls):
            yield row


async def compared(bench: Bench, urls: dict[str, str], works: Works) -> AsyncIterator[Row]:
    for what, (measured, baseline) in (await _taken(bench, urls, works)).items():
        yield Row(
            measurement=f"{what}, grown / empty",
            value=median(s.p50 * 1e3 for s in measured),
            unit="ms",
            baseline=median(s.p50 * 1e3 for s in baseline),
            ratio=median(s.p50 / b.p50 for s, b in zip(measured, baseline, strict=True)),
            target=AT_MOST,
            samples={"measured": measured, "baseline": baseline},
        )


async def _taken(bench: Bench, urls: dict[str, str], works: Works) -> dict[str, tuple[list[Sample], list[Sample]]]:
    runs: dict[str, tuple[list[Sample], list[Sample]]] = {what: ([], []) for what in works}
    async with AsyncExitStack() as stack:
        servers = [
            (name, await stack.enter_async_context(bench.server(urls[name], retention__finished_seconds=0)))
            for name in ("grown", "empty")
        ]
        for turn in range(bench.scale.rounds + 1):
            for what, (connections, does) in works.items():
                for (name, server), samples in zip(servers, runs[what], strict=True):
                    async with connected(server.url, connections) as opened:
                        count = CALLS if connections == 1 else int(bench.scale.few * 0.4)
                        sample = await server.run(opened, does, count=count, seconds=AT_LONGEST)
                    if turn:  # the first warms up
                        samples.append(bench.said(f"{what}, {name}", sample))
    return runs


async def _pruned(urls: dict[str, str]) -> AsyncIterator[Row]:
    """Drop the oldest period, which has an eighth of the jobs, then remove jobs that lie in none."""
    times = {name: await _prune(url) for name, url in urls.items()}
    for what in times["grown"]:
        value, baseline = times["grown"][what], times["empty"][what]
        yield Row(
            measurement=f"{what}, grown / empty",
            value=value * 1e3,
            unit="ms",
            baseline=baseline * 1e3,
            ratio=value / baseline,
            target=AT_MOST,
        )


async def _prune(url: str) -> dict[str, float]:
    await grown.leave_in_no_period(url, PRUNED)
    store = await open_store(url)
    old = OldJobs(grown.LIFE / SECOND)
    connection = await asyncpg.connect(url)
    reading = asyncio.create_task(_longest_read(connection))
    dropping = await _seconds(store.prune(OldPeriods(old.age_seconds), 1))
    reading.cancel()
    longest = await reading
    await connection.close()
    removing = await _seconds(store.prune(old, PRUNED))
    await store.close()
    return {"dropping a period": dropping, "longest read meanwhile": longest, f"removing {PRUNED} jobs": removing}


async def _seconds(doing: Awaitable[object]) -> float:
    began = time.perf_counter()
    await doing
    return time.perf_counter() - began


async def _longest_read(connection: Connected) -> float:
    """Look for a job again and again, until cancelled."""
    longest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            longest = max(longest, await _seconds(connection.fetch("SELECT 1 FROM jobs WHERE id = 'none'")))
            await asyncio.sleep(0.001)
    return longest


async def bloat(bench: Bench) -> AsyncIterator[Row]:
    """How large the tables of what is under way are after many cycles, with autovacuum as it comes. Keys stay as long as their jobs."""
    count, done = bench.scale.cycles, 0
    with postgres_stores() as stores:
        url = await stores.create()
        here = Bench(stores, bench.scale, bench.say)
        async with running("receiver") as (_, [receiver, _]), here.server(url) as server:
            cycle = work.cycle_with_some_told(f"{receiver}/told")
            for part in (count // 10, count - count // 10):
                async with connected(server.url, CONNECTIONS) as opened:
                    sample = bench.said("cycle", await server.run(opened, cycle, count=part, seconds=A_DAY))
                done += sample.operations
                for table, what, target in _TABLES:
                    yield Row(
                        measurement=f"{what} with indexes, {done:,} cycles",
                        value=await _megabytes_of(url, table),
                        unit="MB",
                        target=target,
                    )


async def _megabytes_of(url: str, table: str) -> float:
    connection = await asyncpg.connect(url)
    size = await connection.fetchval("SELECT pg_total_relation_size($1::REGCLASS)", table)
    await connection.close()
    return megabytes(size)
