"""SQLite: a writer process that groups commits, and read-only connections that wait for nobody."""

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import apsw
import msgspec

from chargehand.engine.hint import Hint
from chargehand.engine.queue import Queue
from chargehand.errors import (
    BadRequest,
    ChargehandError,
    ConfigError,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreTooNew,
    StoreUnavailable,
)
from chargehand.store.group import Group, bad_operation
from chargehand.store.operations import Answer, AnyOperation, Ping, Rejected
from chargehand.store.queries import Schema, load_queries
from chargehand.store.shared import Row, SharedStore
from chargehand.store.sqlite.process import LENGTH, UNREADABLE, frame
from chargehand.store.sqlite.session import plan_once
from chargehand.store.sqlite.writer import Batch, Hello, Reply, error_code, now

_ADVICE: dict[str, tuple[type[StoreError], str]] = {
    "store.full": (StoreFull, "free space, or raise store.max_bytes; the next request is tried as usual"),
    "store.locked": (StoreLocked, "stop the other process, or use another file with --store"),
    "store.corrupt": (StoreCorrupt, "restore the file from a backup; this one is left as it is"),
    "store.too_new": (StoreTooNew, "start the newer version of chargehand, or use another file with --store"),
    "store.unavailable": (StoreUnavailable, "check the directory, its permissions and the disk"),
}
_SCAN_THREADS = 2
WRITER_CHECK_SECONDS = 0.25
CHECK_SECONDS = 5.0


def _error(code: str, message: str) -> StoreError:
    kind, advice = _ADVICE.get(code, _ADVICE["store.unavailable"])
    return kind(f"SQLite: {message}; {advice}", retry_after_seconds=5)


def _rejection(rejected: Rejected) -> ChargehandError:
    return _error(rejected.code, rejected.message) if rejected.code else bad_operation(rejected)


def sqlite_path(url: str) -> Path:
    prefix, _, rest = url.partition("sqlite:///")
    if prefix or not rest:
        raise ConfigError("store.url: a SQLite URL looks like sqlite:///data/chargehand.db (four slashes: absolute)")
    return Path(rest)


