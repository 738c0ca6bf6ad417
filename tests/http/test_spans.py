"""Files sent with sendfile: the same bytes as if they were read, for clients that read fast, slowly, in part or not at all."""

import os
import socket
import threading
from collections.abc import AsyncGenerator
from dataclasses import replace
from io import FileIO
from pathlib import Path

import pytest

from chargehand.http.connection import Bounds
from chargehand.http.request import Request
from chargehand.http.response import FileSpan, Response
from chargehand.http.server import HttpServer
from chargehand.http.spans import AT_ONCE, PIECE_BYTES, STRIDE
from chargehand.http.tls import Tls
from tests.http.serving import GET, WIDE, Client, Running, at_most
from tests.http.test_backpressure import connections, unsent, wait_until
from tests.http.test_tls import Certificates

LARGE = 32 << 20  # more than the sockets between client and server hold

Piece = bytes | tuple[Path, int, int]


class Pieces:
    """Answers with a sequence of bytes and file spans, and records whether the stream was closed."""

    def __init__(self, *pieces: Piece, with_length: bool = True) -> None:
        self.pieces = pieces
        self.with_length = with_length
        self.begun = threading.Event()
        self.closed = threading.Event()

    async def __call__(self, req: Request) -> Response:
        resp = Response()
        resp.stream = self.stream()
        if self.with_length:
            length = sum(len(piece) if isinstance(piece, bytes) else piece[2] for piece in self.pieces)
            resp.set_header("content-length", str(length))
        return resp

    async def stream(self) -> AsyncGenerator[bytes | FileSpan, None]:
        try:
            for piece in self.pieces:
                if isinstance(piece, bytes):
                    yield piece
                else:
                    with FileIO(piece[0]) as file:
                        self.begun.set()
                        yield FileSpan(file, *piece[1:])
        finally:
            self.closed.set()

    @property
    def whole(self) -> bytes:
        return b"".join(
            piece if isinstance(piece, bytes) else piece[0].read_bytes()[piece[1] : piece[1] + piece[2]]
            for piece in self.pieces
        )


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    path.write_bytes(os.urandom(LARGE))
    return path


def descriptors() -> list[str]:
    """Return the open descriptors of this process, except those opened by listing them."""
    links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(link) for link in links if link.is_symlink())


def slow_client(running: Running, app: Pieces, bounds: Bounds = WIDE) -> Client:
    """A client that has sent a request and reads nothing until the test lets it."""
    client = running.client(running.start(app, bounds))
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    client.send(GET % b"/")
    assert app.begun.wait(20)
    return client


@pytest.mark.parametrize("with_length", [True, False], ids=["length", "chunked"])
def test_bytes_and_parts_of_files_arrive_in_order(running: Running, large: Path, with_length: bool) -> None:
    app = Pieces(
        b"before",
        (large, 3, AT_ONCE + 1),
        bytes(200_000),
        (large, 0, 0),
        (large, LARGE - 7, 7),
        (large, STRIDE - 1, 2),
        b"after",
        with_length=with_length,
    )
    client = running.client(running.start(app))
    for _ in range(2):
        assert client.ask(GET % b"/").body == app.whole
    client.send(GET % b"/" * 3)
    for _ in range(3):
        assert client.answer().body == app.whole


