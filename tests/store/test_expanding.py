"""Migrations that only expand the schema: PostgreSQL is changed under nodes that go on."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest

from chargehand.engine.reads import JobFilter
from chargehand.errors import StoreUnavailable
from chargehand.store.postgres import migrating
from chargehand.store.postgres.connecting import connect
from chargehand.store.postgres.migrating import Migrator
from chargehand.store.queries import Migration, Schema, load_migrations, load_queries, only_expand
from tests.e2e.server import eventually
from tests.store.given import get, move, opened, running, sql, submit, until_held_up

OURS = load_migrations("postgres")
NEWEST = OURS[-1].version
COLUMNS = ("ALTER TABLE jobs ADD COLUMN next_a TEXT", "ALTER TABLE job_events ADD COLUMN next_b TEXT DEFAULT 'b'")
EXPANDS = Migration(NEWEST + 1, "expands", OURS[-1].oldest, COLUMNS)
CONTRACTS = Migration(NEWEST + 2, "contracts", NEWEST + 1, ("DROP TABLE job_keys CASCADE",))


@asynccontextmanager
async def newer_node(url: str, *more: Migration) -> AsyncIterator[Migrator]:
    connection = await connect(url)
    try:
        yield Migrator(connection, load_queries("postgres"), [*OURS, *more])
    finally:
        await connection.close()


@asynccontextmanager
async def reading(url: str, table: str) -> AsyncIterator[None]:
    """Hold a table as pg_dump does."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {table} IN ACCESS SHARE MODE")
            yield
    finally:
        await connection.close()


def wanted(url: str, table: str) -> Callable[[], object]:
    """Whether somebody waits for a lock on the table."""

    async def waits() -> bool:
        held = f"SELECT COUNT(*) FROM pg_locks WHERE relation = '{table}'::REGCLASS AND NOT granted"
        return bool((await sql(url, held))[0][0])

    return waits


async def applied(url: str) -> list[int]:
    return [row[0] for row in await sql(url, f"SELECT version FROM schema_migrations WHERE version > {NEWEST}")]


@pytest.mark.parametrize(
    ("oldest", "version", "expand"),
    [
        ([1, 2, 3], 2, False),  # nodes of 2 may not work on 3
        ([1, 2, 2], 2, True),
        ([1, 2, 2], 1, False),  # nodes of 1 may not work on 2
        ([1, 2, 2, 2], 2, True),
        ([1, 2, 2, 3], 3, False),  # those of 3 may work on 4, but there may be some of 2
        ([1, 1], 0, False),  # there is nothing yet
    ],
)
def test_migrations_expand_if_they_stop_no_node_that_may_be_there(
    oldest: list[int], version: int, *, expand: bool
) -> None:
    migrations = [Migration(number, "", each, ()) for number, each in enumerate(oldest, 1)]
    assert only_expand(migrations, version) is expand


def test_each_migration_says_which_nodes_it_stops() -> None:
    for migrations in (load_migrations("sqlite"), OURS):
        oldest = [migration.oldest for migration in migrations]
        assert oldest == sorted(oldest), "a node that was stopped may not come back"
        assert all(migration.oldest <= migration.version for migration in migrations)
        assert all(migration.oldest == migration.version for migration in migrations if migration.version <= 9)


def test_a_node_is_refused_by_what_it_is_too_old_for() -> None:
    assert not Schema(version=9, oldest=9).refusal(9)
    assert not Schema(version=12, oldest=9).refusal(9)
    assert Schema(version=12, oldest=11).refusal(10)


async def test_nodes_keep_their_connections_while_the_schema_expands(postgres_url: str) -> None:
    async with opened(postgres_url) as store, newer_node(postgres_url, EXPANDS) as newer:
        job = await running(store)
        ours = "SELECT pid FROM pg_stat_activity WHERE application_name ~ '^chargehand [0-9]' ORDER BY pid"
        before = set(await sql(postgres_url, ours))
        await newer.run()
        assert before <= set(await sql(postgres_url, ours))  # others may have come
        assert await applied(postgres_url) == [NEWEST + 1]
        later = await submit(store)
        assert {each.id for each in await store.list_jobs(JobFilter(job.tenant))} == {job.id, later}
        await store.check()
    async with opened(postgres_url) as again:
        assert (await get(again, later)).id == later


async def test_nodes_of_the_release_in_between_go_on_after_a_contraction(postgres_url: str) -> None:
    async with opened(postgres_url), newer_node(postgres_url, EXPANDS, CONTRACTS) as newer:
        await newer.run()
        assert await applied(postgres_url) == [NEWEST + 1, NEWEST + 2]
        [(version, oldest)] = await sql(postgres_url, load_queries("postgres")["schema"].sql)
        schema = Schema(version, oldest)
        assert (schema.refusal(NEWEST + 2), schema.refusal(NEWEST + 1)) == ("", "")
        assert schema.refusal(NEWEST)


