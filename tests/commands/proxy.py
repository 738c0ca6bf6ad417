"""A proxy between a command and its server, which drops the answers that a test names."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Wire:
    """Forwards every request, and drops the answer to each that begins with `loses`.

    If `since` is set, it drops answers only from the first request on that begins with `since`.
    """

    def __init__(self, upstream: str) -> None:
        self._host, _, port = upstream.removeprefix("http://").partition(":")
        self._port = int(port)
        self._clients: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None
        self.url = ""
        self.loses = b"nothing"
        self.since = b""
        self._begun = False
        self.ends = False  # stop listening after the first dropped answer
        self.lost = 0

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        for client in self._clients:
            client.transport.abort()

    async def stop(self) -> None:
        assert self._listener is not None
        self._listener.close()
        self.cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.add(writer)
        upstream, server = await asyncio.open_connection(self._host, self._port)
        asked = b""

        async def there() -> None:
            nonlocal asked
            while piece := await reader.read(65536):
                asked = piece
                self._begun = self._begun or piece.startswith(self.since)
                server.write(piece)
                await server.drain()

        async def back() -> None:
            while piece := await upstream.read(65536):
                if self._begun and asked.startswith(self.loses):
                    self.lost += 1
                    if self.ends and self._listener is not None:
                        self._listener.close()
                    return
                writer.write(piece)
                await writer.drain()

        ways = [asyncio.create_task(there()), asyncio.create_task(back())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            with contextlib.suppress(Exception):
                await asyncio.gather(*ways, return_exceptions=True)
            self._clients.discard(writer)
            writer.transport.abort()
            server.transport.abort()


@asynccontextmanager
async def wire(upstream: str) -> AsyncIterator[Wire]:
    made = Wire(upstream)
    await made.start()
    try:
        yield made
    finally:
        await made.stop()
