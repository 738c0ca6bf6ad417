"""Clients that close one or both sides of a connection at any moment: handlers notice, and nothing leaks."""

import asyncio
import socket
import struct
import threading
import time
from collections.abc import AsyncGenerator, Callable

import pytest

from chargehand.http.request import Disconnected, Request
from chargehand.http.response import Response
from chargehand.http.server import HttpServer
from tests.http.serving import CHUNKED, GET, POST, Client, Running


class Noted:
    """An application that records which handlers noticed a disconnect, and which streams were closed."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.has_body = threading.Event()
        self.told = threading.Event()
        self.begun = 0
        self.closed = 0
        self.go_on: asyncio.Event | None = None

    async def __call__(self, req: Request) -> Response:
        self.go_on = self.go_on or asyncio.Event()
        self.entered.set()
        resp = Response()
        try:
            await self.handle(req, resp)
        except Disconnected:
            self.told.set()
            raise
        return resp

    async def handle(self, req: Request, resp: Response) -> None:
        if req.path == "/read":
            resp.data = b"".join([piece async for piece in req.pieces()])
        elif req.path == "/wait":
            await self.take(req)
            await req.unless_gone(asyncio.Event().wait())
        elif req.path == "/leaving":
            await self.take(req)
            await req.leaving()
            self.told.set()
            resp.data = b"farewell"
        elif req.path == "/held":
            assert self.go_on is not None
            await self.go_on.wait()
            resp.data = b"plain"
        elif req.path == "/held-stream":
            assert self.go_on is not None
            self.begun += 1
            resp.stream = self.stream(few=True)
            await self.go_on.wait()
        elif req.path.endswith("stream"):
            self.begun += 1
            resp.stream = self.stream(few=req.path == "/short-stream")
        else:
            resp.data = b"hello"

    async def take(self, req: Request) -> None:
        while await req.next_piece():
            pass
        self.has_body.set()

    async def stream(self, *, few: bool) -> AsyncGenerator[bytes, None]:
        try:
            yield b"first"
            while not few:
                await asyncio.sleep(0.001)
                yield b"more"
        finally:
            self.closed += 1

    async def release(self) -> None:
        assert self.go_on is not None
        self.go_on.set()


def reset(client: Client) -> None:
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def half_close(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until, "this did not become true in time"
        time.sleep(0.005)


def wait_until_nothing_is_left(running: Running, server: HttpServer, app: Noted) -> None:
    async def tasks() -> int:
        return len(asyncio.all_tasks())

    serving = server._serving
    assert serving is not None
    wait_until(lambda: not serving.connections and not serving.tasks)
    wait_until(lambda: app.begun == app.closed)
    wait_until(lambda: running.call(tasks()) == 2)  # the sweep, and the one that counts


# Half-closed connections


@pytest.mark.parametrize("request_bytes", [GET % b"/held", POST % (b"/held", 5) + b"hello"])
def test_a_client_that_closes_its_side_still_gets_its_answer(running: Running, request_bytes: bytes) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(request_bytes)
    assert app.entered.wait(10)
    half_close(client)
    running.call(app.release())
    assert client.answer().body == b"plain"
    assert client.is_closed()
    wait_until_nothing_is_left(running, server, app)


def test_a_client_that_sends_requests_and_closes_its_side_at_once_gets_all_answers(running: Running) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(GET % b"/a" + POST % (b"/read", 5) + b"hello" + GET % b"/short-stream" + GET % b"/b")
    half_close(client)
    assert [client.answer().body for _ in range(4)] == [b"hello", b"hello", b"first", b"hello"]
    assert client.is_closed()
    wait_until_nothing_is_left(running, server, app)


@pytest.mark.parametrize("path", [b"/wait", b"/leaving"])
@pytest.mark.parametrize("leave", [half_close, reset, Client.close])
@pytest.mark.parametrize("size", [0, 300_000])
def test_a_waiting_handler_notices_a_disconnect_at_once(
    running: Running, path: bytes, leave: Callable[[Client], None], size: int
) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(POST % (path, size) + b"x" * size)
    assert app.has_body.wait(10)
    leave(client)
    assert app.told.wait(10)
    if path == b"/leaving" and leave is half_close:
        assert client.answer().body == b"farewell"
    wait_until_nothing_is_left(running, server, app)


@pytest.mark.parametrize("begun", [b"GET /read HT", b"GET /read HTTP/1.1\r\nHost: h", b"\r\n", b""])
def test_a_client_that_closes_its_side_within_a_header_is_disconnected(running: Running, begun: bytes) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(begun)
    half_close(client)
    assert client.is_closed()
    assert not app.entered.is_set()
    wait_until_nothing_is_left(running, server, app)


@pytest.mark.parametrize(
    "begun", [POST % (b"/read", 9) + b"half", CHUNKED % b"/read" + b"5\r\nhel", CHUNKED % b"/read"]
)
def test_a_client_that_closes_its_side_within_a_body_gets_no_answer(running: Running, begun: bytes) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(begun)
    half_close(client)
    assert client.is_closed()
    assert app.told.wait(10)
    wait_until_nothing_is_left(running, server, app)


# Resets


PHASES = {
    "before the first byte": b"",
    "in the request line": b"GET /re",
    "in the header": b"GET /read HTTP/1.1\r\nHost",
    "before the body": POST % (b"/read", 9),
    "in the body": POST % (b"/read", 9) + b"half",
    "in a chunk": CHUNKED % b"/read" + b"5\r\nhel",
    "in the size of a chunk": CHUNKED % b"/read" + b"5\r\nhello\r\n1",
    "in a trailer": CHUNKED % b"/read" + b"0\r\nX: y",
    "while the handler waits": GET % b"/wait",
    "behind the answer": GET % b"/hello",
    "in a stream": GET % b"/stream",
    "in a stream, with others in line": GET % b"/stream" + GET % b"/stream" * 3,
    "behind a stream": GET % b"/short-stream",
    "behind head of a stream": b"HEAD /stream HTTP/1.1\r\n\r\n",
    "with many in line": GET % b"/hello" * 100,
    "behind a refusal": b"no HTTP\r\n\r\n",
    "while it is told to go on": b"POST /read HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
    "behind an offer": b"POST /read HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5\r\n\r\n",
}
LISTENS = {"in a stream", "in a stream, with others in line", "behind the answer", "behind a refusal"}


@pytest.mark.parametrize("leave", [reset, Client.close, half_close])
def test_a_client_may_disconnect_at_any_moment(running: Running, leave: Callable[[Client], None]) -> None:
    app = Noted()
    server = running.start(app)
    for name, data in PHASES.items():
        for _ in range(3):
            client = running.client(server)
            client.send(data)
            if name in LISTENS:
                assert client.reader.readline().startswith(b"HTTP/1.1 ")
            leave(client)
            if leave is half_close and "stream" in name:
                reset(client)  # such a stream goes on for as long as the client reads
    wait_until(lambda: app.begun == app.closed)
    for client in running.clients:
        client.close()
    wait_until_nothing_is_left(running, server, app)
    assert running.client(server).ask(GET % b"/hello").body == b"hello"


# Streams without a reader


def test_a_stream_whose_client_disconnected_before_it_started_is_closed(running: Running) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(GET % b"/held-stream")
    assert app.entered.wait(10)
    reset(client)
    serving = server._serving
    assert serving is not None
    wait_until(lambda: not serving.connections)
    assert app.closed == 0
    running.call(app.release())
    wait_until_nothing_is_left(running, server, app)
    assert app.begun == 1


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_head_of_a_stream_closes_it_and_sends_no_body(running: Running, version: bytes) -> None:
    app = Noted()
    server = running.start(app)
    client = running.client(server)
    client.send(b"HEAD /stream HTTP/" + version + b"\r\nConnection: close\r\n\r\n")
    assert client.reader.read().endswith(b"\r\n\r\n")
    wait_until_nothing_is_left(running, server, app)
    assert app.begun == 1
