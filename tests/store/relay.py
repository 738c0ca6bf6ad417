"""A wire to the database that can be frozen: it stays connected, takes new connections, and carries nothing."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Self


class Relay:
    def __init__(self, postgres_url: str) -> None:
        self._address, _, folder = postgres_url.partition("?host=")
        self._socket = f"{folder}/.s.PGSQL.5432"
        self._open = asyncio.Event()
        self._open.set()
        self._connections: set[asyncio.Task[None]] = set()
        self.port = 0

    @classmethod
    @asynccontextmanager
    async def to(cls, postgres_url: str) -> AsyncIterator[Self]:
        relay = cls(postgres_url)
        server = await asyncio.start_server(relay._connect, "127.0.0.1", 0)
        relay.port = server.sockets[0].getsockname()[1]
        try:
            yield relay
        finally:
            server.close()
            for connection in relay._connections:
                connection.cancel()
            await asyncio.gather(*relay._connections, return_exceptions=True)

    @property
    def url(self) -> str:
        return url_of(self)

    def freeze(self) -> None:
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    async def _connect(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        ends = [near_end]
        with suppress(OSError, asyncio.CancelledError):
            await self._open.wait()
            far, far_end = await asyncio.open_unix_connection(self._socket)
            ends.append(far_end)
            await asyncio.gather(self._carry(near, far_end), self._carry(far, near_end))
        self._connections.discard(task)
        for end in ends:
            end.transport.abort()

    async def _carry(self, source: asyncio.StreamReader, end: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._open.wait()
            end.write(data)
        end.close()


def url_of(*relays: Relay) -> str:
    """Return the URL of a database that is reached by any of the relays."""
    before, _, database = relays[0]._address.partition("@/")
    hosts = ",".join(f"127.0.0.1:{relay.port}" for relay in relays)
    return f"{before}@{hosts}/{database}"
