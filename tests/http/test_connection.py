"""The state of a connection between requests: order, waiting handlers, and whether another request may follow."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chargehand.http.connection import BUFFERED, LINGER_SECONDS, MAX_PIPELINED
from chargehand.http.request import Disconnected, Request
from chargehand.http.response import Response
from tests.http.memory import Talk, talk
from tests.http.serving import CHUNKED, EXPECT, GET, POST

KEEP = b"GET %s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
CLOSE = b"GET %s HTTP/1.1\r\nConnection: close\r\n\r\n"
OFFER = b"Connection: Upgrade\r\nUpgrade: h2c\r\n"


class Waiting:
    """Reads the body, and then waits until the caller disconnects."""

    def __init__(self) -> None:
        self.taken = 0
        self.heard = asyncio.Event()

    async def __call__(self, req: Request) -> Response:
        while piece := await req.next_piece():
            self.taken += len(piece)
        try:
            await req.unless_gone(asyncio.Event().wait())
        except Disconnected:
            self.heard.set()
            raise
        return Response()


async def reading_late(req: Request) -> Response:
    """Answer with a stream that reads the body after the answer has begun."""

    async def pieces() -> AsyncGenerator[bytes, None]:
        yield b"begun"
        async for piece in req.pieces():
            yield piece

    resp = Response()
    resp.stream = pieces()
    return resp


async def without_reading(_req: Request) -> Response:
    return Response()


# The last request


@pytest.mark.parametrize("last", [KEEP % b"/last", CLOSE % b"/last"])
async def test_nothing_after_the_last_request_of_a_connection_is_served(last: bytes) -> None:
    data = GET % b"/first" + last + GET % b"/behind"
    for place in range(1, len(data)):
        one = await talk(data[:place], data[place:])
        assert [asked.target for asked in one.recorder.asked] == ["/first", "/last"]
        assert one.statuses == [200, 200]
        assert one.wire.written.count(b"connection: close") == 1
        assert not one.is_open
        await one.hang_up()


async def test_junk_after_the_last_request_does_not_change_its_answer() -> None:
    one = await talk(CLOSE % b"/last" + b"\0\xffno HTTP at all")
    assert one.statuses == [200]
    await one.hang_up()


# Waiting for the client to disconnect


@pytest.mark.parametrize("size", [1, BUFFERED, BUFFERED + 1, 10 * BUFFERED])
async def test_a_handler_that_has_read_the_whole_body_notices_a_disconnect(size: int) -> None:
    one = Talk(Waiting())
    await one.send(POST % (b"/", size) + b"x" * size)
    assert one.recorder.taken == size
    assert not one.wire.paused, "a connection that is not read tells of nobody who leaves"
    await one.hang_up()
    assert one.recorder.heard.is_set()


# Expect: 100-continue


async def test_100_continue_is_sent_when_the_handler_reads_the_body() -> None:
    one = await talk(EXPECT % b"/")
    assert one.wire.written == b"HTTP/1.1 100 Continue\r\n\r\n"
    await one.send(b"hello" + GET % b"/next")
    assert [asked.body for asked in one.recorder.asked] == [b"hello", b""]
    assert one.wire.written.count(b"100 Continue") == 1
    await one.hang_up()


async def test_100_continue_is_not_sent_to_a_client_that_already_sends_the_body() -> None:
    one = await talk(EXPECT % b"/" + b"h")
    await one.send(b"ello")
    assert b"100 Continue" not in one.wire.written
    assert one.statuses == [200]
    assert one.is_open
    await one.hang_up()


async def test_100_continue_for_a_pipelined_request_follows_the_earlier_answers() -> None:
    one = await talk(GET % b"/first" + EXPECT % b"/second")
    assert one.statuses == [200]
    assert one.wire.written.endswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    await one.hang_up()


async def test_nothing_is_served_after_a_request_that_expected_100_continue_and_did_not_get_it() -> None:
    for behind in (b"hello" + GET % b"/behind", GET % b"/behind"):
        one = Talk(without_reading)
        await one.send(EXPECT % b"/", behind)
        assert one.statuses == [200]
        assert b"connection: close" in one.wire.written
        assert b"100 Continue" not in one.wire.written
        assert not one.is_open
        await one.hang_up()


async def test_an_answer_that_has_begun_is_not_interrupted_by_100_continue() -> None:
    one = Talk(reading_late)
    await one.send(EXPECT % b"/")
    assert one.wire.written.endswith(b"\r\n\r\n5\r\nbegun\r\n")
    await one.send(b"hello")
    assert one.wire.written.endswith(b"\r\n\r\n5\r\nbegun\r\n5\r\nhello\r\n0\r\n\r\n")
    assert b"connection: close" in one.wire.written
    assert not one.is_open
    await one.hang_up()


async def test_100_continue_is_not_sent_to_http_1_0() -> None:
    one = await talk((EXPECT % b"/").replace(b"1.1", b"1.0"))
    assert one.wire.written == b""
    await one.send(b"hello")
    assert one.statuses == [200]
    await one.hang_up()


# Bodies that the handler does not read


async def test_a_body_that_the_handler_did_not_read_is_skipped() -> None:
    seen: list[str] = []

    async def app(req: Request) -> Response:
        seen.append(req.path)
        return Response()

    data = POST % (b"/first", 40) + b"GET /inner HTTP/1.1\r\nHost: in the body\r\n"[:40] + GET % b"/second"
    data += CHUNKED % b"/third" + b"5\r\nhello\r\n0\r\n\r\n" + GET % b"/fourth"
    for place in range(1, len(data)):
        seen.clear()
        one = Talk(app)
        await one.send(data[:place], data[place:])
        assert seen == ["/first", "/second", "/third", "/fourth"]
        assert one.statuses == [200] * 4
        assert one.is_open
        await one.hang_up()


async def test_a_malformed_body_that_the_handler_does_not_read_closes_the_connection_after_the_answer() -> None:
    one = Talk(without_reading)
    await one.send(CHUNKED % b"/" + b"5\r\nhel", b"lo\r\nno size\r\n", GET % b"/behind")
    assert one.statuses[0] == 200
    assert 200 not in one.statuses[1:]
    assert not one.is_open
    await one.hang_up()


async def test_a_refused_client_that_is_still_reading_is_not_cut_off() -> None:
    one = Talk(without_reading)
    await one.send(b"POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhalf")
    assert one.wire.sent_eof
    now = asyncio.get_running_loop().time()
    for one.wire.unsent in (9_000, 6_000, 3_000):
        now += 10 * LINGER_SECONDS
        one.connection.expire(now)
        assert not one.wire.is_closing()
    one.wire.unsent = 0
    one.connection.expire(now + LINGER_SECONDS / 2)
    assert not one.wire.is_closing()
    one.connection.expire(now + 2 * LINGER_SECONDS)
    assert one.wire.is_closing()
    await one.hang_up()


# Upgrades to other protocols


async def test_an_upgrade_is_declined_wherever_the_header_is_split() -> None:
    upgrade = b"POST /one?a=b HTTP/1.1\r\nHost: here\r\n" + OFFER + b"Content-Length: 5\r\n\r\nhello"
    chunked = b"POST /two HTTP/1.1\r\n" + OFFER + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    data = upgrade + chunked + GET % b"/three"
    for place in range(1, len(data)):
        one = await talk(data[:place], data[place:])
        assert [(asked.target, asked.body) for asked in one.recorder.asked] == [
            ("/one?a=b", b"hello"),
            ("/two", b"abc"),
            ("/three", b""),
        ]
        assert one.statuses == [200] * 3
        assert one.is_open
        await one.hang_up()


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
        b"Host: here\r\nHost: there\r\n",
    ],
)
async def test_an_upgrade_does_not_bypass_the_checks_of_a_request(headers: bytes) -> None:
    for offer in (OFFER + headers, headers + OFFER):
        one = await talk(b"POST / HTTP/1.1\r\n" + offer + b"\r\n" + GET % b"/behind")
        assert one.recorder.begun == []
        assert one.statuses in ([400], [501])
        assert not one.is_open
        await one.hang_up()


async def test_many_pipelined_upgrades_are_declined_up_to_the_bound_of_pipelined_requests() -> None:
    offer = b"GET / HTTP/1.1\r\n" + OFFER + b"\r\n"
    one = await talk(offer * (MAX_PIPELINED // 2))
    assert one.statuses == [200] * (MAX_PIPELINED // 2)
    await one.hang_up()
    one = await talk(offer * 2 * MAX_PIPELINED)
    assert one.statuses == [200] * (MAX_PIPELINED + 1)
    assert not one.is_open
    await one.hang_up()


# Header values


async def test_only_spaces_and_tabs_are_stripped_from_a_header_value() -> None:
    one = await talk(b"GET / HTTP/1.1\r\nX: \t caf\xc3\xa0 \t \r\nY: \x85\r\nZ: \xa0\r\n\r\n")
    assert one.recorder.asked[0].headers == (("x", "caf\xc3\xa0"), ("y", "\x85"), ("z", "\xa0"))
    await one.hang_up()


async def test_repeated_headers_are_joined_by_commas_and_cookies_by_semicolons() -> None:
    one = await talk(b"GET / HTTP/1.1\r\nA: 1\r\nCookie: a=b\r\na: 2\r\ncookie: c=d\r\nB:\r\nb:\r\n\r\n")
    assert dict(one.recorder.asked[0].headers) == {"a": "1, 2", "cookie": "a=b; c=d", "b": ", "}
    await one.hang_up()
