"""Server-sent events with keep-alive comments, because proxies close a stream that is silent for a minute."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, NamedTuple

from chargehand.http.request import Request
from chargehand.http.response import Response

QUIET_SECONDS = 15.0
_PING = b": ping\n\n"


class Event(NamedTuple):
    name: str
    data: bytes
    id: str = ""

    def encode(self) -> bytes:
        data = self.data
        if b"\n" in data or b"\r" in data:  # a line break in the data must not end the event
            data = b"\ndata: ".join(data.splitlines())
        id_line = f"id: {self.id}\n" if self.id else ""
        return b"event: %b\n%bdata: %b\n\n" % (self.name.encode(), id_line.encode(), data)


def send_events(req: Request, resp: Response, events: AsyncGenerator[Event, None]) -> None:
    resp.set_header("content-type", "text/event-stream")
    resp.set_header("cache-control", "no-store")
    resp.set_header("x-accel-buffering", "no")  # else nginx would buffer them
    resp.stream = with_pings(events, req.leaving())


async def with_pings(
    events: AsyncGenerator[Event, None], leaving: "asyncio.Future[None]", quiet_seconds: float = QUIET_SECONDS
) -> AsyncGenerator[bytes, None]:
    """Yield the events until the caller disconnects, and a comment whenever there was none for `quiet_seconds`."""
    coming: asyncio.Future[Event] | None = None
    try:
        while not leaving.done():
            coming = coming or asyncio.ensure_future(anext(events))
            either: set[asyncio.Future[Any]] = {coming, leaving}
            await asyncio.wait(either, timeout=quiet_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                yield b"" if leaving.done() else _PING
                continue
            event, coming = coming, None
            try:
                yield event.result().encode()
            except StopAsyncIteration:
                return
    finally:
        leaving.cancel()
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()
