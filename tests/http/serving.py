"""A server in its own thread, and clients on plain sockets, for the tests of the HTTP layer."""

import asyncio
import json
import socket
import ssl
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from chargehand.http.connection import App, Bounds
from chargehand.http.request import Disconnected, Request
from chargehand.http.response import Response
from chargehand.http.server import HttpServer
from chargehand.http.tls import Tls

T = TypeVar("T")

WIDE = Bounds(
    max_header_bytes=8192,
    header_timeout_seconds=30,
    body_timeout_seconds=30,
    keep_alive_seconds=30,
    max_connections=100,
    drain_seconds=5,
)
GET = b"GET %s HTTP/1.1\r\nHost: here\r\n\r\n"
POST = b"POST %s HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n"
EXPECT = b"POST %s HTTP/1.1\r\nHost: here\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n"
CHUNKED = b"POST %s HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


class Handlers:
    """The application under test; the thread of the test sees what its handlers set."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()
        self.disconnected = threading.Event()
        self.requests: list[Request] = []

    async def __call__(self, req: Request) -> Response:
        self.requests.append(req)
        resp = Response()
        resp.set_header("x-path", req.path)
        resp.data = b"hello"
        if req.path in ("/echo", "/slow-echo"):
            await asyncio.sleep(1 if req.path == "/slow-echo" else 0)
            resp.data = await self.read(req)
        elif req.path == "/slow":
            await asyncio.sleep(1)
        elif req.path == "/held":
            self.entered.set()
            await asyncio.to_thread(self.released.wait, 20)
        elif req.path == "/ticks":
            resp.stream, resp.data = self.ticks(req), b""
        elif req.path == "/stuck":
            self.entered.set()
            await asyncio.Event().wait()
        elif req.path == "/stream":
            resp.stream, resp.data = self.numbers(), b""
        return resp

    async def ticks(self, req: Request) -> AsyncGenerator[bytes, None]:
        while not req.gone:
            yield b"tick"
            await asyncio.sleep(0.01)
        self.disconnected.set()

    async def numbers(self) -> AsyncGenerator[bytes, None]:
        for number in range(5):
            await asyncio.sleep(0.2)
            yield b"%d;" % number

    async def read(self, req: Request) -> bytes:
        self.entered.set()
        try:
            return b"".join([piece async for piece in req.pieces()])
        except Disconnected:
            self.disconnected.set()
            raise


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        assert self.headers["content-type"] == "application/problem+json"
        assert self.headers["connection"] == "close"
        problem: dict[str, Any] = json.loads(self.body)
        assert problem["status"] == self.status
        assert problem["code"] == f"http.{self.status}"
        return problem


class Client:
    def __init__(self, address: tuple[str, int], context: ssl.SSLContext | None = None) -> None:
        self.socket = socket.create_connection(address, timeout=10)
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname="localhost")
        self.reader = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> Answer:
        line = self.reader.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers: dict[str, str] = {}
        while (header := self.reader.readline()) != b"\r\n":
            name, _, value = header.decode().strip().partition(": ")
            headers[name] = value
        if headers.get("transfer-encoding") == "chunked":
            pieces: list[bytes] = []
            while size := int(self.reader.readline(), 16):
                pieces.append(self.reader.read(size))
                self.reader.readline()
            self.reader.readline()
            body = b"".join(pieces)
        else:
            body = self.reader.read(int(headers.get("content-length", 0)))  # 204 has none
        return Answer(int(line.split()[1]), headers, body)

    def ask(self, data: bytes) -> Answer:
        self.send(data)
        return self.answer()

    def trickle(self, piece: bytes) -> bytes:
        """Send the piece again and again, until the server answers or closes."""
        self.socket.settimeout(0.05)
        while True:
            try:
                self.send(piece)
                return self.socket.recv(12)
            except TimeoutError:
                continue
            except ConnectionError:
                return b""

    def is_closed(self) -> bool:
        """Wait for the server to close the connection; return False if it sends something instead."""
        try:
            return self.reader.read(1) == b""
        except ConnectionResetError:
            return True

    def is_heard(self) -> bool:
        try:
            self.send(b"x")
        except ConnectionError:
            return False
        return True

    def close(self) -> None:
        self.reader.close()
        self.socket.close()


class Running:
    """A server on its own loop in its own thread, so that the tests can use plain sockets."""

    def __init__(self, loop_factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        self.loop = loop_factory()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.servers: list[HttpServer] = []
        self.clients: list[Client] = []

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout=20)

    def start(
        self, app: App, bounds: Bounds = WIDE, host: str = "127.0.0.1", port: int = 0, tls: Tls | None = None
    ) -> HttpServer:
        server = HttpServer(bounds)
        self.call(server.start(app, host, port, tls))
        self.servers.append(server)
        return server

    def client(self, server: HttpServer, context: ssl.SSLContext | None = None) -> Client:
        client = Client(server.addresses[0], context)
        self.clients.append(client)
        return client

    def stop(self) -> None:
        for client in self.clients:
            client.close()
        for server in self.servers:
            self.call(server.drain())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds
