"""Event streams: pings while there are no events, and the end of a stream."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from chargehand.http.request import Request
from chargehand.http.response import Response
from chargehand.http.sse import Event, send_events, with_pings

FIRST = Event("said", b'{"n":1}', "1")
SECOND = Event("said", b'{"n":2}', "2")
PING = b": ping\n\n"


def nobody_leaves() -> "asyncio.Future[None]":
    return asyncio.get_running_loop().create_future()


async def slowly(go_on: asyncio.Event) -> AsyncGenerator[Event, None]:
    yield FIRST
    await go_on.wait()
    yield SECOND


async def test_a_silent_stream_sends_pings_and_loses_no_event() -> None:
    go_on = asyncio.Event()
    seen: list[bytes] = []
    async for piece in with_pings(slowly(go_on), nobody_leaves(), quiet_seconds=0.01):
        seen.append(piece)
        if seen.count(PING) == 3:
            go_on.set()
    assert seen[0] == b'event: said\nid: 1\ndata: {"n":1}\n\n'
    assert seen[-1] == b'event: said\nid: 2\ndata: {"n":2}\n\n'
    assert set(seen[1:-1]) == {PING}


class Endless:
    """One event, and then none ever again."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def events(self) -> AsyncGenerator[Event, None]:
        try:
            yield FIRST
            await asyncio.Event().wait()
        finally:
            self.closed.set()


async def test_closing_a_stream_closes_its_source() -> None:
    endless = Endless()
    stream = with_pings(endless.events(), nobody_leaves(), quiet_seconds=0.01)
    assert await anext(stream) == FIRST.encode()
    assert await anext(stream) == PING
    await stream.aclose()
    assert endless.closed.is_set()


async def test_a_disconnect_ends_a_silent_stream() -> None:
    endless, leaving = Endless(), nobody_leaves()
    stream = with_pings(endless.events(), leaving, quiet_seconds=1000)
    assert await anext(stream) == FIRST.encode()
    asyncio.get_running_loop().call_soon(leaving.set_result, None)
    async with asyncio.timeout(10):
        assert [piece async for piece in stream if piece] == []
    assert endless.closed.is_set()


async def test_an_error_in_the_source_of_a_stream_is_raised() -> None:
    async def broken() -> AsyncGenerator[Event, None]:
        yield FIRST
        raise ValueError("broken")

    stream = with_pings(broken(), nobody_leaves())
    assert await anext(stream) == FIRST.encode()
    with pytest.raises(ValueError, match="broken"):
        await anext(stream)


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_a_line_break_in_the_data_does_not_end_the_event(end: bytes) -> None:
    assert Event("said", b"a" + end + b"id: 9").encode() == b"event: said\ndata: a\ndata: id: 9\n\n"


async def test_an_event_stream_forbids_buffering_by_proxies() -> None:
    resp = Response()
    send_events(Request("GET", "/", {}), resp, slowly(asyncio.Event()))
    assert (resp.headers["cache-control"], resp.headers["x-accel-buffering"]) == ("no-store", "no")
    assert resp.content_type == "text/event-stream"
