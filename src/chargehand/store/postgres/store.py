"""PostgreSQL: any number of nodes, each grouping its operations into few statements. Nodes need nothing but the database."""

import asyncio
import contextlib
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import asyncpg
import msgspec

from chargehand.engine.hint import Hint
from chargehand.engine.moves import Change
from chargehand.engine.queue import Queue
from chargehand.engine.reads import RecordFilter
from chargehand.engine.record import PutRecord
from chargehand.errors import (
    BadRequest,
    ChargehandError,
    ConfigError,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
)
from chargehand.store.group import Group, bad_operation
from chargehand.store.operations import Answer, AnyOperation, Rejected
from chargehand.store.postgres.transaction import Connection
from chargehand.store.postgres.writer import apply
from chargehand.store.queries import load_migrations, load_queries
from chargehand.store.shared import Row, SharedStore

CHANNEL = "chargehand_"  # and a secret that is kept in the database
NOTIFY_BYTES = 7_500  # PostgreSQL takes up to 8,000
UNTOLD_STREAMS = 100
UNTOLD_JOBS = 200  # in one message; more are found by polling
NOTIFY_EVERY_SECONDS = 0.005  # hints of a busy moment travel together
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


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise the driver's errors as ours, without the password that they may quote."""
    try:
        yield
    except asyncpg.DiskFullError as error:
        raise StoreFull(f"PostgreSQL: {error}; free space on the database's disk", retry_after_seconds=5) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise StoreUnavailable(f"PostgreSQL: {error}; check user, password and database in store.url") from None
    except asyncpg.SyntaxOrAccessError as error:
        raise StoreError(f"PostgreSQL: {error}; is this database Chargehand's, and may its user use it?") from None
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
    kinds = {StoreFull.code: StoreFull, StoreError.code: StoreError}
    return kinds.get(rejected.code, StoreUnavailable)(rejected.message)


