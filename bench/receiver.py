"""Receives webhooks with as little work as possible; a second port accepts connections and never answers.

`python -m bench.receiver` prints both URLs and ends with its standard input. GET tells what came so far.
"""

import asyncio
import sys
import time
from typing import cast

import msgspec
import uvloop

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Received(msgspec.Struct):
    count: int = 0
    body_bytes: int = 0
    last_at: float = 0.0  # time.monotonic(), which is the same for all processes


class Receiver(asyncio.Protocol):
    received = Received()
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._pending:
            data, self._pending = self._pending + data, b""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            self._pending = data
        elif data.startswith(b"GET"):
            body = msgspec.json.encode(self.received)
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        else:
            at = data.find(b"Content-Length: ", 0, end) + 16
            length = int(data[at : data.find(b"\r", at)])
            if len(data) < end + length:
                self._pending = data
                return
            self.received.count += 1
            self.received.body_bytes += length
            self.received.last_at = time.monotonic()
            self._transport.write(OK)


async def main() -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(kind, "127.0.0.1", 0) for kind in (Receiver, asyncio.Protocol)]
    print(*[f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
