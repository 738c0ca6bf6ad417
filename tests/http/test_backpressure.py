"""Clients that send requests and do not read the answers: their buffers stay small, and they are cut off in the end."""

import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from chargehand.http.connection import Connection
from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.server import HttpServer
from tests.http.serving import GET, WIDE, Client, Running

PIECE = b"x" * 100_000
LARGE = 8_000_000  # more than the sockets between client and server hold
MANY = 300  # pieces


class Large:
    """Answers in one piece, or as a stream that counts the pieces it yielded."""

    def __init__(self) -> None:
        self.answers = 0
        self.pieces = 0
        self.closed = threading.Event()

    async def __call__(self, req: Request) -> Response:
        resp = Response()
        self.answers += 1
        if req.path == "/stream":
            resp.stream = self.stream()
        else:
            resp.data = b"x" * (LARGE if req.path == "/large" else len(PIECE))
        return resp

    async def stream(self) -> AsyncGenerator[bytes, None]:
        try:
            for _ in range(MANY):
                self.pieces += 1
                yield PIECE
        finally:
            self.closed.set()


def connections(server: HttpServer) -> list[Connection]:
    assert server._serving is not None
    return list(server._serving.connections)


async def unsent(server: HttpServer) -> int:
    return sum(connection._transport.get_write_buffer_size() for connection in connections(server))


def wait_until(holds: Callable[[], bool], seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "this did not become true in time"
        time.sleep(0.01)


def come_to_rest(count: Callable[[], int]) -> int:
    """Wait until a growing number stops growing, and return it."""
    wait_until(lambda: count() > 0)
    seen, since = count(), time.monotonic()
    while time.monotonic() - since < 0.5:
        time.sleep(0.02)
        if count() != seen:
            seen, since = count(), time.monotonic()
    return seen


def send_what_is_taken(client: Client, data: bytes, times: int) -> None:
    """Send without reading, until the server reads no more."""
    client.socket.settimeout(1)
    try:
        for _ in range(times):
            client.send(data)
    except TimeoutError:
        pass
    client.socket.settimeout(10)


def test_a_stream_pauses_while_its_client_reads_nothing(running: Running) -> None:
    app = Large()
    server = running.start(app)
    client = running.client(server)
    client.send(GET % b"/stream")
    assert come_to_rest(lambda: app.pieces) < MANY / 2
    assert running.call(unsent(server)) < 1_000_000
    assert len(client.answer().body) == MANY * len(PIECE)
    assert app.closed.wait(10)


def test_no_further_pipelined_requests_are_served_while_the_client_reads_nothing(running: Running) -> None:
    app = Large()
    server = running.start(app)
    client = running.client(server)
    send_what_is_taken(client, GET % b"/piece" * 100, 1000)
    assert come_to_rest(lambda: app.answers) < 200
    assert running.call(unsent(server)) < 1_000_000


def test_a_client_that_pipelined_and_then_reads_gets_all_answers(running: Running) -> None:
    app = Large()
    client = running.client(running.start(app))
    client.send(GET % b"/piece" * 100)
    assert come_to_rest(lambda: app.answers) <= 100
    for _ in range(100):
        assert len(client.answer().body) == len(PIECE)
    assert client.ask(GET % b"/piece").status == 200


def test_a_client_that_reads_nothing_for_too_long_is_cut_off(running: Running) -> None:
    app = Large()
    server = running.start(app, replace(WIDE, stall_seconds=0.3))
    streaming, whole = running.client(server), running.client(server)
    streaming.send(GET % b"/stream")
    whole.send(GET % b"/large")
    assert app.closed.wait(20)
    wait_until(lambda: not connections(server))
