"""A stream of tasks, one JSON object a line."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import aiohttp
import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.types.tasks import Task

MAX_LINE = 256 << 20  # more than any server accepts; a broken one must not fill the memory
CLOSE_SECONDS = 3.0

_decoder = msgspec.json.Decoder(Task)


class TaskLines:
    """Splits arriving bytes into tasks. Empty lines are keep-alives."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def tasks(self, arrived: bytes) -> list[Task]:
        *whole, rest = arrived.split(b"\n")
        found = []
        for line in whole:
            self._rest += line
            if self._rest.strip():
                found.append(_task(bytes(self._rest)))
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > MAX_LINE:
            raise refused(502, f"a line of the stream has more than {MAX_LINE} bytes")
        return found


class TaskStream:
    """Read it with `async for`. It does not use aiohttp's readline(), which refuses long lines: a payload may be long."""

    def __init__(self, answer: aiohttp.ClientResponse, close: Callable[[], Awaitable[None]]) -> None:
        self._answer = answer
        self._close = close
        self._lines = TaskLines()
        self._read: deque[Task] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Task:
        while not self._read:
            arrived = await self._answer.content.readany()
            if not arrived:
                raise StopAsyncIteration
            self._read += self._lines.tasks(arrived)
        return self._read.popleft()

    async def leave(self) -> list[Task]:
        """Close the stream and return the tasks that had been sent and not read: the caller has to give them back.

        Closing the connection alone would lose what the server sends at that moment. So the server is asked to end the stream, which is
        then read to its end. If the server does not answer, the tasks that have arrived are returned.
        """
        content = self._answer.content
        with suppress(TimeoutError, aiohttp.ClientError, ClientError, OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                if not content.at_eof() and content.exception() is None:
                    await self._close()
                while arrived := await content.readany():
                    self._read += self._lines.tasks(arrived)
        with suppress(aiohttp.ClientError, ClientError, OSError):
            self._read += self._lines.tasks(content.read_nowait())
        return list(self._read)


def _task(line: bytes) -> Task:
    try:
        return _decoder.decode(line)
    except msgspec.DecodeError as error:
        raise refused(502, "a line of the stream is not a task", str(error)) from None
