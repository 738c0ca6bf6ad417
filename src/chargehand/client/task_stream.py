"""Tasks out of a stream of lines."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

import aiohttp
import msgspec

from chargehand.client.errors import ClientError, refused
from chargehand.client.types.tasks import Task

MAX_LINE = 256 << 20  # far more than any server takes in; only so that a broken one cannot fill the memory
GOODBYE_SECONDS = 3.0

_decoder = msgspec.json.Decoder(Task)


class TaskLines:
    """Cuts what arrives into tasks. Empty lines are signs of life."""

    def __init__(self) -> None:
        self._begun = bytearray()

    def tasks(self, arrived: bytes) -> list[Task]:
        *whole, rest = arrived.split(b"\n")
        found = []
        for line in whole:
            self._begun += line
            if self._begun.strip():
                found.append(_task(bytes(self._begun)))
            self._begun.clear()
        self._begun += rest
        if len(self._begun) > MAX_LINE:
            raise refused(502, "a line of the stream does not end")
        return found


class TaskStream:
    """To be read with `async for`. readline() of aiohttp would refuse long lines, and a payload may be long."""

    def __init__(self, answer: aiohttp.ClientResponse, say_goodbye: Callable[[], Awaitable[None]]) -> None:
        self._answer = answer
        self._say_goodbye = say_goodbye
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
        """What was on its way: whoever stops reading owes these to the server.

        To hang up would not do, what the server sends in that moment would be lost. It is asked to end the stream, and read to its
        end; if it does not hear that, at least what has arrived is here.
        """
        content = self._answer.content
        with suppress(TimeoutError, aiohttp.ClientError, ClientError, OSError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                if not content.at_eof() and content.exception() is None:
                    await self._say_goodbye()
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
