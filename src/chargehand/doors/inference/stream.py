"""What a target says in one attempt, kept from its first byte, so that anybody may read along from the beginning."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from chargehand.http.response import BreakOff

PIECE_BYTES = 256 << 10  # given to a reader at a time


class Head(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "")


class Cut(BreakOff):
    """The stream broke off: whoever relays it must break off too, not end it as if it were whole."""


class AnswerStream:
    """One writer, any number of readers. A reader that is slow gets more at a time, never less in all."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.head: Head | None = None
        self.content = bytearray()  # in one piece: a target may send its answer byte by byte
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
        """All of it, from the first byte to the end; raises Cut where it broke off."""
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
        """What is there now, in pieces."""
        for at in range(0, self.size, PIECE_BYTES):
            yield bytes(self.content[at : at + PIECE_BYTES])

    async def lines(self) -> AsyncIterator[bytes]:
        """The same, line by line; also the last one, though nothing ended it. No byte is looked at twice."""
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
