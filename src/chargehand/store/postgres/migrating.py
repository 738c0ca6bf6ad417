"""Migrating the schema while other nodes are there: they go on where it only expands, else they end before it is changed."""

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from functools import partial

import asyncpg

from chargehand.errors import StoreUnavailable
from chargehand.observability.logs import get_logger
from chargehand.store.postgres import periods
from chargehand.store.postgres.connecting import (
    OPEN_SECONDS,
    STATEMENT_SECONDS,
    Connection,
    connect,
    require_session,
)
from chargehand.store.queries import Migration, Query, load_migrations, only_expand

MIGRATION_SECONDS = 24 * 3600.0  # of one statement, where no other node works meanwhile
NAMED_SINCE = 8  # the schema since which nodes name their sessions
END_SECONDS = 10.0  # of the session of another node, once it was told to end
AGAIN_SECONDS = 1.0  # between two attempts to lock what others use
ATTEMPTS = 600
CLOSE_SECONDS = 1.0
_IN_USE = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)
_INDEX = re.compile(r"CREATE (?P<unique>UNIQUE )?INDEX (?P<name>\w+) ON (?P<table>\w+) (?P<rest>.*)", re.DOTALL)
_LOCK = "'schema_migrations'::REGCLASS::OID::BIGINT"
# A table, or those that it is divided into.
_DIVIDED = """
SELECT c.relname FROM pg_class c
WHERE c.relkind = 'r' AND c.oid IN (SELECT to_regclass($1) UNION SELECT t.relid FROM pg_partition_tree(to_regclass($1)) t)"""
_COMPLETE = "SELECT i.indisvalid FROM pg_index i WHERE i.indexrelid = to_regclass($1)"

log = get_logger(__name__)


async def migrate(url: str, queries: Mapping[str, Query]) -> None:
    connection = await connect(url, OPEN_SECONDS)
    try:
        await require_session(connection, partial(connect, url, OPEN_SECONDS))
        await connection.execute("SET statement_timeout = 0")  # a large database takes its time
        await _make_migration_table(connection)
        migrator = Migrator(connection, queries, load_migrations("postgres"))
        await migrator.run()
        await migrator.open_period()
    finally:
        await connection.close(timeout=CLOSE_SECONDS)


