"""The HTTP client of webhooks against servers on loopback, on asyncio's event loop and on the server's."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from chargehand import __version__
from chargehand.webhooks import pool as pools
from chargehand.webhooks.egress import EgressPolicy, Resolve, refusal
from chargehand.webhooks.exchange import CallFailed
from chargehand.webhooks.pool import ConnectionPool
from tests.api.serving import until
from tests.webhooks.authority import Authority

LOCAL = EgressPolicy(allow_local=True)
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Listener:
    """Answers each request with the next of `script`, then with `otherwise`; an empty answer closes the connection."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []
        self.script: list[bytes] = []
        self.otherwise = OK
        self.opened = 0
        self.names: list[str | None] = []  # that TLS was asked for
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0])
                self.heard.append(head + await reader.readexactly(length))
                said = self.script.pop(0) if self.script else self.otherwise
                if not said:
                    break
                writer.write(said)
        writer.close()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()

    @property
    def connected(self) -> int:
        return sum(not writer.is_closing() for writer in self._writers)


@contextlib.asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Listener]:
    listener = Listener()
    if tls is not None:
        tls.sni_callback = lambda _socket, name, _context: listener.names.append(name)
    server = await asyncio.start_server(listener.serve, host, 0, ssl=tls)
    listener.port = server.sockets[0].getsockname()[1]
    try:
        yield listener
    finally:
        server.close()
        listener.hang_up()


def open_pool(resolve: Resolve | None = None, **settings: Any) -> ConnectionPool:
    return ConnectionPool(
        LOCAL, **{"timeout_seconds": 30, "answer_bytes": 100, "max_idle": 8, "resolve": resolve, **settings}
    )


def always(*addresses: str) -> Resolve:
    async def resolve(host: str, family: socket.AddressFamily) -> Iterable[str]:
        return addresses

    return resolve


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with listening() as opened:
        yield opened


@pytest.fixture
def url(listener: Listener) -> str:
    return f"http://127.0.0.1:{listener.port}/hook?a=%2F"


async def post(pool: ConnectionPool, url: str, body: bytes = b"{}") -> int:
    return (await pool.post(url, {"webhook-id": "1"}, body)).status


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_request_has_only_the_expected_headers(listener: Listener, url: str) -> None:
    async with open_pool() as pool:
        answer = await pool.post(url, {"webhook-id": "1", "X-Other": "2"}, b"{}")
    assert (answer.status, answer.body) == (200, b"ok")
    lines = [
        "POST /hook?a=%2F HTTP/1.1",
        f"Host: 127.0.0.1:{listener.port}",
        f"User-Agent: chargehand/{__version__}",
        "Content-Type: application/json",
        "Content-Length: 2",
        "webhook-id: 1",
        "X-Other: 2",
        "",
        "{}",
    ]
    assert listener.heard == ["\r\n".join(lines).encode()]


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nb", "a\rb", "\r\n", "é"])
@pytest.mark.parametrize("part", ["name", "value"])
async def test_a_header_with_a_line_break_is_refused(listener: Listener, url: str, part: str, value: str) -> None:
    async with open_pool() as pool:
        with pytest.raises(ValueError, match=r"line break|ascii"):
            await pool.post(url, {value: "x"} if part == "name" else {"X": value}, b"")
    assert listener.opened == 0


@pytest.mark.parametrize("target", ["/ HTTP/1.1\r\nX: y", "/a b", "/a\x00b"])
async def test_a_malformed_url_is_not_called(listener: Listener, target: str) -> None:
    async with open_pool() as pool:
        with pytest.raises(ValueError, match="the URL holds"):
            await post(pool, f"http://127.0.0.1:{listener.port}{target}")
    assert listener.opened == 0


async def test_a_redirect_is_returned_and_not_followed(listener: Listener, url: str) -> None:
    async with listening() as other, open_pool() as pool:
        location = b"Location: http://127.0.0.1:%d/" % other.port
        listener.otherwise = b"HTTP/1.1 307 There\r\n" + location + b"\r\nContent-Length: 0\r\n\r\n"
        assert await post(pool, url) == 307
        assert other.opened == 0


