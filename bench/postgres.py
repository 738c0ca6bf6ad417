"""PostgreSQL: beside SQLite in the same run, and with millions of jobs beside an empty database."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from statistics import median

import asyncpg

from bench import work
from bench.bench import Bench
from bench.client import Connection, Work, connected, request
from bench.jobs import CONNECTIONS
from bench.report import Row, Sample, Target, compared_rates, megabytes
from bench.stores import PostgresStores, fill, postgres_stores, sqlite_stores
from chargehand.engine.job import SECOND
from chargehand.engine.store import OldJobs
from chargehand.store import open_store
from chargehand.store.postgres import periods

LIFE = 7 * 86_400  # seconds that finished jobs are kept
WORKS = {"accept": (64, work.submit), "cycle": (CONNECTIONS, work.cycle)}
AT_MOST = Target("≤", 1.5)

# An id of an instant, as the maker of ids would write it: ten characters of time; digits stand for chance.
_TIME = " || ".join(
    f"SUBSTR('0123456789ABCDEFGHJKMNPQRSTVWXYZ', ((ms >> {5 * n}) & 31)::INTEGER + 1, 1)" for n in range(9, -1, -1)
)
_FINISHED = f"""
WITH n AS (SELECT n, ($1::BIGINT + n * $2::BIGINT / $3::BIGINT) AS ms FROM GENERATE_SERIES($4::BIGINT, $5::BIGINT) AS n),
old AS (SELECT {_TIME} || LPAD(n::TEXT, 16, '0') AS id, n % 100 = 0 AS failed, ms * 1000 AS at FROM n),
payloads AS (INSERT INTO job_payloads SELECT id, $6 FROM old),
results AS (INSERT INTO job_results SELECT id, $6 FROM old WHERE NOT failed),
events AS (
  INSERT INTO job_events
  SELECT id, seq, at + seq, 'info', move, state, '', '', 1, '', '', NULL, NULL
  FROM old CROSS JOIN (VALUES (1, 'submit', 'queued'), (2, 'claim', 'running'), (3, 'succeed', 'succeeded')) AS m(seq, move, state))
INSERT INTO jobs (id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt, max_attempts,
                  lease, waiting_for, traceparent, tracestate, reports, seq, created_at, updated_at, finished_at, error)
SELECT id, 'job', 'default', 'bench', '', CASE WHEN failed THEN 'failed' ELSE 'succeeded' END, '',
       CASE WHEN failed THEN 'failed' ELSE 'succeeded' END, 'queued', 3, 5, at, 1, 3, 1, '', '', '', '', 3, at, at + 3, at + 3,
       CASE WHEN failed THEN 'it broke' END
