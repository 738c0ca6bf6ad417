"""Notices a caller that hangs up while it waits, so that nothing is done for somebody who is gone."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from falcon.asgi import Request

T = TypeVar("T")
Asgi = Callable[
    [dict[str, Any], Callable[[], Awaitable[dict[str, Any]]], Callable[..., Awaitable[None]]], Awaitable[None]
]
_RECEIVE = "chargehand.receive"


class BreakOff(Exception):
    """Raised by a streamed answer that cannot be completed: the connection is closed, which is all that can still be said."""


def with_receive(app: Any) -> Asgi:
    """Falcon keeps ASGI's `receive` to itself; this leaves it where `unless_gone` finds it."""

    async def call(scope: dict[str, Any], receive: Any, send: Any) -> None:
        scope[_RECEIVE] = receive
        await app(scope, receive, send)

    return call


async def unless_gone(req: Request, work: Coroutine[Any, Any, T]) -> T | None:
    """The result, or None when the caller hung up first; then the work is cancelled. The body must have been read."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(gone(req))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not doing.done():
            doing.cancel()
            await asyncio.wait({doing})
        return None if doing.cancelled() else doing.result()
    finally:
        leaving.cancel()
        doing.cancel()


async def gone(req: Request) -> None:
    """Returns when the caller has hung up. The body must have been read."""
    receive = req.scope[_RECEIVE]
    while (await receive())["type"] != "http.disconnect":
        pass