class Migrator:
    def __init__(self, connection: Connection, queries: Mapping[str, Query], migrations: Sequence[Migration]) -> None:
        self._connection = connection
        self._queries = queries
        self._migrations = migrations
        self._newest = migrations[-1].version

    async def run(self) -> None:
        while (version := await self._version()) < self._newest:
            if only_expand(self._migrations, version):
                await self._expand()
            else:
                await self._contract()

    async def _version(self) -> int:
        return int(await self._connection.fetchval(self._queries["schema_version"].sql, timeout=MIGRATION_SECONDS))

    async def _apply(self, migration: Migration) -> None:
        for statement in migration.statements:
            if _INDEX.fullmatch(statement):  # of a table that is not divided it was built before, under its own name
                statement = statement.replace("INDEX ", "INDEX IF NOT EXISTS ", 1)
            await self._connection.execute(statement, timeout=MIGRATION_SECONDS)
        version, name, oldest, _ = migration
        record = self._queries[migration.record]
        await self._connection.execute(record.sql, *record.bind(version=version, name=name, oldest=oldest, now=None))

    # beside other nodes -----------------------------------------------------------------------------------------------

    async def _expand(self) -> None:
        """Apply the next migration. Others wait behind the locks that we wait for, so we give up soon and try again."""
        for _ in range(ATTEMPTS):
            try:
                await self._build_indexes()
                await self._apply_next()
            except _IN_USE as error:
                log.warning("the database is migrated later: its tables are in use", error=str(error))
                await asyncio.sleep(AGAIN_SECONDS)
            else:
                return
        raise StoreUnavailable(
            f"PostgreSQL: a table could not be locked to migrate it, {ATTEMPTS} times; the database is left as it was, and other nodes "
            "go on: start again when nothing holds it for long, such as pg_dump"
        )

    async def _build_indexes(self) -> None:
        """Build the indexes of the next migration table by table, while others write; to create one is then to name them as its parts.

        It takes its time and waits for all transactions that have begun, but nobody waits for it.
        """
        while not await self._connection.fetchval(f"SELECT pg_try_advisory_lock({_LOCK})"):  # noqa: ASYNC110
            await asyncio.sleep(AGAIN_SECONDS)  # not in the database: the other node would wait for this one
        version = await self._version()
        for migration in self._migrations:
            if migration.version > version:
                for statement in migration.statements:
                    if index := _INDEX.fullmatch(statement):
                        await self._build_index(**index.groupdict(default=""))
                break
        await self._connection.execute(f"SELECT pg_advisory_unlock({_LOCK})")

    async def _build_index(self, unique: str, name: str, table: str, rest: str) -> None:
        for (part,) in await self._connection.fetch(_DIVIDED, table):
            own = name if part == table else f"{part}_{name}"[:63]
            complete = await self._connection.fetchval(_COMPLETE, own)
            if complete is False:  # a node ended while it built this
                await self._connection.execute(f"DROP INDEX CONCURRENTLY {own}", timeout=MIGRATION_SECONDS)
            if not complete:
                log.info("building an index", index=own)
                build = f"CREATE {unique}INDEX CONCURRENTLY {own} ON {part} {rest}"
                with contextlib.suppress(asyncpg.UndefinedColumnError, asyncpg.UndefinedTableError):
                    # Else its column comes with the same migration, or the table was dropped.
                    await self._connection.execute(build, timeout=MIGRATION_SECONDS)

    async def _apply_next(self) -> None:
        async with self._connection.transaction():
            await self._connection.execute(self._queries["lock_migrations"].sql, timeout=MIGRATION_SECONDS)
            version = await self._version()  # another node may have been first
            await self._connection.execute(
                f"SET LOCAL lock_timeout = {periods.LOCK_MILLISECONDS}; SET LOCAL statement_timeout = '{STATEMENT_SECONDS}s'"
            )
            for migration in self._migrations:
                if migration.version > version:
                    log.info("expanding the database", schema_version=version, to=migration.version)
                    await self._apply(migration)
                    return

    # alone ------------------------------------------------------------------------------------------------------------

    async def open_period(self) -> None:
        """Open a period for tables that are too large to do so beside others, if there are none. Who connects meanwhile waits."""
        if await self._version() > self._newest or not await periods.too_large(self._connection):
            return
        async with self._connection.transaction():
            await self._connection.execute(self._queries["lock_schema"].sql, timeout=MIGRATION_SECONDS)
            if not await self._connection.fetchval(self._queries["count_sessions"].sql):
                log.info("opening a period: the tables are large, so this takes its time")
                await periods.renew(self._connection, await self._connection.fetchval(self._queries["now"].sql, None))

    # instead of other nodes -------------------------------------------------------------------------------------------

    async def _contract(self) -> None:
        """Migrate under a lock that every new connection waits for, after the others have ended: no node writes meanwhile, and
        one of an older version does not afterwards."""
        async with self._connection.transaction():
            await self._connection.execute(self._queries["lock_schema"].sql, timeout=MIGRATION_SECONDS)
            version = await self._version()  # another node may have been first
            if version >= self._newest:
                return
            if 0 < version < NAMED_SINCE:
                await self._refuse_strangers()
            await self._end_sessions(version)
            for migration in self._migrations:
                if migration.version > version:
                    await self._apply(migration)

    async def _refuse_strangers(self) -> None:
        """Refuse to migrate beside nodes of 0.1.0, whose sessions have no name: they would go on writing, as if nothing had happened."""
        strangers = await self._connection.fetch(self._queries["strangers"].sql, timeout=MIGRATION_SECONDS)
        if strangers:
            raise StoreUnavailable(
                f"PostgreSQL: {len(strangers)} other sessions of this user are in the database (process {strangers[0][0]}, "
                f"{strangers[0][1] or 'without a name'}); nodes of 0.1.0 would write to the new schema: stop them, then start again"
            )

    async def _end_sessions(self, version: int) -> None:
        ended = set[int]()
        until = time.monotonic() + END_SECONDS
        while left := await self._connection.fetch(self._queries["end_sessions"].sql, timeout=MIGRATION_SECONDS):
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"PostgreSQL: {len(left)} sessions of other nodes did not end within {END_SECONDS:g} s; "
                    "the database is left as it was: stop the other nodes, then start again"
                )
            ended |= {row[0] for row in left}
            await self._connection.execute(
                "SELECT pg_stat_clear_snapshot()"
            )  # look anew: some have ended by themselves
        log.info("migrating the database", schema_version=version, to=self._newest, ended_sessions=len(ended))


async def _make_migration_table(connection: Connection) -> None:
    for patience in (2, 1, 0):
        try:
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations "
                "(version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL)"
            )
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError):
            # Two nodes made the table at the same moment; IF NOT EXISTS does not cover that in PostgreSQL.
            if not patience:
                raise
        else:
            return
