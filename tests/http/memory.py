"""A connection over a transport in memory: the test decides how the client's bytes are split, and nothing depends on the clock."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chargehand.http.connection import Bounds, Connection, Serving
from chargehand.http.request import Request
from chargehand.http.response import Response
from tests.http.serving import WIDE

PATIENCE = 10_000  # iterations of the loop, far more than any test needs


class Wire(asyncio.Transport):
    """The server's transport: it keeps what is written."""

    def __init__(self) -> None:
        super().__init__({})
        self.written = b""
        self.paused = False
        self.closing = False
        self.sent_eof = False
        self.unsent = 0
        self.protocol: asyncio.Protocol | None = None

    def write(self, data: Any) -> None:
        assert not self.sent_eof, "nothing may be written behind the end"
        if not self.closing:
            self.written += bytes(data)

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.sent_eof = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        if not self.closing:
            self.closing = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def pause_reading(self) -> None:
        assert not self.paused, "paused twice"
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused, "resumed twice"
        self.paused = False


@dataclass(frozen=True)
class Asked:
    """A request whose body was read to its end."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes


@dataclass
class Recorder:
    """An application that reads each body and answers with the number of requests so far."""

    begun: list[Request] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    async def __call__(self, req: Request) -> Response:
        self.begun.append(req)
        body = b"".join([piece async for piece in req.pieces()])
        target = req.path + (f"?{req.query_string}" if req.query_string else "")
        self.asked.append(Asked(req.method, target, tuple(req.headers.items()), body))
        resp = Response()
        resp.data = b"%d" % len(self.asked)
        return resp


class Talk:
    """One connection from its beginning to its end."""

    def __init__(self, app: Any = None, bounds: Bounds = WIDE) -> None:
        self.recorder: Any = app or Recorder()
        self.serving = Serving(self.recorder, bounds, date=b"")
        self.wire = Wire()
        self.connection = self.wire.protocol = Connection(self.serving, asyncio.get_running_loop())
        self.connection.connection_made(self.wire)

    async def send(self, *pieces: bytes) -> None:
        """Deliver each piece when the server reads, and let it work before the next."""
        for piece in pieces:
            for _ in range(PATIENCE):
                if not self.wire.paused or self.wire.closing:
                    break
                await asyncio.sleep(0)
            if self.wire.closing:
                return
            assert not self.wire.paused, "the server reads no more"
            self.connection.data_received(piece)
            await self.settle()

    async def settle(self) -> None:
        """Let the server do everything it can without another byte."""
        before: object = None
        quiet = 0
        for _ in range(PATIENCE):
            now = (len(self.wire.written), len(self.serving.tasks), self.wire.closing, self.wire.paused)
            quiet = quiet + 1 if now == before else 0
            if quiet > 5:
                return
            before = now
            await asyncio.sleep(0)
        raise AssertionError("the server does not come to rest")

    async def hang_up(self) -> None:
        """The client closes its side, and then the connection."""
        if not self.wire.closing:
            if not self.connection.eof_received():
                self.wire.close()
            await self.settle()
            self.wire.close()
        await self.settle()
        assert not self.serving.connections
        assert not self.serving.tasks

    @property
    def is_open(self) -> bool:
        return not self.wire.closing and not self.wire.sent_eof

    @property
    def statuses(self) -> list[int]:
        return statuses(self.wire.written)


def statuses(written: bytes) -> list[int]:
    """Return the final statuses of consecutive answers with a Content-Length; nothing may be between them."""
    found: list[int] = []
    while written:
        head, end, written = written.partition(b"\r\n\r\n")
        assert end, head
        line, *headers = head.split(b"\r\n")
        version, status = line.split(b" ")[:2]
        assert version == b"HTTP/1.1", line
        if status == b"100":
            continue
        lengths = [int(header[16:]) for header in headers if header.startswith(b"content-length: ")]
        assert len(lengths) == 1, head
        assert len(written) >= lengths[0], "an answer was cut off"
        written = written[lengths[0] :]
        found.append(int(status))
    return found


async def talk(*pieces: bytes, bounds: Bounds = WIDE) -> Talk:
    """Send the pieces on a new connection."""
    one = Talk(bounds=bounds)
    await one.send(*pieces)
    return one
