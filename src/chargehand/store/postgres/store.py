"""PostgreSQL: any number of nodes, each grouping its operations into few statements. Nodes need nothing but the database."""

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import asyncpg

from chargehand.engine.hint import Hint
from chargehand.engine.job import SECOND
from chargehand.engine.moves import Change, Prune
from chargehand.engine.queue import Queue
from chargehand.engine.reads import RecordFilter
from chargehand.engine.record import PutRecord
from chargehand.engine.store import Old, OldJobs
from chargehand.errors import (
    BadRequest,
    ChargehandError,
    ConfigError,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
)
from chargehand.observability.logs import get_logger
from chargehand.store.group import Group, GroupsByKind, bad_operation
from chargehand.store.operations import Answer, AnyOperation, Rejected
from chargehand.store.postgres import periods
from chargehand.store.postgres.connecting import (
    CONNECT_SECONDS,
    NO_SESSION,
    OPEN_SECONDS,
    Connection,
    connect,
    require_session,
)
from chargehand.store.postgres.connections import Connections
from chargehand.store.postgres.hints import Hints
from chargehand.store.postgres.transaction import Silent, Transaction
from chargehand.store.postgres.writer import apply
from chargehand.store.queries import load_migrations, load_queries
from chargehand.store.shared import Row, SharedStore

CHANNEL = "chargehand_"  # and a secret that is kept in the database
CHECK_SECONDS = 0.9  # a readiness probe waits no longer
CLOSE_SECONDS = 1.0
PATIENCE_SECONDS = 4.5  # of callers that wait for a commit
MIGRATION_SECONDS = 24 * 3600.0  # of one statement
NAMED_SINCE = 8  # the schema since which nodes name their sessions
END_SECONDS = 10.0  # of the session of another node, once it was told to end
_BAD = (asyncpg.PostgresError, ValueError, OverflowError, TypeError)
_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
_GONE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.OperatorInterventionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.ObjectNotInPrerequisiteStateError,  # an administrator closed the database for a while
    asyncpg.InternalClientError,
)

