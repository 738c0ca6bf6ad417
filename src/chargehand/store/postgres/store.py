"""PostgreSQL: any number of nodes, each grouping its operations into few statements. Nodes need nothing but the database."""

import asyncio
import contextlib
import secrets
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import asyncpg

from chargehand.engine.hint import Hint
from chargehand.engine.job import SECOND
from chargehand.engine.moves import Change, Prune
from chargehand.engine.queue import Queue
from chargehand.engine.reads import RecordFilter
from chargehand.engine.record import PutRecord
from chargehand.engine.store import Old, OldPeriods
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
    PLANNED_ONCE,
    READ_IN_ORDER,
    Connection,
    connect,
)
from chargehand.store.postgres.connections import Connections
from chargehand.store.postgres.hints import Hints
from chargehand.store.postgres.migrating import migrate
from chargehand.store.postgres.transaction import Silent, Transaction
from chargehand.store.postgres.writer import apply
from chargehand.store.queries import Schema, load_migrations, load_queries
from chargehand.store.shared import Row, SharedStore

CHANNEL = "chargehand_"  # and a secret that is kept in the database
CHECK_SECONDS = 0.9  # a readiness probe waits no longer
CLOSE_SECONDS = 1.0
PATIENCE_SECONDS = 4.5  # of callers that wait for a read, or for a commit of which nothing is heard
_LISTS = ("list_jobs", "list_stopped_jobs", "list_succeeded_jobs", "list_queued_jobs")
IN_ORDER = frozenset(
    (*_LISTS, *[f"end_of_{name}" for name in _LISTS], "list_live_jobs", "count_queues", "newest_dead_deliveries")
)
# Reads of which no caller waits for the end: it is that of any statement. To count ten million jobs takes longer than callers wait.
_COUNTS = ("count_queues", "count_topics", "count_stopped")
_PRUNING = ("prunable_jobs", "prunable_kept", "prunable_finished", "prunable_files", "overdue_deliveries")
PATIENT = frozenset((*_COUNTS, *_PRUNING))
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


@contextlib.asynccontextmanager
async def _patience(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds) as waiting:
            yield
    except TimeoutError:
        if waiting.expired():
            text = f"PostgreSQL: a read has not ended within {seconds:g} s; try again"
            raise StoreUnavailable(text, retry_after_seconds=2) from None
        raise


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
        self.schema_version = load_migrations("postgres")[-1].version
        # One connection is for hints and one for periods, which may take long; of the others, half may commit and a quarter read
        # lists, while the rest read what else there is.
        writers, listers = max(1, (pool_size - 2) // 2), max(1, (pool_size - 2) // 4)
        self._writers = Connections(partial(self._connect, PLANNED_ONCE), writers)
        self._listers = Connections(partial(self._connect, READ_IN_ORDER), listers)
        self._readers = Connections(self._connect, max(1, pool_size - 2 - writers - listers))
        self._turning = Connections(self._connect, 1)
        self._group = GroupsByKind(partial(self._new_group, group_size))
        self._silent = Silent()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, url: str, *, pool_size: int = 7, group_size: int = 256, clock: Callable[[], int] | None = None
    ) -> "PostgresStore":
        store = cls(url, clock, pool_size, group_size)
        try:
            with translated():
                await migrate(url, store._queries)
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

    def _new_group(self, size: int) -> Group:
        async def commit(operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
            return await self._commit(operations, group.heard)

        group = Group(commit, size, _error, patience_seconds=PATIENCE_SECONDS)
        return group

    async def _commit(
        self, operations: Sequence[AnyOperation], heard: Callable[[], None]
    ) -> Sequence[Answer | Rejected]:
        with translated():
            try:
                return await self._transact(operations, heard)
            except _BAD as error:
                if isinstance(error, (*_GONE, asyncpg.DiskFullError, asyncpg.SyntaxOrAccessError)):
                    raise
        # One operation broke its statement: each is tried alone, so that only that one is refused.
        return [await self._commit_alone(operation, heard) for operation in operations]

    async def _commit_alone(self, operation: AnyOperation, heard: Callable[[], None]) -> Answer | Rejected:
        try:
            with translated():
                return (await self._transact([operation], heard))[0]
        except StoreError as error:
            return Rejected(error.message, error.code)
        except _BAD as error:
            if isinstance(error, asyncpg.UniqueViolationError) and isinstance(operation, Change):
                return None  # another node has just put in a job with the unique key of this one: a lost race
            return Rejected(f"{type(error).__name__}: {error}")

    async def _transact(self, operations: Sequence[AnyOperation], heard: Callable[[], None]) -> list[Answer]:
        for patience in (2, 1, 0):
            try:
                async with self._writers.use() as connection:
                    transaction = Transaction(connection, self._queries, self._now(), self._silent, heard)
                    return await apply(transaction, operations)
            except _AGAIN:
                if not patience:
                    raise
        raise AssertionError("unreachable")

    async def prune(self, old: Old, limit: int) -> int:
        if not isinstance(old, OldPeriods):
            return await super().prune(old, limit)
        now, age = await self.now(), int(old.age_seconds * SECOND)
        with translated():
            async with self._turning.use() as connection:
                dropped = await periods.turn(connection, now, age)
        if dropped:
            await self.write(Prune((), age))  # the endpoints that nothing goes to any more
        return 0

    # reading ----------------------------------------------------------------------------------------------------------

    async def _point(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        connections = self._listers if query_name in IN_ORDER else self._readers
        with translated(), _asked():
            async with _patience(None if query_name in PATIENT else PATIENCE_SECONDS), connections.use() as connection:
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
                [(version, oldest)] = await self._point("schema")
        self._refuse_newer(Schema(version, oldest))

    async def ended(self) -> str:
        """Return only if what watches the database broke: one that went away may come back."""
        await asyncio.wait(self._tasks)
        return f"what watches PostgreSQL ended: {self._tasks[0].exception()!r}"

    # connecting -------------------------------------------------------------------------------------------------------

    async def _connect(self, settings: Mapping[str, str] | None = None) -> Connection:
        """Connect, unless the schema is too new for this version. While it is migrated so that it may be, this waits, then looks."""
        seconds = self._connect_seconds
        connection = await connect(self._url, seconds, settings)
        try:
            [(version, oldest, _)] = await connection.fetch(self._queries["join_schema"].sql, timeout=seconds)
            self._refuse_newer(Schema(version, oldest))
        except BaseException:
            connection.terminate()
            raise
        return connection

    def _refuse_newer(self, schema: Schema) -> None:
        if refusal := schema.refusal(self.schema_version):
            advice = "start the newer version of chargehand, or use another database with --store"
            raise StoreTooNew(f"{refusal}: {advice}", retry_after_seconds=2)  # another node may be the newer one

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
        await asyncio.gather(*[each.close(CLOSE_SECONDS) for each in self._connections()])

    def _drop(self, reason: str) -> None:
        for each in self._connections():
            each.drop(reason)

    def _restore(self) -> None:
        for each in self._connections():
            each.restore()

    def _connections(self) -> tuple[Connections, ...]:
        return self._writers, self._listers, self._readers, self._turning
