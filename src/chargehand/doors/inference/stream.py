"""The answer of a target in one attempt, kept whole, so that any number of readers can read it from its first byte."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from chargehand.http.response import BreakOff

PIECE_BYTES = 256 << 10  # that a reader gets at a time


class Head(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "")


class Cut(BreakOff):
    """The answer broke off. A relay must break off too, and not end as if the answer were whole."""


class AnswerStream:
    """One writer, any number of readers. A slow reader gets larger pieces."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.head: Head | None = None
        self.content = bytearray()  # one buffer: a target may send its answer byte by byte
        self.closed = False
        self.cut = ""  # why it broke off
        self._readers: list[asyncio.Future[None]] = []

    @property
    def size(self) -> int:
        return len(self.content)

    def begin(self, head: Head) -> None:
        self.head = head
        self._wake()

    def feed(self, piece: bytes) -> None:
        self.content += piece
        if self._readers:
            self._wake()

    def close(self, cut: str = "") -> None:
        if not self.closed:
            self.closed, self.cut = True, cut
            self._wake()

    async def read(self) -> AsyncIterator[bytes]:
        """Yield the answer from its first byte to its end; raise Cut where it broke off."""
        at = 0
        while True:
            if at < self.size:
                piece = bytes(self.content[at : at + PIECE_BYTES])
                at += len(piece)
                yield piece
            elif self.closed:
                break
            else:
                await self._news()
        if self.cut:
            raise Cut(self.cut)

    async def so_far(self) -> AsyncIterator[bytes]:
        """Yield what is there now."""
        for at in range(0, self.size, PIECE_BYTES):
            yield bytes(self.content[at : at + PIECE_BYTES])

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the answer by lines, also a last one without a line end; raise Cut where it broke off."""
        begin = looked = 0
        while True:
            end = self.content.find(b"\n", looked)
            if end >= 0:
                yield bytes(self.content[begin:end])
                begin = looked = end + 1
            elif self.closed:
                break
            else:
                looked = self.size
                await self._news()
        if begin < self.size:
            yield bytes(self.content[begin:])
        if self.cut:
            raise Cut(self.cut)

    async def _news(self) -> None:
        reader = asyncio.get_running_loop().create_future()
        self._readers.append(reader)
        await reader

    def _wake(self) -> None:
        readers, self._readers = self._readers, []
        for reader in readers:
            if not reader.done():
                reader.set_result(None)
