"""Server-sent events that show signs of life: a proxy gives up on a stream that says nothing for a minute."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

from falcon.asgi import Response, SSEvent

QUIET_SECONDS = 15.0


def send_events(resp: Response, events: AsyncGenerator[SSEvent, None]) -> None:
    resp.set_header("cache-control", "no-store")
    resp.set_header("x-accel-buffering", "no")  # nginx would keep them until there are many
    resp.sse = lively(events)


async def lively(
    events: AsyncGenerator[SSEvent, None], quiet_seconds: float = QUIET_SECONDS
) -> AsyncIterator[SSEvent | None]:
    """The events, and None, which is sent as a comment, whenever none came for a while."""
    coming: asyncio.Future[SSEvent] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(events))
            done, _ = await asyncio.wait({coming}, timeout=quiet_seconds)
            if not done:
                yield None
                continue
            event, coming = coming, None
            try:
                yield event.result()
            except StopAsyncIteration:
                return
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await events.aclose()