FROM old
"""
_CHUNK = 100_000


async def both_stores(bench: Bench) -> AsyncIterator[Row]:
    """The same work on PostgreSQL and on SQLite; they take turns."""
    runs: dict[tuple[str, str], list[Sample]] = {}
    with sqlite_stores() as sqlite, postgres_stores() as postgres:
        async with AsyncExitStack() as stack:
            both = {
                "SQLite": Bench(sqlite, bench.scale, bench.say),
                "PostgreSQL": Bench(postgres, bench.scale, bench.say),
            }
            servers = {name: await stack.enter_async_context(each.server()) for name, each in both.items()}
            for turn in range(bench.scale.rounds + 1):
                for name, server in servers.items():
                    for what, (connections, does) in WORKS.items():
                        async with connected(server.url, connections) as opened:
                            sample = await server.run(opened, does, seconds=bench.scale.seconds)
                        if turn:  # the first warms up
                            runs.setdefault((what, name), []).append(bench.said(f"{what}, {name}", sample))
    for what, (connections, _) in WORKS.items():
        measured, baseline = runs[what, "PostgreSQL"], runs[what, "SQLite"]
        yield compared_rates(f"{what}, PostgreSQL / SQLite, {connections}", measured, baseline, Target("≥", 0.7))


def _get(path: str) -> Work:
    asked = request("GET", path)

    async def get(connection: Connection) -> None:
        await connection.expect(asked, 200)

    return get


GROWN = {
    "submit": (CONNECTIONS, work.submit),
    "claim and finish": (CONNECTIONS, work.claim_and_succeed),
    "claim and finish, alone": (1, work.claim_and_succeed),
    "list of jobs": (1, _get("/engine/jobs?limit=50")),
    "list of failed jobs": (1, _get("/engine/jobs?limit=50&state=failed")),
    "dead deliveries": (1, _get("/engine/deliveries?limit=50&state=dead")),
    "queues": (1, _get("/engine/queues")),
    "console": (1, _get("/engine/overview")),
}


async def growth(bench: Bench) -> AsyncIterator[Row]:
    """An old and large database beside an empty one: they take turns."""
    finished, queued = bench.scale.finished, bench.scale.many
    runs: dict[tuple[str, str], list[Sample]] = {}
    with postgres_stores() as stores:
        assert isinstance(stores, PostgresStores)
        here = Bench(stores, bench.scale, bench.say)
        urls = {"empty": await stores.create(), "grown": await stores.create()}
        await fill(urls["empty"], bench.scale.few)
        await fill(urls["grown"], 0)  # makes its tables
        await _finish(urls["grown"], finished, bench)
        await fill(urls["grown"], queued)
        for url in urls.values():
            await stores.tidy(url)
        async with AsyncExitStack() as stack:
            servers = {name: await stack.enter_async_context(here.server(url)) for name, url in urls.items()}
            for turn in range(bench.scale.rounds + 1):
                for what, (connections, does) in GROWN.items():
                    for name, server in servers.items():
                        async with connected(server.url, connections) as opened:
                            sample = await server.run(
                                opened, does, count=int(bench.scale.few * 0.4) if connections > 1 else 100
                            )
                        if turn:
                            runs.setdefault((what, name), []).append(bench.said(f"{what}, {name}", sample))
        for what in GROWN:
            measured, baseline = runs[what, "grown"], runs[what, "empty"]
            yield Row(
                measurement=f"{what}, {finished:,} finished and {queued:,} queued / empty",
                value=median(s.p50 * 1e3 for s in measured),
                unit="ms",
                baseline=median(s.p50 * 1e3 for s in baseline),
                ratio=median(s.p50 / b.p50 for s, b in zip(measured, baseline, strict=True)),
                target=AT_MOST,
                samples={"measured": measured, "baseline": baseline},
            )
        async for row in _pruned(urls["grown"], finished):
            yield row


async def _finish(url: str, count: int, bench: Bench) -> None:
    """Put in jobs that ended in the last week, with periods as a server would have made them."""
    connection = await asyncpg.connect(url)
    now = time.time_ns() // 1000
    began = now - LIFE * SECOND - 86_400 * SECOND
    for at in range(began, now, 3600 * SECOND):
        await periods.turn(connection, at, LIFE * SECOND)
    for first in range(0, count, _CHUNK):
        last = min(first + _CHUNK, count) - 1
        span = (began // 1000 + 3_600_000, LIFE * 1000 + 86_400_000 - 7_200_000, count)
        await connection.execute(_FINISHED, *span, first, last, work.PAYLOAD)
        if first % (10 * _CHUNK) == 0:
            bench.say(f"  {first:>12,} finished jobs")
    await connection.close()


async def _pruned(url: str, finished: int) -> AsyncIterator[Row]:
    """Drop the oldest period."""
    connection = await asyncpg.connect(url)
    before = await connection.fetchval("SELECT COUNT(*) FROM periods")
    store = await open_store(url)
    began = time.perf_counter()
    await store.prune(OldJobs(LIFE), 1000)
    taken = time.perf_counter() - began
    dropped = before - await connection.fetchval("SELECT COUNT(*) FROM periods")
    await store.close()
    await connection.close()
    yield Row(measurement=f"periods dropped: {dropped} of {before}, of {finished:,} jobs", value=taken * 1e3, unit="ms")


async def bloat(bench: Bench) -> AsyncIterator[Row]:
    """How large the tables of live jobs are after many cycles, with autovacuum as it comes."""
    count = bench.scale.cycles
    with postgres_stores() as stores:
        url = await stores.create()
        here = Bench(stores, bench.scale, bench.say)
        async with here.server(url) as server:
            for share, part in (("a tenth of them", count // 10), (f"{count:,} cycles", count - count // 10)):
                async with connected(server.url, CONNECTIONS) as opened:
                    bench.said("cycle", await server.run(opened, work.cycle, count=part))
                yield Row(
                    measurement=f"live jobs with indexes, {share}",
                    value=await _live_megabytes(url),
                    unit="MB",
                    target=Target("<", 100),
                )


async def _live_megabytes(url: str) -> float:
    connection = await asyncpg.connect(url)
    size = await connection.fetchval("SELECT pg_total_relation_size('jobs_live')")
    await connection.close()
    return megabytes(size)
