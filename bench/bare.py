"""The least that a server in Python can do for a request: httptools parses it, a fixed answer is written.

`python -m bench.bare` prints its URL and ends with its standard input.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop

BODY = b'{"job_id":"01JZZZZZZZZZZZZZZZZZZZZZZZ"}'
ANSWER = b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Bare(asyncio.Protocol):
    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        """The parser calls this at the end of each request."""
        self._transport.write(ANSWER)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Bare, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(main())