class PostgresStore(SharedStore):
    _pool: "asyncpg.Pool[asyncpg.Record]"
    _channel: str

    def __init__(self, url: str, clock: Callable[[], int] | None, group_size: int, lanes: int) -> None:
        self._url = url
        self._clock = clock
        self._queries = load_queries("postgres")
        self._group = Group(self._commit, group_size, lanes, _error)
        self._node = os.urandom(6).hex()
        self._heard: list[Callable[[Hint], None]] = []
        self._untold: dict[str, tuple[str, ...]] = {}
        self._untold_queues: dict[Queue, int] = {}
        self._untold_streams: set[str] = set()
        self._tell_soon = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    async def open(
        cls, url: str, *, pool_size: int = 6, group_size: int = 256, clock: Callable[[], int] | None = None
    ) -> "PostgresStore":
        # One connection is for hints; of the others, half may commit while the rest read.
        store = cls(url, clock, group_size, lanes=max(1, (pool_size - 1) // 2))
        try:
            with translated():
                store._pool = await asyncpg.create_pool(
                    url, min_size=1, max_size=pool_size, command_timeout=60, timeout=10, init=_prepare
                )
                await store._migrate()
            store._channel = await store._shared_channel()
        except StoreError:
            await store._close_pool()
            raise
        except asyncpg.PostgresError as error:
            await store._close_pool()
            raise StoreUnavailable(f"PostgreSQL: {error}; the database is left as it was") from None
        except ValueError:
            # Without the driver's text: where it cannot parse the URL, it quotes the password.
            raise ConfigError(
                "store.url: not a URL of PostgreSQL; it looks like postgresql://user:password@host:5432/database, "
                "with special characters in user and password percent-encoded"
            ) from None
        store._tasks.append(asyncio.create_task(store._keep_listening()))
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
                async with self._pool.acquire() as connection, connection.transaction():
                    return await apply(connection, self._queries, self._now(), operations)
            except _AGAIN:
                if not patience:
                    raise
        raise AssertionError("unreachable")

    # reading ----------------------------------------------------------------------------------------------------------

    async def _point(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        query = self._queries[query_name]
        with translated(), _asked():
            return [tuple(row) for row in await self._pool.fetch(query.sql, *query.bind(**values))]

    _scan = _point

    def _now(self) -> int | None:
        return self._clock() if self._clock else None

    async def now(self) -> int:
        return int((await self._point("now", now=self._now()))[0][0])

    async def check(self) -> None:
        version = (await self._point("schema_version"))[0][0]
        if version > self.schema_version:
            raise StoreTooNew(f"PostgreSQL: schema version {version}; this version knows up to {self.schema_version}")

    async def ended(self) -> str:
        """Never return: a database that went away may come back."""
        await asyncio.get_running_loop().create_future()
        raise AssertionError("unreachable")

    # migrations -------------------------------------------------------------------------------------------------------

    async def _migrate(self) -> None:
        """Migrate under the lock of a row, so that nodes can start together on anything that speaks PostgreSQL."""
        migrations = load_migrations("postgres")
        self.schema_version = migrations[-1].version
        async with self._pool.acquire() as connection:
            await _make_migration_table(connection)
            async with connection.transaction():
                await connection.fetch(self._queries["schema_lock"].sql)
                version = await connection.fetchval(self._queries["schema_version"].sql)
                if version > self.schema_version:
                    raise StoreTooNew(
                        f"the database is at schema version {version}; this version knows up to {self.schema_version}: "
                        "start the newer version of chargehand, or use another database with --store"
                    )
                for migration in migrations:
                    if migration.version > version:
                        for statement in migration.statements:
                            await connection.execute(statement)
                        record = self._queries["record_migration"]
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
        self._heard.append(heard)

    def notify(
        self,
        queue: Queue | None = None,
        run_at: int = 0,
        job_id: str = "",
        endpoints: tuple[str, ...] = (),
        stream: str = "",
    ) -> None:
        if queue is not None:
            self._untold_queues[queue] = min(run_at, self._untold_queues.get(queue, sys.maxsize))
        if job_id and len(self._untold) < UNTOLD_JOBS:
            self._untold[job_id] = endpoints
        if stream and len(self._untold_streams) < UNTOLD_STREAMS:
            self._untold_streams.add(stream)
        self._tell_soon.set()

    async def _keep_listening(self) -> None:
        """Send and receive hints. While the connection is down, the other nodes find by polling what was done here."""
        while True:
            with contextlib.suppress(asyncpg.PostgresError, *_GONE):
                async with self._listener() as connection:
                    while not connection.is_closed():
                        await self._tell_soon.wait()
                        self._tell_soon.clear()
                        for text in self._texts():
                            await connection.execute("SELECT pg_notify($1, $2)", self._channel, text)
                        await asyncio.sleep(NOTIFY_EVERY_SECONDS)
            self._untold.clear()
            self._untold_queues.clear()
            self._untold_streams.clear()
            await asyncio.sleep(1)

    @contextlib.asynccontextmanager
    async def _listener(self) -> "AsyncIterator[Connection]":
        connection = await asyncpg.connect(self._url, timeout=10, command_timeout=10)
        try:
            connection.add_termination_listener(lambda _: self._tell_soon.set())
            await connection.add_listener(self._channel, self._on_notify)
            yield connection
        finally:
            try:
                await connection.close(timeout=1)
            except (*_GONE, asyncpg.PostgresError):
                connection.terminate()

    def _texts(self) -> list[str]:
        """Return the pending hints in as few messages as fit; what does not fit is found by polling."""
        queues, self._untold_queues = tuple(self._untold_queues.items()), {}
        untold, self._untold = self._untold, {}
        jobs = tuple(untold)
        endpoints = tuple(dict.fromkeys(endpoint for told in untold.values() for endpoint in told))
        streams, self._untold_streams = self._untold_streams, set()
        # Nobody polls for streams, so they have a message of their own.
        texts = [self._text(Hint(streams=tuple(streams)))] if streams else []
        # Jobs are many and their watchers poll anyway; queues and endpoints are what somebody waits for at once.
        for hint in (Hint(queues, jobs, endpoints), Hint(queues, (), endpoints)):
            text = self._text(hint)
            if len(text.encode()) <= NOTIFY_BYTES:
                return [*texts, text]
        return texts

    def _text(self, hint: Hint) -> str:
        return self._node + msgspec.json.encode(hint).decode()

    def _on_notify(self, _connection: object, _pid: int, _channel: str, payload: object) -> None:
        text = str(payload)
        if text.startswith(self._node):
            return
        with contextlib.suppress(msgspec.DecodeError, RecursionError):
            hint = msgspec.json.decode(text[12:], type=Hint)
            for heard in self._heard:
                heard(hint)

    async def close(self) -> None:
        await self._group.close(StoreUnavailable("the server is stopping"))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close_pool()

    async def _close_pool(self) -> None:
        with contextlib.suppress(StoreError, AttributeError), translated():
            async with asyncio.timeout(5):
                await self._pool.close()


async def _prepare(connection: Connection) -> None:
    """Make the session acknowledge a commit only when it is on disk, whatever the database's default is."""
    if await connection.fetchval("SHOW synchronous_commit") == "off":
        await connection.execute("SET synchronous_commit = on")


async def _make_migration_table(connection: Connection) -> None:
    for patience in (2, 1, 0):
        try:
            await connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migrations "
                "(version INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL, applied_at BIGINT NOT NULL)"
            )
            await connection.execute("INSERT INTO schema_migrations VALUES (0, 'lock', 0) ON CONFLICT DO NOTHING")
        except (asyncpg.UniqueViolationError, asyncpg.DuplicateTableError, asyncpg.DuplicateObjectError):
            # Two nodes made the table at the same moment; IF NOT EXISTS does not cover that in PostgreSQL.
            if not patience:
                raise
        else:
            return
