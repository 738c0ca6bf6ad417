"""Two databases to compare: one that is empty but for a page of everything, and one with the jobs of a week."""

import time

import asyncpg

from bench.bench import Bench
from bench.stores import PostgresStores, fill
from bench.work import PAYLOAD
from chargehand.engine.job import SECOND, rfc3339
from chargehand.store.postgres import periods

LIFE = 7 * 86_400 * SECOND  # that finished jobs are kept
DAY, HOUR = 86_400 * SECOND, 3_600 * SECOND
PAGE = 10_000  # finished jobs of which enough failed for a page, and as many as a list searches for one
RARE = "rare"  # the queue of one finished job in a hundred thousand

# An id of an instant, as the maker of ids would write it: ten characters of time; digits stand for chance.
_TIME = " || ".join(
    f"SUBSTR('0123456789ABCDEFGHJKMNPQRSTVWXYZ', ((ms >> {5 * n}) & 31)::INTEGER + 1, 1)" for n in range(9, -1, -1)
)
# One in a hundred failed, and its webhook too; one in ten has a webhook and an idempotency key.
_FINISHED = f"""
WITH n AS (SELECT n, (($1::BIGINT + n * $2::BIGINT / $3::BIGINT) / 1000) AS ms FROM GENERATE_SERIES($4::BIGINT, $5::BIGINT) AS n),
old AS (
  SELECT {_TIME} || LPAD(n::TEXT, 16, '0') AS id, n % 100 = 0 AS failed, n % 100000 = 0 AS rare, CASE WHEN n % 10 = 0 THEN 'key ' || n END AS key, ms * 1000 AS at
  FROM n),
payloads AS (INSERT INTO job_payloads SELECT id, $6 FROM old),
results AS (INSERT INTO job_results SELECT id, $6 FROM old WHERE NOT failed),
keys AS (INSERT INTO job_keys SELECT 'default', 'job', key, id, '' FROM old WHERE key IS NOT NULL),
events AS (
  INSERT INTO job_events
  SELECT id, seq, at + seq, 'info', move, state, '', '', 1, '', '', NULL, NULL
  FROM old CROSS JOIN (VALUES (1, 'submit', 'queued'), (2, 'claim', 'running'), (3, 'succeed', 'succeeded')) AS m(seq, move, state)),
webhooks AS (
  INSERT INTO deliveries
  SELECT id, 'default', id, 3, 'grown', 'http://127.0.0.1:9/', 'engine', CASE WHEN failed THEN 'dead' ELSE 'delivered' END, 1, 1, 1, NULL,
         at + 3, at + 3, '', at + 3, at + 3
  FROM old WHERE key IS NOT NULL),
tries AS (INSERT INTO delivery_tries SELECT id, id, 1, at + 3, 200, 0.01, '', '' FROM old WHERE key IS NOT NULL)
INSERT INTO jobs (id, kind, tenant, queue, node, state, stage, topic, previous, topic_seq, priority, run_at, attempt, max_attempts,
                  lease, waiting_for, traceparent, tracestate, reports, seq, created_at, updated_at, finished_at, error, idempotency_key)
SELECT id, 'job', 'default', CASE WHEN rare THEN '{RARE}' ELSE 'bench' END, '', CASE WHEN failed THEN 'failed' ELSE 'succeeded' END, '',
       CASE WHEN failed THEN 'failed' ELSE 'succeeded' END, 'queued', 3, 5, at, 1, 3, 1, '', '', '', '', 3, at, at + 3, at + 3,
       CASE WHEN failed THEN 'it broke' END, key
FROM old
"""
_ENDPOINT = """
INSERT INTO endpoints (id, tenant, url, state, reason, created_at, updated_at)
VALUES ('grown', 'default', 'http://127.0.0.1:9', 'active', '', $1, $1)
"""
_CHUNK = 100_000
_APART = 10**9  # numbers of jobs from here on are not among the others


async def empty(bench: Bench, stores: PostgresStores) -> str:
    """Return a database with a page of everything, and a period that is old."""
    url = await stores.add("empty")
    await fill(url, bench.scale.few)
    began = _now() - LIFE - DAY
    await _make_periods(url, began, began + HOUR)
    await _finish(url, PAGE, bench)
    await stores.tidy(url)
    return url


async def grown(bench: Bench, stores: PostgresStores) -> str:
    """Return a copy of the database that is kept; it is filled where there is none."""
    name = f"grown_{bench.scale.finished}_{bench.scale.many}_{RARE}"
    if not await stores.has(name):
        url = await stores.add("filling")
        await fill(url, 0)  # makes its tables
        await _make_periods(url, _now() - LIFE - DAY, _now())
        await _finish(url, bench.scale.finished, bench)
        bench.say(f"  {bench.scale.many:>12,} queued jobs")
        await fill(url, bench.scale.many)
        await stores.tidy(url)
        await stores.rename("filling", name)
    return await stores.add("grown", name)


async def leave_in_no_period(url: str, count: int) -> None:
    """Put in jobs that ended before all periods."""
    connection = await asyncpg.connect(url)
    await connection.execute(_FINISHED, _now() - LIFE - 9 * DAY, 0, count, _APART, _APART + count - 1, PAYLOAD)
    await connection.close()


async def _make_periods(url: str, began: int, until: int) -> None:
    """Make the periods that a server would have made in this time, and ends with it."""
    connection = await asyncpg.connect(url)
    for at in range(began, until, HOUR):
        await periods.keep_ahead(connection, at, LIFE)
    await connection.close()


async def _finish(url: str, count: int, bench: Bench) -> None:
    """Put in jobs that ended in the last eight days."""
    connection = await asyncpg.connect(url)
    began, length = _now() - LIFE - DAY + HOUR, LIFE + DAY - 2 * HOUR
    await connection.execute(_ENDPOINT, began)
    for first in range(0, count, _CHUNK):
        last = min(first + _CHUNK, count) - 1
        await connection.execute(_FINISHED, began, length, count, first, last, PAYLOAD)
        if first % (10 * _CHUNK) == 0:
            bench.say(f"  {first:>12,} finished jobs")
    await connection.close()


def days_ago(days: int) -> str:
    return rfc3339(_now() - days * DAY)


def _now() -> int:
    return time.time_ns() // 1000
