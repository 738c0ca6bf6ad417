"""What a target says in one attempt, kept from its first byte, so that anybody may read along from the beginning."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import msgspec

from chargehand.http.hangup import BreakOff


class Head(msgspec.Struct, frozen=True):
    status: int
    headers: Mapping[str, str]

    @property
    def media(self) -> str:
        return self.headers.get("content-type", "")


class Cut(BreakOff):
    """The stream broke off: whoever relays it must break off too, not end it as if it were whole."""


class Stream:
    """One writer, any number of readers. A reader that is slow gets more at a time, never less in all."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt
        self.head: Head | None = None
        self.size = 0
        self.closed = False
        self.cut = ""  # why it broke off
        self._pieces: list[bytes] = []
        self._readers: list[asyncio.Future[None]] = []

    def begin(self, head: Head) -> None:
        self.head = head
        self._wake()

    def feed(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self.size += len(piece)
        if self._readers:
            self._wake()

    def close(self, cut: str = "") -> None:
        if not self.closed:
            self.closed, self.cut = True, cut
            self._wake()

    def content(self) -> bytes:
        return b"".join(self._pieces)

    async def read(self) -> AsyncIterator[bytes]:
        """All of it, from the first byte to the end; raises Cut where it broke off."""
        at = 0
        while True:
            if at < len(self._pieces):
                piece = self._pieces[at] if at + 1 == len(self._pieces) else b"".join(self._pieces[at:])
                at = len(self._pieces)
                yield piece
            elif self.closed:
                break
            else:
                await self._news()
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
