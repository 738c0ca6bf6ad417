"""Wires to the database: one that can be frozen, where connections stay, new ones are taken and nothing is carried; one with TLS; a pooler."""

import asyncio
import ssl
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
            await self._greet(near, near_end)
            far, far_end = await asyncio.open_unix_connection(self._socket)
            ends.append(far_end)
            await asyncio.gather(self._carry(near, far_end), self._carry_back(far, near_end))
        self._connections.discard(task)
        for end in ends:
            end.transport.abort()

    async def _greet(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        """Do what comes before the first byte for the database."""

    async def _carry_back(self, source: asyncio.StreamReader, end: asyncio.StreamWriter) -> None:
        await self._carry(source, end)

    async def _carry(self, source: asyncio.StreamReader, end: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            await self._open.wait()
            end.write(data)
        end.close()


class TlsRelay(Relay):
    """What the database of the tests cannot do: it is built without TLS."""

    context: ssl.SSLContext

    async def _greet(self, near: asyncio.StreamReader, near_end: asyncio.StreamWriter) -> None:
        await near.readexactly(8)  # the client's question whether there is TLS
        near_end.write(b"S")
        await near_end.start_tls(self.context)


class Pooler(Relay):
    """It looks like a pooler. Unless by session, a notification reaches nobody that is not within a statement."""

    by_session = True

    @property
    def url(self) -> str:
        return f"{super().url}?sslmode=disable"

    async def _carry_back(self, source: asyncio.StreamReader, end: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                head = await source.readexactly(5)
                body = await source.readexactly(int.from_bytes(head[1:]) - 4)
                if head[:1] == b"K":  # the process id, and the secret to cancel a statement with
                    body = b"POOL" + body[4:]
                if self.by_session or head[:1] != b"A":
                    end.write(head + body)
        end.close()


def url_of(*relays: Relay) -> str:
    """Return the URL of a database that is reached by any of the relays."""
    before, _, database = relays[0]._address.partition("@/")
    hosts = ",".join(f"127.0.0.1:{relay.port}" for relay in relays)
    return f"{before}@{hosts}/{database}"
