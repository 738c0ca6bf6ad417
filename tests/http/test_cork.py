"""The head of an answer and the beginning of its body leave together; neither waits for what does not come."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from chargehand.http.cork import Cork
from chargehand.http.headers import protected

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"
SENT = protected(HEAD)


@asynccontextmanager
async def connected(act: Callable[[Cork], None]) -> AsyncIterator["asyncio.Queue[bytes]"]:
    """What a client receives, piece by piece, when the other side acts on its corked transport."""
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes] = asyncio.Queue()

    class Serving(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            act(Cork(transport, loop))

    class Reading(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            pieces.put_nowait(data)

        def connection_lost(self, exc: Exception | None) -> None:
            pieces.put_nowait(b"")

    server = await loop.create_server(Serving, "127.0.0.1", 0)
    client, _ = await loop.create_connection(Reading, *server.sockets[0].getsockname())
    try:
        yield pieces
    finally:
        client.close()
        server.close()
        await server.wait_closed()


async def received(pieces: "asyncio.Queue[bytes]") -> bytes:
    async with asyncio.timeout(5):
        return await pieces.get()


async def test_head_and_body_come_in_one_piece() -> None:
    def answer(cork: Cork) -> None:
        cork.write(HEAD)
        cork.write(b"ok")

    async with connected(answer) as pieces:
        assert await received(pieces) == SENT + b"ok"


async def test_a_head_whose_body_is_not_there_yet_goes_out_alone() -> None:
    async with connected(lambda cork: cork.write(HEAD)) as pieces:
        assert await received(pieces) == SENT


@pytest.mark.parametrize("end", [Cork.close, Cork.write_eof])
async def test_a_head_is_not_lost_when_the_connection_is_closed_at_once(end: Callable[[Cork], None]) -> None:
    def answer(cork: Cork) -> None:
        cork.write(HEAD)
        end(cork)

    async with connected(answer) as pieces:
        assert await received(pieces) == SENT


async def test_what_follows_the_first_piece_of_a_body_is_not_held_back() -> None:
    def answer(cork: Cork) -> None:
        cork.write(HEAD)
        cork.write(b"o")
        cork.write(b"k")

    async with connected(answer) as pieces:
        got = await received(pieces)
        if got != SENT + b"ok":
            got += await received(pieces)
        assert got == SENT + b"ok"


async def test_a_body_that_looks_like_a_head_is_sent_as_it_is() -> None:
    def answer(cork: Cork) -> None:
        cork.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        cork.write(HEAD)
        for _ in range(2):
            cork.write(HEAD)
        cork.new_answer = True
        cork.write(HEAD)
        cork.close()

    async with connected(answer) as pieces:
        got = b""
        while piece := await received(pieces):
            got += piece
        assert got == b"HTTP/1.1 100 Continue\r\n\r\n" + SENT + HEAD + HEAD + SENT
