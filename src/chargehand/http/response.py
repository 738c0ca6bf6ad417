"""An answer, as handlers fill it in, and how its head is encoded."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from io import FileIO
from typing import Protocol

from chargehand.http.headers import POLICY, head_start

_WITHOUT_BODY = frozenset({204, 304})  # and without a length


class BreakOff(Exception):
    """Raised by a streamed answer that cannot be completed: closing the connection is the only signal left."""


@dataclass(frozen=True, slots=True)
class FileSpan:
    """A piece of an answer in an open file. The generator that yields it closes the file, after it was asked for the next piece."""

    file: FileIO
    offset: int
    count: int

    def __len__(self) -> int:
        return self.count


Piece = bytes | FileSpan


class Stream(Protocol):
    """The body of an answer, piece by piece. The connection always closes it."""

    def __aiter__(self) -> AsyncIterator[Piece]: ...

    async def aclose(self) -> None: ...


async def discard(stream: Stream) -> None:
    """Close a stream that nobody reads. A generator that never started would not clean up, so start it and cancel its first await."""
    beginning = asyncio.ensure_future(anext(aiter(stream), b""))
    try:
        await asyncio.sleep(0)
        beginning.cancel()
        await asyncio.gather(beginning, return_exceptions=True)
    finally:
        await stream.aclose()


class Response:
    __slots__ = ("data", "headers", "status", "stream")

    def __init__(self) -> None:
        self.status = 200
        self.headers: dict[str, str] = {}
        self.data: bytes = b""
        self.stream: Stream | None = None  # instead of data

    def set_header(self, name: str, value: str) -> None:
        """Set a header; its name may be in any case."""
        if "\n" in value or "\r" in value or "\0" in value:
            raise ValueError(f"the value of the header {name} contains a line break or NUL")
        self.headers[name.lower()] = value

    def set_headers(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            self.set_header(name, value)

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")

    @content_type.setter
    def content_type(self, value: str) -> None:
        self.set_header("content-type", value)

    @property
    def has_body(self) -> bool:
        return self.status not in _WITHOUT_BODY

    def head(self, date: bytes, *, is_last: bool, is_chunked: bool) -> bytes:
        """Encode the head: the headers of every answer, those of this one, and its framing."""
        headers = self.headers
        if self.data:
            headers.pop("content-length", None)  # computed from the data instead
        text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]).encode("latin-1", "replace")
        if not self.has_body or "content-length" in headers:
            end = b""
        elif self.stream is None:
            end = b"content-length: %d\r\n" % len(self.data)
        else:
            end = b"transfer-encoding: chunked\r\n" if is_chunked else b""
        if is_last:
            end += b"connection: close\r\n"
        return b"%b%b%b%b\r\n" % (head_start(self.status, POLICY in headers), date, text, end)