# ── connections ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_connection_is_reused(listener: Listener, url: str) -> None:
    async with open_pool() as pool:
        for _ in range(5):
            assert await post(pool, url) == 200
    assert listener.opened == 1
    assert len(listener.heard) == 5


async def test_concurrent_requests_use_separate_connections(listener: Listener, url: str) -> None:
    async with open_pool() as pool:
        for _ in range(3):
            assert await asyncio.gather(*[post(pool, url) for _ in range(4)]) == [200] * 4
    assert listener.opened == 4


async def test_a_connection_is_reused_only_for_the_same_host_and_port(listener: Listener) -> None:
    resolve = always("127.0.0.1")
    async with listening() as other, open_pool(resolve) as pool:
        for port in (listener.port, other.port):
            for name in ("one.example", "two.example"):
                assert await post(pool, f"http://{name}:{port}/") == 200
    assert (listener.opened, other.opened) == (2, 2)
    assert b"Host: one.example:%d\r\n" % listener.port in listener.heard[0]


async def test_at_most_max_idle_connections_are_kept(listener: Listener, url: str) -> None:
    async with open_pool(max_idle=3) as pool:
        await asyncio.gather(*[post(pool, url) for _ in range(10)])
        assert listener.opened == 10
        assert len(pool._idle) == len(pool._open) == 3
        assert sum(map(len, pool._by_origin.values())) == 3


async def test_an_idle_connection_is_closed_after_the_idle_time(
    listener: Listener, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0.05)
    async with open_pool() as pool:
        await asyncio.gather(*[post(pool, url) for _ in range(3)])
        await until(lambda: not pool._open)
        assert not pool._idle
        assert not pool._by_origin
        assert await post(pool, url) == 200


async def test_a_connection_that_the_receiver_closed_is_not_reused(listener: Listener, url: str) -> None:
    async with open_pool() as pool:
        for opened in (1, 2, 3):
            assert await post(pool, url) == 200
            assert listener.opened == opened
            listener.hang_up()
            await until(lambda: not pool._open)


async def test_a_connection_closed_before_the_event_loop_noticed_is_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "SURE_SECONDS", 0.0)
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        async def serve() -> socket.socket:
            accepted, _ = await loop.sock_accept(server)
            await loop.sock_recv(accepted, 1 << 16)
            await loop.sock_sendall(accepted, OK)
            return accepted

        async with open_pool() as pool:
            url = f"http://127.0.0.1:{server.getsockname()[1]}/"
            for _ in range(3):
                accepted, status = await asyncio.gather(serve(), post(pool, url))
                assert status == 200
                accepted.close()  # and the pool is used again before the event loop has noticed


async def test_a_request_is_never_sent_twice(listener: Listener, url: str) -> None:
    listener.script = [OK, b""]  # the second arrives on a reused connection and is not answered
    async with open_pool() as pool:
        assert await post(pool, url, b"1") == 200
        with pytest.raises(CallFailed, match="closed the connection"):
            await post(pool, url, b"2")
        assert await post(pool, url, b"3") == 200
    assert [heard[-1:] for heard in listener.heard] == [b"1", b"2", b"3"]


async def test_cancelling_a_request_closes_its_connection(listener: Listener, url: str) -> None:
    listener.script = [b"HTTP/1.1 200 OK\r\n"]
    async with open_pool() as pool:
        asking = asyncio.create_task(post(pool, url))
        await until(lambda: listener.heard)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        assert not pool._open
        assert await post(pool, url) == 200


async def test_closing_the_pool_closes_its_connections(listener: Listener, url: str) -> None:
    listener.script = [OK, OK, b"HTTP/1.1 200 OK\r\n"]
    async with open_pool() as pool:
        await asyncio.gather(post(pool, url), post(pool, url))
        asking = asyncio.create_task(post(pool, url))
        await until(lambda: len(listener.heard) == 3)
    with pytest.raises(CallFailed):
        await asking
    await until(lambda: not listener.connected)


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_lookup_handshake_and_answer_all_count_towards_the_timeout(listener: Listener, url: str) -> None:
    never = asyncio.Event()

    async def resolve(host: str, family: socket.AddressFamily) -> Iterable[str]:
        await never.wait()
        return ()

    listener.otherwise = b"HTTP/1.1 200 OK\r\n"
    began = time.monotonic()
    async with open_pool(resolve, timeout_seconds=0.05) as pool:
        for place in (
            "http://name.example/",  # the lookup
            f"https://127.0.0.1:{listener.port}/",  # the handshake of TLS
            url,  # the answer
        ):
            with pytest.raises(TimeoutError):
                await post(pool, place)
        assert not pool._open
        pool._dialler._lookups["name.example"].cancel()
    assert time.monotonic() - began < 10