class SqliteStore(SharedStore):
    _group: Group

    def __init__(self, path: Path, clock: Callable[[], int] | None, group_size: int) -> None:
        self._path = path
        self._clock = clock or now
        self._queries = load_queries("sqlite")
        self._group = Group(self._commit, group_size, error=_rejection)
        self._decoder = msgspec.msgpack.Decoder(Reply)
        self._encoder = msgspec.msgpack.Encoder()
        self._closing = False

    @classmethod
    async def open(
        cls, url: str, *, max_bytes: int = 0, group_size: int = 256, clock: Callable[[], int] | None = None
    ) -> "SqliteStore":
        store = cls(sqlite_path(url), clock, group_size)
        await store._start_writer(max_bytes)
        store._reader = store._connect()
        store._threads = ThreadPoolExecutor(_SCAN_THREADS, "chargehand-read")
        store._scanners = SimpleQueue[apsw.Connection]()
        for _ in range(_SCAN_THREADS):
            store._scanners.put(store._connect())
        return store

    _reader: apsw.Connection
    _threads: ThreadPoolExecutor
    _scanners: "SimpleQueue[apsw.Connection]"

    # the writer -------------------------------------------------------------------------------------------------------

    async def _start_writer(self, max_bytes: int) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise _error("store.unavailable", f"cannot make the directory {self._path.parent}: {error}") from None
        ours, theirs = socket.socketpair()
        arguments = [str(self._path), str(theirs.fileno()), str(max_bytes)]
        with theirs:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - once, at the start
                [sys.executable, "-m", "chargehand.store.sqlite.process", *arguments],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                # A process group of its own: a signal to the server's group must not take the writer in mid-commit.
                start_new_session=True,
            )
        ours.setblocking(False)
        self._stream, self._sink = await asyncio.open_connection(sock=ours, limit=1 << 20)
        body = await self._read_frame()
        hello = msgspec.msgpack.decode(body, type=Hello) if body else Hello(0, "store.unavailable", "no writer")
        if hello.error:
            await self._hang_up()
            self._process.wait()
            raise _error(hello.error_code, hello.error)
        self.schema_version = hello.version

    async def _hang_up(self) -> None:
        self._sink.close()
        with contextlib.suppress(ConnectionError):
            await self._sink.wait_closed()

    async def _read_frame(self) -> bytes | None:
        try:
            head = await self._stream.readexactly(LENGTH.size)
            return await self._stream.readexactly(LENGTH.unpack(head)[0])
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def _commit(self, operations: Sequence[AnyOperation]) -> Sequence[Answer | Rejected]:
        reply = await self._exchange(operations)
        if reply.error_code == UNREADABLE:
            # One operation cannot be sent: each is tried alone, so that only that one is refused.
            return [await self._commit_alone(operation) for operation in operations]
        if reply.error_code:
            raise _error(reply.error_code, reply.error)
        return reply.answers

    async def _commit_alone(self, operation: AnyOperation) -> Answer | Rejected:
        reply = await self._exchange([operation])
        if reply.error_code:
            return Rejected(reply.error, "" if reply.error_code == UNREADABLE else reply.error_code)
        return reply.answers[0]

    async def _exchange(self, operations: Sequence[AnyOperation]) -> Reply:
        try:
            self._sink.write(frame(Batch(self._clock(), list(operations)), self._encoder))
        except (ValueError, OverflowError, TypeError) as error:
            return Reply([], UNREADABLE, f"{type(error).__name__}: {error}")
        answer = await self._read_frame()
        if answer is None:
            raise self._writer_gone()
        return self._decoder.decode(answer)

    def _writer_gone(self) -> StoreError:
        error = StoreUnavailable("the process that writes to SQLite has ended; the server stops, start it again")
        self._group.fail(error)
        return error

    # reading ----------------------------------------------------------------------------------------------------------

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(5_000)
        plan_once(connection)
        connection.pragma("query_only", True)
        connection.pragma("cache_size", -8_000)
        return connection

    def _fetch(self, connection: apsw.Connection, name: str, values: dict[str, Any]) -> Sequence[Row]:
        query = self._queries[name]
        try:
            return connection.execute(query.sql, query.bind(**values)).fetchall()
        except apsw.Error as error:
            raise _error(error_code(error) or "store.unavailable", str(error)) from error
        except (ValueError, OverflowError, TypeError) as error:
            raise BadRequest(f"a value cannot be looked up in the database: {error}") from None

    async def _point(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        # By key, some ten microseconds: a trip to a thread and back would cost more than the read.
        return self._fetch(self._reader, query_name, values)

    async def _scan(self, query_name: str, /, **values: Any) -> Sequence[Row]:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._scan_in_thread, query_name, values)

    def _scan_in_thread(self, name: str, values: dict[str, Any]) -> Sequence[Row]:
        connection = self._scanners.get()
        try:
            return self._fetch(connection, name, values)
        finally:
            self._scanners.put(connection)

    # the rest ---------------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        return self._clock()

    async def now(self) -> int:
        return self._clock()

    async def check(self) -> None:
        """Check that the writer answers, by an operation that does nothing, and that the schema is not too new."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                await self._group.put(Ping())
        except TimeoutError:
            raise StoreUnavailable(f"SQLite: the writer did not answer within {CHECK_SECONDS:g} s") from None
        [row] = await self._point("schema")
        if refusal := Schema(*row).refusal(self.schema_version):
            raise _error("store.too_new", refusal)

    async def ended(self) -> str:
        while self._process.poll() is None or self._closing:  # noqa: ASYNC110 - a process has no event to wait for
            await asyncio.sleep(WRITER_CHECK_SECONDS)
        self._writer_gone()
        return f"the process that writes to SQLite (process {self._process.pid}) ended with {self._process.returncode}"

    def listen(self, heard: Callable[[Hint], None]) -> None:
        """Do nothing: there are no other nodes at a SQLite file."""

    def notify(
        self,
        queue: Queue | None = None,
        run_at: int = 0,
        job_id: str = "",
        endpoints: tuple[str, ...] = (),
        stream: str = "",
    ) -> None:
        pass

    async def close(self) -> None:
        """Close the readers first: the last connection to close checkpoints the file, and only the writer may write."""
        await self._group.close(StoreUnavailable("the server is stopping"))
        self._closing = True
        self._threads.shutdown()
        self._reader.close()
        while not self._scanners.empty():
            self._scanners.get().close()
        await self._hang_up()
        await asyncio.get_running_loop().run_in_executor(None, self._process.wait)
