"""Periods: what is over lies in the tables of its time, which are dropped when all in them is old enough.

All rows of a job belong to the period in which its id was made. What outlives its period goes to the rest, the tables for all that
has none, and is removed from there row by row. So finished jobs stay a little longer than they must.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg

from chargehand.engine.ids import first_id_at, made_at
from chargehand.engine.job import SECOND
from chargehand.errors import StoreError
from chargehand.store.postgres.connecting import Connection

IN_A_LIFE = 8  # periods in the time that finished jobs are kept
SHORTEST = 60 * SECOND
AHEAD = 60 * SECOND  # a period is made so long before it begins, since the clocks of nodes differ
# Whoever reads or writes waits behind a lock that we wait for. Less than PostgreSQL's deadlock_timeout: we are the ones to give up.
LOCK_MILLISECONDS = 500

LEFT_BEHIND = ("job_payloads", "job_results", "job_events", "delivery_tries", "flow_steps", "flow_edges")
TABLES = ("jobs_over", "deliveries_over", *LEFT_BEHIND)

KEYS_AT_A_TIME = 10_000

# The jobs that outlive a period, by the time, their age and the bounds of the period: a seek for each reason, since there may be
# millions of others and everybody waits meanwhile.
_OUTLIVING = """ANY(ARRAY(
    SELECT o.id FROM {part} o WHERE o.prune_at > $1
    UNION ALL SELECT o.id FROM {part} o WHERE o.prune_at IS NULL AND o.finished_at > $1::BIGINT - $2::BIGINT
    UNION ALL SELECT d.job_id FROM deliveries_pending d WHERE d.job_id >= $3 AND d.job_id < $4))"""
# A step outlives it with its flow, whose id was made just before its own.
_OF_A_FLOW = """p.flow = ANY(ARRAY(
    SELECT f.id FROM jobs f
    WHERE f.kind = 'flow' AND f.id >= (SELECT MIN(s.flow) FROM {part} s WHERE s.flow IS NOT NULL) AND f.id < $1))"""
_SOME_KEYS = """DELETE FROM job_keys WHERE job_id = ANY(ARRAY(
    SELECT k.job_id FROM job_keys k JOIN {part} p ON p.id = k.job_id
    WHERE k.job_id >= $3 AND k.job_id < $4 AND p.flow IS NULL AND NOT k.job_id = {outliving}
    ORDER BY k.job_id LIMIT $5))"""
# What belongs to a job that is there, by the bounds of the period. The array tells the planner that few are meant; else it would read whole tables.
_OF_A_JOB = "p.job_id = ANY(ARRAY(SELECT j.id FROM jobs j WHERE j.id >= $1 AND j.id < $2))"


class Period(NamedTuple):
    first_id: str
    until_id: str

    def of(self, table: str) -> str:
        return f"{table}_{self.first_id[:10].lower()}"


async def turn(connection: Connection, now: int, age: int) -> bool:
    """Make the next period in good time, and drop those that are older than `age`; return whether there were any."""
    [(last, oldest)] = await connection.fetch("SELECT MAX(until_id), MIN(until_id) FROM periods")
    length = max(age // IN_A_LIFE, SHORTEST)
    if last is None or last < first_id_at(now + length):
        await make(connection, now, length)
    if oldest is None or oldest > first_id_at(now - age):
        return False
    await _drop_old(connection, now, age)
    return True


@asynccontextmanager
async def _alone(connection: Connection) -> AsyncIterator[None]:
    """Begin a transaction for which other nodes wait that want to do the same."""
    async with connection.transaction():
        await connection.execute("LOCK TABLE periods IN SHARE ROW EXCLUSIVE MODE")  # no caller waits behind this one
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
        yield


async def make(connection: Connection, now: int, length: int) -> None:
    """Make the period after the last one, unless that is in the future already."""
    async with _alone(connection):
        last = await connection.fetchval("SELECT MAX(until_id) FROM periods")
        if last is not None and last >= first_id_at(now + length):
            return  # another node was quicker
        begins = now + AHEAD if last is None else max(now + AHEAD, round(made_at(last) * SECOND))
        period = Period(first_id_at(begins), first_id_at(begins + length))
        await connection.execute("INSERT INTO periods (first_id, until_id) VALUES ($1, $2)", *period)
        for table in TABLES:
            await _make_table(connection, table, period)


async def _make_table(connection: Connection, table: str, period: Period) -> None:
    await connection.execute(f"CREATE TABLE {period.of(table)} (LIKE {table}_rest INCLUDING ALL)")
    bounds = f"FOR VALUES FROM ('{period.first_id}') TO ('{period.until_id}')"
    try:
        await connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {period.of(table)} {bounds}")
    except asyncpg.CheckViolationError:
        raise StoreError(f"PostgreSQL: {table} has rows of the future; is the clock of a node wrong?") from None


async def _drop_old(connection: Connection, now: int, age: int) -> None:
    old = "SELECT first_id, until_id FROM periods WHERE until_id <= $1 ORDER BY first_id"
    for row in await connection.fetch(old, first_id_at(now - age)):
        period = Period(*row)
        while await _free_keys(connection, period, now, age):
            pass
        async with _alone(connection):
            if await _has(connection, period, "jobs_over"):
                await _drop_jobs(connection, period, now, age)
        # Without their jobs nobody finds these; should we end in between, the next turn goes on here.
        for table in LEFT_BEHIND:
            async with _alone(connection):
                if await _has(connection, period, table):
                    await _drop_table(connection, table, period, _OF_A_JOB, *period)
        await connection.execute("DELETE FROM periods WHERE first_id = $1", period.first_id)


async def _has(connection: Connection, period: Period, table: str) -> bool:
    return bool(await connection.fetchval("SELECT to_regclass($1) IS NOT NULL", period.of(table)))


async def _free_keys(connection: Connection, period: Period, now: int, age: int) -> bool:
    """Free idempotency keys of jobs that will be dropped; return whether there may be more.

    There may be as many as jobs, so they go a few at a time, before the lock for which everybody waits.
    """
    async with _alone(connection):
        if not await _has(connection, period, "jobs_over"):
            return False
        part = period.of("jobs_over")
        some = _SOME_KEYS.format(part=part, outliving=_OUTLIVING.format(part=part))
        freed = await connection.execute(some, now, age, *period, KEYS_AT_A_TIME)
        return int(freed.removeprefix("DELETE ")) == KEYS_AT_A_TIME


async def _drop_jobs(connection: Connection, period: Period, now: int, age: int) -> None:
    """Drop jobs with their deliveries, so that none can be sent or replayed for a job that is gone."""
    await connection.execute("LOCK TABLE jobs_over, deliveries_over IN ACCESS EXCLUSIVE MODE")
    await connection.execute("LOCK TABLE deliveries_pending IN SHARE MODE")
    outliving = _OUTLIVING.format(part=period.of("jobs_over"))
    await _detach(connection, "jobs_over", period)
    await _keep(connection, "jobs_over", period, f"p.id = {outliving}", now, age, *period)
    await _keep(connection, "jobs_over", period, _OF_A_FLOW.format(part=period.of("jobs_over")), period.until_id)
    await connection.execute(f"DROP TABLE {period.of('jobs_over')}")
    await _drop_table(connection, "deliveries_over", period, _OF_A_JOB, *period)
    for table in ("job_keys", "files", "flow_steps_rest", "flow_edges_rest"):
        await connection.execute(
            f"DELETE FROM {table} t WHERE t.job_id >= $1 AND t.job_id < $2"  # noqa: S608 - names of our own
            " AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = t.job_id)",
            *period,
        )


async def _drop_table(connection: Connection, table: str, period: Period, outlives: str, *values: str | int) -> None:
    await _detach(connection, table, period)
    await _keep(connection, table, period, outlives, *values)
    await connection.execute(f"DROP TABLE {period.of(table)}")


async def _detach(connection: Connection, table: str, period: Period) -> None:
    await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {period.of(table)}")


async def _keep(connection: Connection, table: str, period: Period, outlives: str, *values: str | int) -> None:
    """Take what outlives the period out of its table, to where such things lie."""
    await connection.execute(
        f"WITH kept AS (DELETE FROM {period.of(table)} p WHERE {outlives} RETURNING p.*) "  # noqa: S608
        f"INSERT INTO {table} SELECT * FROM kept",
        *values,
    )
