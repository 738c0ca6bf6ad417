"""A cable that can be cut: what connects to it is connected with another port, until nothing passes any more."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

CHUNK = 65_536


class Relay:
    def __init__(self, port: int) -> None:
        self._to = port
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Let nothing pass, and tell neither side: connections stay open, as they do when a cable is cut."""
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._whole.wait()
            with contextlib.suppress(OSError):
                there, back = await asyncio.open_connection("127.0.0.1", self._to)
                try:
                    await self._carry_both(reader, writer, there, back)
                finally:
                    back.close()
        except asyncio.CancelledError:
            pass  # the test is over; whoever made this task does not want to hear of it
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _carry_both(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        there: asyncio.StreamReader,
        back: asyncio.StreamWriter,
    ) -> None:
        ways = [asyncio.ensure_future(self._carry(reader, back)), asyncio.ensure_future(self._carry(there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK):
                await self._whole.wait()
                writer.write(data)
                await writer.drain()
