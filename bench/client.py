"""The connections of the load: a minimal HTTP/1.1 client, so that the server and not the client is the limit."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple, cast
from urllib.parse import urlsplit

TOKEN = "bench-token"  # the token that the measured server knows
LAST_CHUNK = b"\r\n0\r\n\r\n"


class Answer(NamedTuple):
    status: int
    body: bytes


class Streamed(NamedTuple):
    """A streamed answer."""

    first_at: float  # time.perf_counter() at the first byte of the body
    received: bytes  # the whole answer as it came over the wire: head, chunks and their framing


class Unexpected(Exception):
    """An answer after which a measurement cannot go on."""


def request(method: str, path: str, body: bytes = b"", key: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n"
    head += f"idempotency-key: {key}\r\n" if key else ""
    return f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


class Connection(asyncio.Protocol):
    """A keep-alive connection with one request at a time. Only the status and the length of an answer are parsed."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._answer: asyncio.Future[Answer] | None = None
        self._streamed: asyncio.Future[Streamed] | None = None
        self._received = b""
        self._pieces: list[bytes] = []
        self._first_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, data: bytes) -> "asyncio.Future[Answer]":
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._answer

    def stream(self, data: bytes) -> "asyncio.Future[Streamed]":
        self._streamed = asyncio.get_running_loop().create_future()
        self._pieces, self._first_at = [], 0.0
        self._transport.write(data)
        return self._streamed

    def data_received(self, data: bytes) -> None:
        if self._streamed is not None:
            self._piece_received(data, self._streamed)
            return
        data = self._received + data if self._received else data
        end = data.find(b"\r\n\r\n") + 4
        at = data.find(b"content-length: ", 0, end) + 16
        length = int(data[at : data.find(b"\r", at)]) if at > 15 else 0
        if end < 4 or len(data) < end + length:
            self._received = data
            return
        self._received = b""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(int(data[9:12]), data[end:]))

    def _piece_received(self, data: bytes, streamed: "asyncio.Future[Streamed]") -> None:
        """A chunked body is not unwrapped: lines of JSON cannot look like its end."""
        pieces = self._pieces
        pieces.append(data)
        if not self._first_at:
            head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
            if not body:
                return
            self._first_at = time.perf_counter()
            if not head.startswith(b"HTTP/1.1 200"):
                self._streamed = None
                streamed.set_exception(Unexpected(f"{head.decode()}\n{body.decode(errors='replace')[:500]}"))
                return
        if (data if len(data) >= len(LAST_CHUNK) else b"".join(pieces[-len(LAST_CHUNK) :])).endswith(LAST_CHUNK):
            self._streamed = None
            streamed.set_result(Streamed(self._first_at, b"".join(pieces)))

    def connection_lost(self, exc: Exception | None) -> None:
        for waiting in (self._answer, self._streamed):
            if waiting is not None and not waiting.done():
                waiting.set_exception(exc or ConnectionError("the server closed the connection"))

    def close(self) -> None:
        self._transport.abort()

    async def expect(self, data: bytes, *statuses: int) -> Answer:
        answer = await self.send(data)
        if answer.status not in statuses:
            line = data.partition(b"\r\n")[0].decode()
            raise Unexpected(f"{line} was answered {answer.status}: {answer.body.decode(errors='replace')[:500]}")
        return answer


@asynccontextmanager
async def connected(url: str, count: int) -> AsyncIterator[list[Connection]]:
    place, loop = urlsplit(url), asyncio.get_running_loop()
    host, port = place.hostname or "", place.port or 80
    connections: list[Connection] = []
    try:
        while len(connections) < count:
            some = range(min(64, count - len(connections)))
            opened = [loop.create_connection(Connection, host, port) for _ in some]
            connections += [connection for _, connection in await asyncio.gather(*opened)]
        yield connections
    finally:
        for connection in connections:
            connection.close()


Work = Callable[[Connection], Awaitable[object]]
