"""Requests of real clients are parsed here as by aiohttp's server, which has a different parser."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import product

import pytest

from chargehand.http.request import Request
from chargehand.http.response import Response
from tests.http.serving import Client, Running

HOST = b"Host: 127.0.0.1:8484\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
CLIENTS = {
    "curl": HOST + b"User-Agent: curl/8.5.0\r\nAccept: */*\r\n",
    "aiohttp": HOST + b"Accept: */*\r\nAccept-Encoding: gzip, deflate\r\nUser-Agent: Python/3.11 aiohttp/3.14.0\r\n",
    "requests": HOST + b"User-Agent: python-requests/2.32\r\nAccept-Encoding: gzip, deflate\r\nAccept: */*\r\nConnection: keep-alive\r\n",
    "Go": HOST + b"User-Agent: Go-http-client/1.1\r\nAccept-Encoding: gzip\r\n",
    "Java": (
        b"Connection: Upgrade, HTTP2-Settings\r\n" + HOST + b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
        b"Upgrade: h2c\r\nUser-Agent: Java-http-client/21\r\n"
    ),
    "a browser": (
        HOST + b'Connection: keep-alive\r\nsec-ch-ua: "Chromium";v="140", "Not=A?Brand";v="24"\r\nsec-ch-ua-mobile: ?0\r\n'
        b"Accept: text/event-stream\r\nOrigin: http://127.0.0.1:8484\r\nSec-Fetch-Site: same-origin\r\nSec-Fetch-Mode: cors\r\n"
        b"Referer: http://127.0.0.1:8484/console/\r\nAccept-Language: de-DE,de;q=0.9,en;q=0.8\r\nCookie: a=b; c=d\r\nCookie: e=f\r\n"
    ),
    "Ollama's client": (
        HOST + b"Accept: application/json\r\nAccept-Encoding: gzip, deflate, zstd\r\nConnection: keep-alive\r\n"
        b"User-Agent: ollama-python/0.6.0 (x86_64 linux) Python/3.11.7\r\n"
    ),
    "one without manners": b"host:127.0.0.1:8484\r\nX-EMPTY:\r\nx-spaces:   a  b\t \r\nX-Utf: caf\xc3\xa0\r\nX-Again: 1\r\nx-again: 2\r\n",
}  # fmt: skip
TARGETS = [
    b"/",
    b"/api/tags",
    b"/v1/jobs/01J?after=7&wait=30",
    b"/a%20b/%C3%A4?q=%26+x",
    b"/a//b/../c?",
    b"/a?b?c=d/e#f",
]
BODIES = [b"", b'{"model":"smollm2","stream":false}', bytes(range(256)) * 300]


@dataclass(frozen=True)
class Case:
    client: str
    name: str
    data: bytes


def _cases() -> Iterator[Case]:
    for client, headers in CLIENTS.items():
        for target, method in product(TARGETS, (b"GET", b"HEAD")):
            yield Case(
                client,
                f"{method.decode()} {target.decode()}",
                method + b" " + target + b" HTTP/1.1\r\n" + headers + b"\r\n",
            )
        for method in (b"DELETE", b"OPTIONS"):
            yield Case(client, method.decode(), method + b" /v1/jobs/1 HTTP/1.1\r\n" + headers + b"\r\n")
        yield Case(
            client,
            "close",
            b"GET /close HTTP/1.1\r\n"
            + headers.replace(b"Connection: keep-alive\r\n", b"")
            + b"Connection: close\r\n\r\n",
        )
        for number, body in enumerate(BODIES):
            length = b"Content-Length: %d\r\n\r\n" % len(body)
            for method in (b"POST", b"PUT", b"PATCH"):
                start = method + b" /v1/jobs HTTP/1.1\r\n" + headers + JSON_TYPE
                yield Case(client, f"{method.decode()} of body {number}", start + length + body)
            start = b"POST /v1/jobs HTTP/1.1\r\n" + headers + JSON_TYPE
            yield Case(client, f"expected body {number}", start + b"Expect: 100-continue\r\n" + length + body)
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part)
            yield Case(
                client,
                f"chunks of body {number}",
                start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n",
            )
    yield Case("ab", "HTTP/1.0", b"GET /old HTTP/1.0\r\nHost: x\r\nUser-Agent: ApacheBench/2.3\r\nAccept: */*\r\n\r\n")
    yield Case("wget", "HTTP/1.0 with keep-alive", b"GET /old HTTP/1.0\r\nHost: x\r\nConnection: Keep-Alive\r\n\r\n")
    yield Case("a proxy", "scheme and host", b"GET http://there/a?b HTTP/1.1\r\nHost: there\r\n\r\n")


CASES = list(_cases())


async def echo(req: Request) -> Response:
    body = b"".join([piece async for piece in req.pieces()])
    seen = [req.method, req.path, req.query_string, req.headers, len(body), sha256(body).hexdigest()]
    resp = Response()
    resp.set_header("x-seen", json.dumps(seen))
    return resp


@dataclass(frozen=True)
class Outcome:
    status: int
    seen: list[object]
    stays_open: bool


def ask(client: Client, data: bytes) -> Outcome:
    client.send(data)
    status, seen = _read(client)
    try:
        client.send(b"GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
        stays_open = client.reader.peek(1) != b"" and _read(client)[0] == 200
    except ConnectionError:
        stays_open = False
    client.close()
    return Outcome(status, seen, stays_open)


def _read(client: Client) -> tuple[int, list[object]]:
    status, seen = 100, []
    while status < 200:
        status = int(client.reader.readline().split()[1])
        while (line := client.reader.readline().strip()) != b"":
            if line.startswith(b"x-seen: "):
                seen = json.loads(line[8:])
    return status, seen


@pytest.fixture(scope="module")
def other() -> Iterator[tuple[str, int]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.http.aiohttp_echo"],
        stdout=subprocess.PIPE,
        env={**os.environ, "AIOHTTP_NO_EXTENSIONS": "1"},
    )
    assert process.stdout is not None
    try:
        yield "127.0.0.1", int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def expected(case: Case, theirs: Outcome) -> Outcome:
    """Return how aiohttp's server parsed it, except for intended differences."""
    stays_open, seen = theirs.stays_open, list(theirs.seen)
    headers = dict(seen[3])  # type: ignore[call-overload]
    if case.client == "Java":
        del headers["upgrade"]  # an upgrade is declined by serving the request without it
    if case.client == "wget":
        stays_open = (
            False  # a connection with HTTP/1.0 always ends after one answer here: only that marks the end of a stream
        )
    if case.client == "a proxy":
        seen[1] = "/a"  # scheme and host of the target are ignored here; aiohttp passes them to the application
    seen[3] = headers
    return Outcome(theirs.status, seen, stays_open)


def test_aiohttp_parses_requests_of_real_clients_as_we_do(running: Running, other: tuple[str, int]) -> None:
    server = running.start(echo)
    assert len(CASES) >= 200
    for case in CASES:
        theirs = ask(Client(other), case.data)
        assert theirs.seen, case
        assert ask(Client(server.addresses[0]), case.data) == expected(case, theirs), (case.client, case.name)