def test_a_file_may_be_the_last_and_the_only_piece(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = running.client(running.start(app))
    client.send(b"GET / HTTP/1.0\r\n\r\n")
    _, _, body = client.reader.read().partition(b"\r\n\r\n")
    assert body == app.whole


def test_head_sends_nothing_of_a_file(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = running.client(running.start(app))
    client.send(b"HEAD / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
    assert client.reader.read().endswith(b"\r\n\r\n")
    assert app.closed.wait(20)


def test_a_client_that_reads_slowly_gets_the_whole_file(running: Running, large: Path) -> None:
    app = Pieces(b"x", (large, 1, LARGE - 1), with_length=False)
    client = slow_client(running, app)
    assert client.answer().body == app.whole


class Overtaken:
    """Yields a span while the transport has unwritten bytes although the socket could accept more."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.server: HttpServer | None = None
        self.bytes_before = 0
        self.full = threading.Event()
        self.has_room = threading.Event()

    async def __call__(self, req: Request) -> Response:
        resp = Response()
        resp.stream = self.stream()
        return resp

    async def stream(self) -> AsyncGenerator[bytes | FileSpan, None]:
        assert self.server is not None
        while not await unsent(self.server):
            self.bytes_before += 60_000  # less than the transport's high-water mark
            yield b"x" * 60_000
        self.full.set()
        assert self.has_room.wait(20)  # blocks the loop, so that the transport cannot write
        with FileIO(self.file) as file:
            yield FileSpan(file, 0, 1000)


def test_a_part_of_a_file_does_not_overtake_the_bytes_before_it(running: Running, large: Path) -> None:
    app = Overtaken(large)
    app.server = running.start(app)
    client = running.client(app.server)
    client.send(b"GET / HTTP/1.0\r\n\r\n")
    assert app.full.wait(20)
    taken = client.socket.recv(1 << 20)
    app.has_room.set()
    _, _, body = (taken + received(client)).partition(b"\r\n\r\n")
    assert body == b"x" * app.bytes_before + large.read_bytes()[:1000]


def test_a_file_that_is_not_cached_is_sent_too(running: Running, large: Path) -> None:
    with FileIO(large, "r+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    app = Pieces((large, 5, LARGE - 5))
    body = running.client(running.start(app)).ask(GET % b"/").body
    assert body == app.whole


def test_a_file_that_sendfile_does_not_support_is_read(running: Running) -> None:
    path = Path("/proc/self/auxv")
    size = len(path.read_bytes())
    with FileIO(path) as file, socket.socket() as other, pytest.raises(OSError, match="Invalid argument"):
        os.sendfile(other.fileno(), file.fileno(), 0, size)
    app = Pieces(b"before", (path, 0, size), b"after")
    assert running.client(running.start(app)).ask(GET % b"/").body == app.whole


def test_a_file_arrives_whole_over_tls(running: Running, large: Path, tmp_path: Path) -> None:
    app = Pieces(b"before", (large, 3, LARGE // 2), b"between", (large, 0, PIECE_BYTES + 1), with_length=False)
    certificates = Certificates(tmp_path)
    own = certificates.server
    server = HttpServer(WIDE)
    running.call(server.start(app, "127.0.0.1", 0, Tls(own.certificate_path, own.key_path, None)))
    running.servers.append(server)
    client = running.client(server)
    client.socket = certificates.trusting().wrap_socket(client.socket, server_hostname="localhost")
    client.reader = client.socket.makefile("rb")
    for _ in range(2):
        assert client.ask(GET % b"/").body == app.whole


@pytest.mark.parametrize("read", ["nothing", "some"])
def test_no_file_stays_open_after_a_client_disconnects(running: Running, large: Path, read: str) -> None:
    app = Pieces((large, 0, LARGE))
    server = running.start(app)
    running.client(server).ask(GET % b"/")
    running.clients.pop().close()
    wait_until(lambda: not connections(server))
    before = descriptors()
    app.closed.clear()
    client = running.client(server)
    client.send(GET % b"/")
    if read == "some":
        assert client.reader.read(AT_ONCE)
    running.clients.pop().close()
    assert app.closed.wait(20)
    wait_until(lambda: not connections(server))
    wait_until(lambda: descriptors() == before)


def test_a_file_that_shrinks_closes_the_connection(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = slow_client(running, app)
    os.truncate(large, LARGE // 2)
    received = client.reader.read()
    assert b"content-length: %d" % LARGE in received[:1000]
    assert len(received) < LARGE
    assert app.closed.wait(20)


def test_a_client_that_reads_nothing_of_a_file_is_cut_off(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = slow_client(running, app, replace(WIDE, stall_seconds=0.3))
    with at_most(20):
        assert app.closed.wait(20)
        wait_until(lambda: not connections(running.servers[0]))
        assert len(received(client)) < LARGE


def test_a_client_that_reads_a_file_very_slowly_is_not_cut_off(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = slow_client(running, app, replace(WIDE, stall_seconds=2.0))
    while client.reader.readline() != b"\r\n":
        pass
    body = b""
    for _ in range(12):  # in all for longer than stall_seconds
        body += client.reader.read(2 << 20)
        assert not app.closed.wait(0.25)
    assert body + client.reader.read(LARGE - len(body)) == app.whole


def test_drain_cuts_off_a_file_that_the_client_does_not_read(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = slow_client(running, app, replace(WIDE, drain_seconds=0.2))
    with at_most(10):
        running.call(running.servers[0].drain())
    assert app.closed.wait(20)
    assert len(received(client)) < LARGE


def test_drain_waits_for_a_file_that_the_client_reads(running: Running, large: Path) -> None:
    app = Pieces((large, 0, LARGE))
    client = slow_client(running, app)
    answers: list[bytes] = []
    reading = threading.Thread(target=lambda: answers.append(client.answer().body))
    reading.start()
    running.call(running.servers[0].drain())
    reading.join(20)
    assert answers == [app.whole]


def received(client: Client) -> bytes:
    pieces: list[bytes] = []
    try:
        while piece := client.socket.recv(PIECE_BYTES):
            pieces.append(piece)
    except ConnectionResetError:
        pass
    return b"".join(pieces)
