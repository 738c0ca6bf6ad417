"""Periods: what is over lies in the tables of its time, which are dropped when all in them is old enough.

All rows of a job belong to the period in which its id was made. Periods follow each other without a gap. The last one is open: all ids
from its first on belong to it. It is ended in good time and the next one opened, so it lies in the future and has next to no rows.

What outlives its period goes to the rest, the tables for all that has none, and is removed from there row by row. So finished jobs
stay a little longer than they must. A period that much outlives stays; then its jobs too are removed row by row.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import asyncpg

from chargehand.engine.ids import first_id_at, made_at
from chargehand.engine.job import SECOND
from chargehand.errors import StoreError
from chargehand.store.postgres.connecting import Connection

IN_A_LIFE = 8  # periods in the time that finished jobs are kept
SHORTEST = 60 * SECOND
AHEAD = 60 * SECOND  # a period begins so long after it is opened, since the clocks of nodes differ
# Whoever reads or writes waits behind a lock that we wait for. Less than PostgreSQL's deadlock_timeout: we are the ones to give up.
LOCK_MILLISECONDS = 500
# Any statement under such a lock takes less than callers have patience. What is bounded below takes much less.
HOLD_MILLISECONDS = 4000
MOST_MOVED = 5_000  # rows that outlive a period, in each of its tables, moved while everybody waits
ROW_BYTES = 10_000  # a row that is longer counts for several
MOST_SCANNED = 256 * 2**20  # bytes of a table, read while everybody waits
AT_A_TIME = 10_000
SCAN_SECONDS = 24 * 3600.0  # while nobody waits

NEVER = "z"  # sorts behind every id: the end of the period that is open

LEFT_BEHIND = ("job_payloads", "job_results", "job_events", "delivery_tries", "flow_steps", "flow_edges")
TABLES = ("jobs_over", "deliveries_over", *LEFT_BEHIND)
# What else there is of a job, in no period.
ELSEWHERE = ("job_keys", "files", "flow_steps_rest", "flow_edges_rest")
_LONG = {"job_payloads": "p.payload", "job_results": "p.result", "job_events": "p.data"}

# The arrays tell the planner that few are meant; else it would read whole tables. It seeks each of them in an index: without one it
# would compare each row with each of them.
#
# The jobs that outlive a period, by the time, their age and the bounds of the period: a seek for each reason, since there may be
# millions of others and everybody waits meanwhile.
_OUTLIVING = """
    SELECT o.id FROM {part} o WHERE o.prune_at > $1
    UNION ALL SELECT o.id FROM {part} o WHERE o.prune_at IS NULL AND o.finished_at > $1::BIGINT - $2::BIGINT
    UNION ALL SELECT d.job_id FROM deliveries_pending d WHERE d.job_id >= $3 AND d.job_id < $4"""
# A step outlives it with its flow, whose id was made just before its own.
_OF_A_FLOW = """p.flow = ANY(ARRAY(
    SELECT f.id FROM jobs f
    WHERE f.kind = 'flow' AND f.id >= (SELECT MIN(s.flow) FROM {part} s WHERE s.flow IS NOT NULL) AND f.id < $1))"""
# What else has rows that outlive the period: its live jobs, and the steps of such flows.
_ALSO_OUTLIVING = """
    SELECT j.id FROM jobs_live j WHERE j.id >= $3 AND j.id < $4
    UNION ALL SELECT s.id FROM {part} s JOIN jobs f ON f.id = s.flow
    WHERE s.flow IS NOT NULL AND (f.finished_at IS NULL OR COALESCE(f.prune_at, f.finished_at + $2::BIGINT) > $1
      OR EXISTS (SELECT 1 FROM deliveries_pending d WHERE d.job_id = f.id))"""
_OF_JOBS = dict.fromkeys(TABLES, "p.job_id = ANY({jobs})") | {
    "delivery_tries": "p.delivery_id = ANY(ARRAY(SELECT d.id FROM deliveries d WHERE d.job_id = ANY({jobs})))"
}
_THERE = "ARRAY(SELECT j.id FROM jobs j WHERE j.id >= $1 AND j.id < $2)"
_FORGET_SOME = """
    WITH next AS MATERIALIZED (SELECT t.job_id FROM {table} t WHERE t.job_id > $1 AND t.job_id < $2 ORDER BY t.job_id LIMIT $3),
    forgotten AS (
      DELETE FROM {table} t WHERE t.job_id = ANY(ARRAY(SELECT DISTINCT n.job_id FROM next n))
      AND NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = t.job_id AND j.id > $1 AND j.id < $2))
    SELECT MAX(n.job_id) FROM next n"""
_LOCK = "'periods'::REGCLASS::OID::BIGINT"


class Period(NamedTuple):
    first_id: str
    until_id: str

    def of(self, table: str) -> str:
        return f"{table}_{self.first_id[:10].lower()}"


async def turn(connection: Connection, now: int, age: int) -> bool:
    """Open the next period in good time, and drop those that are older than `age`; return whether any was dropped.

    If another node is at it, nothing is done.
    """
    if not await connection.fetchval(f"SELECT pg_try_advisory_lock({_LOCK})"):
        return False
    try:
        await keep_ahead(connection, now, age)
        dropped = await _drop_old(connection, now, age)
    except BaseException as error:
        if isinstance(error, (asyncpg.PostgresError, StoreError)):
            await connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")
        else:
            connection.terminate()  # a statement may still run
        raise
    await connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")
    return dropped


@asynccontextmanager
async def _briefly(connection: Connection) -> AsyncIterator[None]:
    """Begin a transaction whose locks callers can wait for."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}")
        await connection.execute(f"SET LOCAL statement_timeout = {HOLD_MILLISECONDS}")
        yield


