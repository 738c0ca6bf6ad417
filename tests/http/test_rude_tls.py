"""Clients that disconnect over TLS. It has no half-closed connections: close_notify ends both sides."""

import contextlib
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.server import HttpServer
from chargehand.http.tls import Tls
from tests.http.sequences import CLOSE, chunked, get, post
from tests.http.serving import EXPECT, POST, Client, Handlers, Running
from tests.http.test_rude_clients import Noted, reset, wait_until_nothing_is_left
from tests.http.test_tls import Certificates

LARGE = 5_000_000


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder: Path = tmp_path_factory.mktemp("certificates")
    return Certificates(folder)


def goodbye(client: Client) -> None:
    """Send close_notify, and leave the TCP connection open."""
    secured = client.socket
    assert isinstance(secured, ssl.SSLSocket)
    secured.setblocking(False)
    with contextlib.suppress(ssl.SSLError):  # raised unless the server has already answered
        secured.unwrap()
    secured.setblocking(True)


def cut(client: Client) -> None:
    client.socket.shutdown(socket.SHUT_WR)


def tls(certificates: Certificates) -> Tls:
    return Tls(certificates.server.certificate_path, certificates.server.key_path, None)


@pytest.fixture
def app() -> Noted:
    return Noted()


@pytest.mark.parametrize("leave", [goodbye, cut, reset, Client.close])
@pytest.mark.parametrize("size", [0, 300_000])
def test_a_waiting_handler_notices_a_tls_close(
    running: Running, certificates: Certificates, app: Noted, leave: Callable[[Client], None], size: int
) -> None:
    server: HttpServer = running.start(app, tls=tls(certificates))
    client = running.client(server, certificates.trusting())
    client.send(POST % (b"/wait", size) + b"x" * size)
    assert app.has_body.wait(10)
    leave(client)
    assert app.told.wait(10)
    client.close()
    wait_until_nothing_is_left(running, server, app)


def test_requests_over_tls_may_be_split_and_pipelined(
    running: Running, certificates: Certificates, handlers: Handlers
) -> None:
    client = running.client(running.start(handlers, tls=tls(certificates)), certificates.trusting())
    data = get(b"/one") + post(b"/echo", b"hello") + chunked(b"/echo", b"he", b"llo") + get(b"/two", CLOSE)
    for place in range(0, len(data), 5):
        client.send(data[place : place + 5])
    assert client.answer().headers["x-path"] == "/one"
    assert client.answer().body == b"hello"
    assert client.answer().body == b"hello"
    assert client.answer().headers["x-path"] == "/two"
    assert client.is_closed()


@pytest.mark.parametrize(
    "request_bytes", [b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhalf", EXPECT % b"/"]
)
def test_a_large_answer_to_a_body_that_is_not_read_arrives_whole(
    running: Running, certificates: Certificates, request_bytes: bytes
) -> None:
    async def large(_req: Request) -> Response:
        resp = Response()
        resp.data = b"x" * LARGE
        return resp

    client = running.client(running.start(large, tls=tls(certificates)), certificates.trusting())
    assert len(client.ask(request_bytes).body) == LARGE
    assert client.is_closed()
