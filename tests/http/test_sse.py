"""A stream that has nothing to say still shows that it is there."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from falcon.asgi import Response, SSEvent

from chargehand.http.sse import lively, send_events


async def slowly(go_on: asyncio.Event) -> AsyncGenerator[SSEvent, None]:
    yield SSEvent(text="first")
    await go_on.wait()
    yield SSEvent(text="second")


async def test_a_silent_stream_shows_signs_of_life_and_loses_no_event() -> None:
    go_on = asyncio.Event()
    seen: list[str] = []
    async for event in lively(slowly(go_on), quiet_seconds=0.01):
        seen.append(event.text or "" if event else "sign")
        if seen.count("sign") == 3:
            go_on.set()
    assert seen[0] == "first"
    assert seen[-1] == "second"
    assert seen.count("sign") >= 3


async def test_a_reader_that_leaves_closes_what_it_read_from() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[SSEvent, None]:
        try:
            yield SSEvent(text="first")
            await asyncio.Event().wait()
        finally:
            closed.set()

    stream = lively(endless(), quiet_seconds=0.01)
    assert await anext(stream) is not None
    assert await anext(stream) is None
    await stream.aclose()  # type: ignore[attr-defined]  # as the server does
    assert closed.is_set()


async def test_what_goes_wrong_in_a_stream_is_told() -> None:
    async def broken() -> AsyncGenerator[SSEvent, None]:
        yield SSEvent(text="first")
        raise ValueError("broken")

    stream = lively(broken())
    assert await anext(stream) is not None
    with pytest.raises(ValueError, match="broken"):
        await anext(stream)


def test_no_proxy_is_to_keep_events_back() -> None:
    resp = Response()
    send_events(resp, slowly(asyncio.Event()))
    assert (resp.get_header("cache-control"), resp.get_header("x-accel-buffering")) == ("no-store", "no")