# making -----------------------------------------------------------------------------------------------------------------


async def keep_ahead(connection: Connection, now: int, age: int) -> None:
    """Open the next period before the one that is open begins."""
    opened = await _opened(connection)
    if opened is not None:
        await _complete(connection, opened)  # the last turn was broken off
    # Where much outlives its period, periods stay for longer than `age`; they get longer then, so that they do not get many.
    oldest = await connection.fetchval("SELECT MIN(until_id) FROM periods WHERE until_id < $1", NEVER)
    kept = 0 if oldest is None else now - _at(oldest)
    length = max(max(age, kept) // IN_A_LIFE, SHORTEST)
    if opened is None:
        await _refuse_large(connection, opened)
        opened = await _open(connection, None, now + AHEAD)
    if opened.first_id < first_id_at(now + length):
        await _refuse_large(connection, opened)
        await _open(connection, opened, max(_at(opened.first_id), now + AHEAD) + length)


async def too_large(connection: Connection) -> bool:
    """Return whether no turn can open the next period, but a start at which no other node is there."""
    return bool(await _large(connection, await _opened(connection)))


async def renew(connection: Connection, now: int) -> None:
    """Open the next period now, within the caller's transaction and however long it takes."""
    opened = await _opened(connection)
    at = now + AHEAD if opened is None else max(_at(opened.first_id), now) + AHEAD
    before, opened = await _record(connection, opened, at)
    for table in TABLES:
        await _make(connection, table, before, opened)


async def _opened(connection: Connection) -> Period | None:
    row = await connection.fetchrow("SELECT first_id, until_id FROM periods WHERE until_id = $1", NEVER)
    return None if row is None else Period(*row)


def _at(first_id: str) -> int:
    return round(made_at(first_id) * SECOND)


async def _refuse_large(connection: Connection, opened: Period | None) -> None:
    if part := await _large(connection, opened):
        raise StoreError(
            f"PostgreSQL: {part} is too large to be looked through while others wait, so finished jobs are removed one by one; "
            "when all nodes were stopped, the first one that starts does it"
        )


async def _large(connection: Connection, opened: Period | None) -> str:
    """Return a table in which there may be rows of the next period and which is not small."""
    for table in TABLES:
        part = _before(table, opened)
        if (await connection.fetchval("SELECT pg_relation_size(to_regclass($1))", part) or 0) > MOST_SCANNED:
            return part
    return ""


async def _open(connection: Connection, before: Period | None, at: int) -> Period:
    """Open a period from an instant on: table by table, since whoever writes has some of them and wants others."""
    if before is not None:
        await _prove(connection, before, TABLES)
    async with _briefly(connection):
        before, opened = await _record(connection, before, at)
        await _make(connection, TABLES[0], before, opened)
    await _make_each(connection, TABLES[1:], before, opened)
    return opened


async def _record(connection: Connection, before: Period | None, at: int) -> tuple[Period | None, Period]:
    last = await connection.fetchval("SELECT MAX(until_id) FROM periods WHERE until_id < $1", NEVER)
    if before is None and last is not None:  # periods of an earlier version, none of which was open
        at = max(at, _at(last) + AHEAD)
    opened = Period(first_id_at(at), NEVER)
    if before is not None:
        before = Period(before.first_id, opened.first_id)
        await connection.execute("UPDATE periods SET until_id = $2 WHERE first_id = $1", *before)
    await connection.execute("INSERT INTO periods (first_id, until_id) VALUES ($1, $2)", *opened)
    return before, opened


async def _complete(connection: Connection, opened: Period) -> None:
    row = await connection.fetchrow("SELECT first_id, until_id FROM periods WHERE until_id = $1", opened.first_id)
    before = None if row is None else Period(*row)
    missing = [table for table in TABLES if not await _is_attached(connection, opened.of(table))]
    if before is not None and missing:
        await _prove(connection, before, missing)
    await _make_each(connection, missing, before, opened)


async def _prove(connection: Connection, before: Period, tables: Sequence[str]) -> None:
    """Let PostgreSQL look through the rest, which may be large, while nobody waits: when a table is attached it would while all do.

    No row can violate what is said of the rest: all ids from this one on belong to periods that are there.
    """
    for table in tables:
        async with _briefly(connection):
            await connection.execute(
                f"ALTER TABLE {table}_rest DROP CONSTRAINT IF EXISTS {table}_before, "
                f"ADD CONSTRAINT {table}_before CHECK ({_key(table)} < '{before.first_id}') NOT VALID"
            )
        async with connection.transaction():
            await connection.execute("SET LOCAL statement_timeout = 0")
            await connection.execute(
                f"ALTER TABLE {table}_rest VALIDATE CONSTRAINT {table}_before", timeout=SCAN_SECONDS
            )


async def _make_each(connection: Connection, tables: Sequence[str], before: Period | None, opened: Period) -> None:
    for table in tables:
        async with _briefly(connection):
            await _make(connection, table, before, opened)


async def _make(connection: Connection, table: str, before: Period | None, opened: Period) -> None:
    """Make a table of the period that is opened. Rows of it that are there, by clocks that are early, go into it."""
    await connection.execute(f"LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE")
    if before is not None:
        await _detach(connection, table, before)
    part, there = opened.of(table), _before(table, before)
    await connection.execute(f"CREATE TABLE {part} (LIKE {there} INCLUDING ALL)")
    await _move(connection, there, part, f"p.{_key(table)} >= $1", opened.first_id)
    await _attach(connection, table, opened)
    if before is not None:
        await _attach(connection, table, before)
    await connection.execute(f"ALTER TABLE {table}_rest DROP CONSTRAINT IF EXISTS {table}_before")


def _before(table: str, before: Period | None) -> str:
    return f"{table}_rest" if before is None else before.of(table)


def _key(table: str) -> str:
    return "id" if table == "jobs_over" else "job_id"


# dropping ---------------------------------------------------------------------------------------------------------------


async def _drop_old(connection: Connection, now: int, age: int) -> bool:
    old = "SELECT first_id, until_id FROM periods WHERE until_id <= $1 ORDER BY first_id"
    dropped = False
    for row in await connection.fetch(old, first_id_at(now - age)):
        period = Period(*row)
        if await _little_outlives(connection, period, now, age):
            await _drop(connection, period, now, age)
            dropped = True
    return dropped


async def _little_outlives(connection: Connection, period: Period, now: int, age: int) -> bool:
    if not await _is_attached(connection, period.of("jobs_over")):
        return True  # it is known: the last turn was broken off
    part = period.of("jobs_over")
    rows = await connection.fetch(
        f"{_OUTLIVING} UNION ALL {_ALSO_OUTLIVING} LIMIT $5".format(part=part),
        *(now, age, *period, MOST_MOVED + 1),
    )
    jobs = [row[0] for row in rows]
    if len(jobs) > MOST_MOVED:
        return False
    for table in TABLES[1:]:
        count = await connection.fetchval(
            f"SELECT SUM(1 + COALESCE(pg_column_size({_LONG.get(table, 'NULL')}), 0) / {ROW_BYTES}) "  # noqa: S608
            f"FROM {period.of(table)} p WHERE {_OF_JOBS[table].format(jobs='$1::TEXT[]')}",
            jobs,
        )
        if count is not None and count > MOST_MOVED:
            return False
    return True


async def _drop(connection: Connection, period: Period, now: int, age: int) -> None:
    """Drop the jobs first. Without them nobody finds the others; should we end in between, the next turn goes on here."""
    async with _briefly(connection):
        if await _is_attached(connection, period.of("jobs_over")):
            await _take_out_jobs(connection, period, now, age)
    for table in LEFT_BEHIND:
        async with _briefly(connection):
            if await _is_attached(connection, period.of(table)):
                await _take_out(connection, table, period)
    for table in TABLES:
        await connection.execute(f"DROP TABLE IF EXISTS {period.of(table)}")
    for table in ELSEWHERE:
        await _forget(connection, table, period)
    await connection.execute("DELETE FROM periods WHERE first_id = $1", period.first_id)


async def _is_attached(connection: Connection, part: str) -> bool:
    return bool(await connection.fetchval("SELECT relispartition FROM pg_class WHERE oid = to_regclass($1)", part))


async def _take_out_jobs(connection: Connection, period: Period, now: int, age: int) -> None:
    """Take out jobs with their deliveries, so that none can be sent or replayed for a job that is gone."""
    await connection.execute("LOCK TABLE jobs_over, deliveries_over IN ACCESS EXCLUSIVE MODE")
    await connection.execute("LOCK TABLE deliveries_pending IN SHARE MODE")
    part = period.of("jobs_over")
    await _detach(connection, "jobs_over", period)
    await _move(
        connection, part, "jobs_over", f"p.id = ANY(ARRAY({_OUTLIVING.format(part=part)}))", *(now, age, *period)
    )
    await _move(connection, part, "jobs_over", _OF_A_FLOW.format(part=part), period.until_id)
    await _take_out(connection, "deliveries_over", period)


async def _take_out(connection: Connection, table: str, period: Period) -> None:
    await _detach(connection, table, period)
    await _move(connection, period.of(table), table, _OF_JOBS[table].format(jobs=_THERE), *period)


async def _forget(connection: Connection, table: str, period: Period) -> None:
    """Remove what belongs to jobs that are gone: a few at a time, since there may be as many as jobs."""
    last: str | None = period.first_id[:10]
    while last is not None:
        last = await connection.fetchval(_FORGET_SOME.format(table=table), last, period.until_id, AT_A_TIME)


# tables -----------------------------------------------------------------------------------------------------------------


async def _attach(connection: Connection, table: str, period: Period) -> None:
    until = "MAXVALUE" if period.until_id == NEVER else f"'{period.until_id}'"
    bounds = f"FOR VALUES FROM ('{period.first_id}') TO ({until})"
    await connection.execute(f"ALTER TABLE {table} ATTACH PARTITION {period.of(table)} {bounds}", timeout=SCAN_SECONDS)


async def _detach(connection: Connection, table: str, period: Period) -> None:
    await connection.execute(f"ALTER TABLE {table} DETACH PARTITION {period.of(table)}")


async def _move(connection: Connection, part: str, to: str, which: str, *values: str | int) -> None:
    await connection.execute(
        f"WITH moved AS (DELETE FROM {part} p WHERE {which} RETURNING p.*) INSERT INTO {to} SELECT * FROM moved",  # noqa: S608
        *values,
    )
