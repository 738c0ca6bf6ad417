"""A receiver of webhooks on loopback: a real server with scripted answers, which records its requests."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

Reply = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@dataclass(frozen=True)
class Hook:
    """A request that the receiver got."""

    path: str
    target: str  # path and query as received
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def job_id(self) -> str:
        return self.headers["X-Chargehand-Job"]


class Receiver:
    """`script` has the answers to the next requests, in order; `otherwise` answers all later ones."""

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.script: deque[Reply] = deque()
        self.otherwise: Reply = answer(200)
        self.connections = 0
        self.at_once: Counter[str] = Counter()  # requests in progress, by path
        self.most_at_once: Counter[str] = Counter()  # … and their maximum; "" counts all paths together
        self.port = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def at(self, path: str) -> list[Hook]:
        return [hook for hook in self.hooks if hook.path == path]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        hook = Hook(request.path, request.raw_path, request.headers, await request.read())
        self.hooks.append(hook)
        for path in (hook.path, ""):
            self.at_once[path] += 1
            self.most_at_once[path] = max(self.most_at_once[path], self.at_once[path])
        try:
            return await (self.script.popleft() if self.script else self.otherwise)(request)
        finally:
            for path in (hook.path, ""):
                self.at_once[path] -= 1


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    # Cancel a handler when its client disconnects, so that none outlives its caller.
    protocols = web.Server(receiver.handle, access_log=None, handler_cancellation=True)

    def connected() -> asyncio.Protocol:
        receiver.connections += 1
        return protocols()

    listener = await asyncio.get_running_loop().create_server(connected, "127.0.0.1", 0)
    receiver.port = listener.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        listener.close()
        await protocols.shutdown(0.01)  # 0 would wait without limit


# How a receiver may answer


def answer(status: int, headers: Mapping[str, str] = {}, body: bytes = b"") -> Reply:
    async def reply(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=status, headers=headers, body=body)

    return reply


def after(event: asyncio.Event, then: Reply) -> Reply:
    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        await event.wait()
        return await then(request)

    return reply


def after_seconds(seconds: float, then: Reply) -> Reply:
    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(seconds)
        return await then(request)

    return reply


def raw(data: bytes) -> Reply:
    """Send these bytes, valid HTTP or not, and close the connection."""

    async def reply(request: web.BaseRequest) -> web.StreamResponse:
        transport = _transport(request)
        transport.write(data)
        transport.close()
        return web.Response()

    return reply


async def reset(request: web.BaseRequest) -> web.StreamResponse:
    _transport(request).abort()
    return web.Response()


async def hang(_request: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def _transport(request: web.BaseRequest) -> Any:
    assert request.transport is not None
    return request.transport