async def test_a_lookup_continues_for_other_callers_when_one_is_cancelled(listener: Listener) -> None:
    answered = asyncio.Event()
    asked = 0

    async def resolve(host: str, family: socket.AddressFamily) -> Iterable[str]:
        nonlocal asked
        asked += 1
        await answered.wait()
        return ["127.0.0.1"]

    async with open_pool(resolve) as pool:
        url = f"http://name.example:{listener.port}/"
        first, second = asyncio.create_task(post(pool, url)), asyncio.create_task(post(pool, url))
        await until(lambda: asked)
        first.cancel()
        answered.set()
        assert await second == 200
        assert first.cancelled()
    assert asked == 1


async def test_names_are_cached_for_a_limited_time_and_in_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chargehand.webhooks.dialling.MAX_NAMES", 3)
    async with listening() as listener, open_pool(always("127.0.0.1")) as pool:
        for number in range(10):
            assert await post(pool, f"http://name{number}.example:{listener.port}/") == 200
        assert list(pool._dialler._lookups) == ["name7.example", "name8.example", "name9.example"]
        lookup = pool._dialler._lookups["name9.example"]
        pool._dialler._forget("name9.example", lookup)
        assert len(pool._dialler._lookups) == 2


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """An authority that the pool trusts like those of the system."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


async def test_a_receiver_with_a_good_certificate_is_called_by_its_name(authority: Authority) -> None:
    async with listening(authority.server("hooks.example")) as listener, open_pool(always("127.0.0.1")) as pool:
        for name in ("hooks.example", "hooks.example.", "Hooks.Example"):
            assert await post(pool, f"https://{name}:{listener.port}/", bytes(1 << 20)) == 200
        assert listener.names == ["hooks.example"] * listener.opened
        assert b"Host: hooks.example:%d\r\n" % listener.port in listener.heard[1]


async def test_a_tls_connection_is_reused_but_not_for_http(authority: Authority) -> None:
    async with listening(authority.server("hooks.example")) as listener, open_pool(always("127.0.0.1")) as pool:
        for _ in range(3):
            assert await post(pool, f"https://hooks.example:{listener.port}/") == 200
        assert listener.opened == 1
        with pytest.raises(CallFailed):
            await post(pool, f"http://hooks.example:{listener.port}/")


async def test_an_address_may_have_a_certificate(authority: Authority) -> None:
    async with listening(authority.server("127.0.0.1")) as listener, open_pool() as pool:
        assert await post(pool, f"https://127.0.0.1:{listener.port}/") == 200


async def test_a_certificate_for_another_name_is_refused(authority: Authority) -> None:
    async with listening(authority.server("other.example")) as listener, open_pool(always("127.0.0.1")) as pool:
        with pytest.raises(CallFailed, match="CERTIFICATE_VERIFY_FAILED") as failed:
            await post(pool, f"https://hooks.example:{listener.port}/")
        assert refusal(failed.value) is None  # retried, because certificates get renewed
        assert not listener.heard
        assert not pool._open


async def test_a_certificate_of_an_unknown_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "stranger").mkdir()
    stranger = Authority(tmp_path / "stranger")
    async with listening(stranger.server("hooks.example")) as listener, open_pool(always("127.0.0.1")) as pool:
        with pytest.raises(CallFailed, match="CERTIFICATE_VERIFY_FAILED"):
            await post(pool, f"https://hooks.example:{listener.port}/")
        assert not listener.heard


async def test_a_receiver_that_speaks_no_tls_fails() -> None:
    async def speak(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as server, open_pool() as pool:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(CallFailed, match=f"cannot connect to 127.0.0.1:{port}: "):
            await post(pool, f"https://127.0.0.1:{port}/")
        assert not pool._open