log = get_logger(__name__)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as ours, without the password that they may quote."""
    try:
        yield
    except asyncpg.DiskFullError as error:
        raise StoreFull(f"PostgreSQL: {error}; free space on the database's disk", retry_after_seconds=5) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise StoreUnavailable(f"PostgreSQL: {error}; check user, password and database in store.url") from None
    except (asyncpg.DuplicatePreparedStatementError, asyncpg.InvalidSQLStatementNameError):
        raise StoreError(NO_SESSION) from None
    except asyncpg.SyntaxOrAccessError as error:
        raise StoreError(f"PostgreSQL: {error}; is this database Chargehand's, and may its user use it?") from None
    except ssl.SSLError as error:
        text = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or str(error)
        raise StoreUnavailable(
            f"PostgreSQL: TLS: {text}; check host, sslmode and sslrootcert in store.url, and the server's certificate"
        ) from None
    except FileNotFoundError:
        text = "PostgreSQL: no such socket or file; check that it runs, and host and sslrootcert in store.url"
        raise StoreUnavailable(text, retry_after_seconds=2) from None
    except _GONE as error:
        text = str(error) or type(error).__name__
        raise StoreUnavailable(
            f"PostgreSQL: {text}; what was not acknowledged may be sent again", retry_after_seconds=2
        ) from None


@contextlib.contextmanager
def _asked() -> Iterator[None]:
    try:
        yield
    except (asyncpg.DataError, ValueError, OverflowError, TypeError) as error:
        raise BadRequest(f"a value cannot be looked up in the database: {error}") from None


def _error(rejected: Rejected) -> ChargehandError:
    if not rejected.code:
        return bad_operation(rejected)
    kinds = {kind.code: kind for kind in (StoreFull, StoreError, StoreTooNew)}
    return kinds.get(rejected.code, StoreUnavailable)(rejected.message)


class PostgresStore(SharedStore):
    _hints: Hints

    def __init__(self, url: str, clock: Callable[[], int] | None, pool_size: int, group_size: int) -> None:
        self._url = url
        self._clock = clock
        self._queries = load_queries("postgres")
        self._connect_seconds = OPEN_SECONDS
        self._migrations = load_migrations("postgres")
        self.schema_version = self._migrations[-1].version
        # One connection is for hints; of the others, half may commit while the rest read.
        writers = max(1, (pool_size - 1) // 2)
        self._writers = Connections(partial(self._connect, planned_once=True), writers)
        self._readers = Connections(self._connect, max(1, pool_size - 1 - writers))
        self._group = GroupsByKind(lambda: Group(self._commit, group_size, _error, patience_seconds=PATIENCE_SECONDS))
        self._silent = Silent()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, url: str, *, pool_size: int = 6, group_size: int = 256, clock: Callable[[], int] | None = None
    ) -> "PostgresStore":
        store = cls(url, clock, pool_size, group_size)
        try:
            with translated():
                await store._migrate()
                async with store._writers.use():
                    store._connect_seconds = CONNECT_SECONDS
            channel = await store._shared_channel()
        except StoreError:
            await store._close_connections()
            raise
        except asyncpg.PostgresError as error:
            await store._close_connections()
            raise StoreUnavailable(f"PostgreSQL: {error}; the database is left as it was") from None
        except ValueError:
            # Without the driver's text: where it cannot parse the URL, it quotes the password.
            raise ConfigError(
                "store.url: not a URL of PostgreSQL; it looks like postgresql://user:password@host:5432/database, "
                "with special characters in user and password percent-encoded"
            ) from None
        store._hints = Hints(channel, store._connect, store._drop, store._restore)
        store._tasks.append(asyncio.create_task(store._hints.run()))
        return store

    # writing ----------------------------------------------------------------------------------------------------------

    async def _commit(self, operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
        with translated():
            try:
                return await self._transact(operations)
            except _BAD as error:
                if isinstance(error, (*_GONE, asyncpg.DiskFullError, asyncpg.SyntaxOrAccessError)):
                    raise
        # One operation broke its statement: each is tried alone, so that only that one is refused.
        return [await self._commit_alone(operation) for operation in operations]

    async def _commit_alone(self, operation: AnyOperation) -> Answer | Rejected:
        try:
            with translated():
                return (await self._transact([operation]))[0]
        except StoreError as error:
            return Rejected(error.message, error.code)
        except _BAD as error:
            if isinstance(error, asyncpg.UniqueViolationError) and isinstance(operation, Change):
                return None  # another node has just put in a job with the unique key of this one: a lost race
            return Rejected(f"{type(error).__name__}: {error}")

    async def _transact(self, operations: Sequence[AnyOperation]) -> list[Answer]:
        for patience in (2, 1, 0):
            try:
                async with self._writers.use() as connection:
                    return await apply(Transaction(connection, self._queries, self._now(), self._silent), operations)
            except _AGAIN:
                if not patience:
                    raise
        raise AssertionError("unreachable")

    async def prune(self, old: Old, limit: int) -> int:
        if isinstance(old, OldJobs):
            now, age = await self.now(), int(old.age_seconds * SECOND)
            with translated():
                async with self._readers.use() as connection:
                    dropped = await periods.turn(connection, now, age)
            if dropped:
                await self.write(Prune((), age))  # the endpoints that nothing goes to any more
        return await super().prune(old, limit)

    # reading ----------------------------------------------------------------------------------------------------------

    async def _point(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        with translated(), _asked():
            async with self._readers.use() as connection:
                return [tuple(row) for row in await connection.fetch(query.sql, *query.bind(**values))]

    _scan = _point

    def _now(self) -> int | None:
        return self._clock() if self._clock else None

    async def now(self) -> int:
        """Return the database's time: read, or as far ahead of ours as it was a second ago. Nothing is decided by it."""
        if self._clock is not None:
            return self._clock()
        if self._hints.ahead is not None:
            return time.time_ns() // 1000 + self._hints.ahead
        return int((await self._point("now", now=None))[0][0])

    async def check(self) -> None:
        with translated():
            async with asyncio.timeout(CHECK_SECONDS):
                version = (await self._point("schema_version"))[0][0]
        self._refuse_newer(version)

    async def ended(self) -> str:
        """Return only if what watches the database broke: one that went away may come back."""
        await asyncio.wait(self._tasks)
        return f"what watches PostgreSQL ended: {self._tasks[0].exception()!r}"

    # migrations -------------------------------------------------------------------------------------------------------

    async def _connect(self, *, planned_once: bool = False) -> Connection:
        """Connect, unless the schema is newer than what this version knows. While one is being migrated this waits, then looks."""
        seconds = self._connect_seconds
        connection = await connect(self._url, seconds, planned_once=planned_once)
        try:
            self._refuse_newer(await connection.fetchval(self._queries["join_schema"].sql, timeout=seconds))
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _refuse_newer(self, version: int) -> None:
        if version > self.schema_version:
            raise StoreTooNew(
                f"the database is at schema version {version}; this version knows up to {self.schema_version}: "
                "start the newer version of chargehand, or use another database with --store"
            )

    async def _migrate(self) -> None:
        """Migrate under a lock that every new connection waits for, after the others have ended: no node writes meanwhile, and
        one of an older version does not afterwards."""
        connection = await connect(self._url, OPEN_SECONDS)
        try:
            await require_session(connection, partial(connect, self._url, OPEN_SECONDS))
            await connection.execute("SET statement_timeout = 0")  # a large database takes its time
            await _make_migration_table(connection)
            version = await self._version(connection)
            if version < self.schema_version:
                async with connection.transaction():
                    await connection.execute(self._queries["lock_schema"].sql, timeout=MIGRATION_SECONDS)
                    version = await self._version(connection)  # another node may have been first
                    if version < self.schema_version:
                        if 0 < version < NAMED_SINCE:
                            await self._refuse_strangers(connection)
                        await self._end_sessions(connection, version)
                        await self._apply(connection, version)
            self._refuse_newer(version)
        finally:
            await connection.close(timeout=CLOSE_SECONDS)

    async def _version(self, connection: Connection) -> int:
        return int(await connection.fetchval(self._queries["schema_version"].sql, timeout=MIGRATION_SECONDS))

    async def _refuse_strangers(self, connection: Connection) -> None:
        """Refuse to migrate beside nodes of 0.1.0, whose sessions have no name: they would go on writing, as if nothing had happened."""
        strangers = await connection.fetch(self._queries["strangers"].sql, timeout=MIGRATION_SECONDS)
        if strangers:
            raise StoreUnavailable(
                f"PostgreSQL: {len(strangers)} other sessions of this user are in the database (process {strangers[0][0]}, "
                f"{strangers[0][1] or 'without a name'}); nodes of 0.1.0 would write to the new schema: stop them, then start again"
            )

    async def _end_sessions(self, connection: Connection, version: int) -> None:
        ended = set[int]()
        until = time.monotonic() + END_SECONDS
        while left := await connection.fetch(self._queries["end_sessions"].sql, timeout=MIGRATION_SECONDS):
            if time.monotonic() > until:
                raise StoreUnavailable(
                    f"PostgreSQL: {len(left)} sessions of other nodes did not end within {END_SECONDS:g} s; "
                    "the database is left as it was: stop the other nodes, then start again"
                )
            ended |= {row[0] for row in left}
            await connection.execute("SELECT pg_stat_clear_snapshot()")  # look anew: some have ended by themselves
        log.info("migrating the database", schema_version=version, to=self.schema_version, ended_sessions=len(ended))

    async def _apply(self, connection: Connection, version: int) -> None:
        record = self._queries["record_migration"]
        for migration in self._migrations:
            if migration.version > version:
                for statement in migration.statements:
                    await connection.execute(statement, timeout=MIGRATION_SECONDS)
                values = record.bind(version=migration.version, name=migration.name, now=None)
                await connection.execute(record.sql, *values)

    # hints between nodes ----------------------------------------------------------------------------------------------

    async def _shared_channel(self) -> str:
        """Return the secret name of the channel: any user of the database may listen and notify on a channel that they can name."""
        key = ("channel", "", "hints")
        await self.write(PutRecord(*key, secrets.token_hex(16).encode(), expected=0))  # unless there is one
        for record in await self.list_records(RecordFilter(*key)):
            return CHANNEL + record.body.decode()
        raise StoreError("PostgreSQL: the name of the channel for hints was removed; start again")

    def listen(self, heard: Callable[[Hint], None]) -> None:
        self._hints.listen(heard)

    def notify(
        self,
        queue: Queue | None = None,
        run_at: int = 0,
        job_id: str = "",
        endpoints: tuple[str, ...] = (),
        stream: str = "",
    ) -> None:
        self._hints.notify(queue, run_at, job_id, endpoints, stream)

    async def close(self) -> None:
        await self._group.close(StoreUnavailable("the server is stopping"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_connections()

    async def _close_connections(self) -> None:
        await asyncio.gather(self._writers.close(CLOSE_SECONDS), self._readers.close(CLOSE_SECONDS))

    def _drop(self, reason: str) -> None:
        self._writers.drop(reason)
        self._readers.drop(reason)

    def _restore(self) -> None:
        self._writers.restore()
        self._readers.restore()


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