async def test_two_newer_nodes_expand_the_schema_once(postgres_url: str) -> None:
    async with (
        opened(postgres_url),
        newer_node(postgres_url, EXPANDS) as one,
        newer_node(postgres_url, EXPANDS) as two,
    ):
        await asyncio.gather(one.run(), two.run())
        assert await applied(postgres_url) == [NEWEST + 1]


async def test_writers_go_on_while_the_schema_waits_for_a_long_read(postgres_url: str) -> None:
    async with opened(postgres_url) as store, newer_node(postgres_url, EXPANDS) as newer:
        async with reading(postgres_url, "job_events"):
            migration = asyncio.create_task(newer.run())
            for _ in range(2):  # it gives up, lets the writers through, and tries again
                await eventually(wanted(postgres_url, "job_events"), 20, "the migration waits for the table")
                await submit(store)
                assert not await applied(postgres_url), "nothing of it is left between two attempts"
                assert not migration.done()
        await migration
        assert await applied(postgres_url) == [NEWEST + 1]


async def test_a_table_that_is_never_free_is_an_error_and_nothing_is_changed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrating, "ATTEMPTS", 1)
    monkeypatch.setattr(migrating, "AGAIN_SECONDS", 0)
    async with opened(postgres_url) as store, newer_node(postgres_url, EXPANDS) as newer:
        async with reading(postgres_url, "job_events"):
            with pytest.raises(StoreUnavailable, match="could not be locked to migrate it"):
                await newer.run()
        assert not await applied(postgres_url)
        await submit(store)
        await newer.run()
        assert await applied(postgres_url) == [NEWEST + 1]


# A build of this index stands still while somebody holds the lock of that number.
SLOW = """
CREATE FUNCTION slow(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN $1; END $$"""
INDEX = Migration(
    NEWEST + 1, "indexes", OURS[-1].oldest, ("CREATE INDEX next_index ON jobs (slow(tenant)) WHERE state = 'running'",)
)
COMPLETE = "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE i.indisvalid AND c.relname ~ 'next_index'"
WAITING = "pg_locks l JOIN pg_database d ON d.oid = l.database AND d.datname = current_database() WHERE locktype = 'advisory' AND NOT granted"
KEEPS_WRITERS_OUT = """
SELECT mode FROM pg_locks
WHERE relation = 'jobs_live'::REGCLASS AND mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock')"""


async def test_jobs_are_submitted_taken_and_finished_while_an_index_is_built(postgres_url: str) -> None:
    await sql(postgres_url, SLOW)
    holder = await asyncpg.connect(postgres_url)
    async with opened(postgres_url) as store, newer_node(postgres_url, INDEX) as newer:
        job = await running(store)
        await holder.execute("SELECT pg_advisory_lock(7)")
        migration = asyncio.create_task(newer.run())
        await until_held_up(holder, migration)
        assert await sql(postgres_url, KEEPS_WRITERS_OUT) == []
        async with asyncio.timeout(5):
            await move(store, job, "succeed")
            assert await move(store, await running(store), "fail")
        assert not migration.done()
        assert not await applied(postgres_url)
        await holder.close()
        await migration
        assert await applied(postgres_url) == [NEWEST + 1]
        assert len(await sql(postgres_url, COMPLETE)) == 3
        await running(store)


async def test_an_index_that_a_node_did_not_complete_is_built_again(postgres_url: str) -> None:
    await sql(postgres_url, SLOW)
    holder = await asyncpg.connect(postgres_url)
    async with opened(postgres_url) as store:
        await running(store)
        await holder.execute("SELECT pg_advisory_lock(7)")
        async with newer_node(postgres_url, INDEX) as newer:
            migration = asyncio.create_task(newer.run())
            await until_held_up(holder, migration)
            await sql(postgres_url, f"SELECT pg_terminate_backend(pid) FROM {WAITING}")
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await migration
        assert await sql(postgres_url, "SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid") == [(1,)]
        await holder.close()
        async with newer_node(postgres_url, INDEX) as again:
            await again.run()
        assert await applied(postgres_url) == [NEWEST + 1]
        assert len(await sql(postgres_url, COMPLETE)) == 3
        assert await sql(postgres_url, "SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid") == [(0,)]


async def test_an_index_of_a_table_that_is_not_divided_is_built_once_by_two_nodes(postgres_url: str) -> None:
    one_table = INDEX._replace(statements=("CREATE UNIQUE INDEX next_index ON endpoints (url, tenant)",))
    new_column = INDEX._replace(
        version=NEWEST + 2,
        statements=("ALTER TABLE endpoints ADD COLUMN next TEXT", "CREATE INDEX next_of ON endpoints (next)"),
    )
    async with (
        opened(postgres_url),
        newer_node(postgres_url, one_table, new_column) as one,
        newer_node(postgres_url, one_table, new_column) as two,
    ):
        await asyncio.gather(one.run(), two.run())
        assert await applied(postgres_url) == [NEWEST + 1, NEWEST + 2]
        assert await sql(postgres_url, COMPLETE) == [("next_index",)]
