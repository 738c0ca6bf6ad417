"""The connections of a node: made when needed, kept, and dropped all at once when the database does not answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg

from chargehand.errors import StoreUnavailable
from chargehand.store.postgres.connecting import Connection

CANCEL_SECONDS = 1.0  # to tell the database that nobody waits for a statement any more
# The statement may still run, or the server is no longer the primary: whoever comes next must not get this connection.
_SPOILT = (asyncio.CancelledError, TimeoutError, asyncpg.ReadOnlySQLTransactionError)


class Connections:
    """Unlike the driver's pool it needs no round trip to give a connection back, and can fail all its users at once."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], size: int) -> None:
        self._connect = connect
        self._places = asyncio.Semaphore(size)
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()
        self._leaving: dict[Connection, asyncio.Task[None]] = {}
        self._away = ""  # why the database cannot be used now

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Connection]:
        async with self._places:
            connection = await self._free()
            self._busy.add(connection)
            try:
                yield connection
            except _SPOILT:
                self._leave(connection)
                raise
            finally:
                self._busy.discard(connection)
                if self._away:
                    connection.terminate()
                elif not connection.is_closed() and connection not in self._leaving:
                    self._idle.append(connection)

    def _leave(self, connection: Connection) -> None:
        """Close it in the background: the driver cancels the statement first, which would go on without anybody to read it."""
        if self._away:
            connection.terminate()
            return

        def left(closing: asyncio.Task[None]) -> None:
            del self._leaving[connection]
            connection.terminate()  # does nothing to a closed one; a task that was cancelled early closed nothing
            if not closing.cancelled():
                closing.exception()

        self._leaving[connection] = closing = asyncio.ensure_future(connection.close(timeout=CANCEL_SECONDS))
        closing.add_done_callback(left)

    async def _free(self) -> Connection:
        self._raise_if_away()
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        connection = await self._connect()
        if self._away:
            connection.terminate()
        self._raise_if_away()
        return connection

    def _raise_if_away(self) -> None:
        if self._away:
            raise StoreUnavailable(
                f"PostgreSQL: {self._away}; what was not acknowledged may be sent again", retry_after_seconds=2
            )

    def drop(self, reason: str) -> None:
        """Fail all statements that are under way, and those to come until `restore` is called."""
        self._away = reason
        for connection in (*self._busy, *self._idle):
            connection.terminate()
        self._idle.clear()

    def restore(self) -> None:
        self._away = ""

    async def close(self, seconds: float) -> None:
        self._away = "the server is stopping"  # for counts too that nobody waits for any more
        idle, self._idle = self._idle, []
        closing = [connection.close(timeout=seconds) for connection in idle]
        await asyncio.gather(*closing, *self._leaving.values(), return_exceptions=True)
        for connection in tuple(self._busy):
            connection.terminate()
