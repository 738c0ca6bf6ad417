"""The HTTP client of webhooks: POST and nothing else, over connections that are kept for a while.

A client of our own because a general one costs four times as much as all that it does here (`docs/decisions.md`). It follows no
redirect, knows no proxy, keeps no cookie and unpacks nothing. A request is never sent twice: whether the receiver has worked
on it is not ours to guess, and the outbox tries again anyway.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from types import TracebackType
from typing import Self

from chargehand import __version__
from chargehand.webhooks.dialling import Dialler
from chargehand.webhooks.egress import EgressPolicy, Location, Resolve, locate
from chargehand.webhooks.exchange import Answer, Connection

IDLE_SECONDS = 15.0
SURE_SECONDS = 0.5  # a connection that was used so lately is used again without a look at it
Origin = tuple[bool, str, int]


class Pool:
    """How many are in flight is for those who call to bound; here the connections are bounded that nobody uses."""

    def __init__(
        self,
        policy: EgressPolicy,
        *,
        timeout_seconds: float,
        answer_bytes: int,
        max_idle: int,
        resolve: Resolve | None = None,
    ) -> None:
        self._timeout_seconds = timeout_seconds
        self._answer_bytes = answer_bytes
        self._max_idle = max_idle
        self._dialler = Dialler(policy, resolve)
        self._open: set[Connection] = set()
        self._idle: dict[Connection, Origin] = {}  # the one that is idle for longest is first
        self._by_origin: dict[Origin, list[Connection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _frames: TracebackType | None
    ) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connection in list(self._open):
            connection.abort()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """The answer, or CallFailed; TimeoutError where all of it took too long, ValueError where it cannot be sent."""
        to, opening = _opening(url)
        head = _head(opening, headers, len(body))
        origin, seconds = to[:3], self._timeout_seconds
        connection = self._kept(origin)
        if connection is None:
            loop = asyncio.get_running_loop()
            until = loop.time() + seconds
            async with asyncio.timeout_at(until):
                connection = await self._dialler.connect(to, self._new)
            seconds = max(0.0, until - loop.time())
            self._open.add(connection)
        try:
            answer = await connection.send(head, body, seconds)
        except asyncio.CancelledError:
            connection.abort()
            raise
        if connection.is_open:
            self._keep(connection, origin)
        return answer

    def _new(self) -> Connection:
        return Connection(self._answer_bytes, self._lost)

    def _lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        origin = self._idle.pop(connection, None)
        if origin is not None:
            kept = self._by_origin[origin]
            kept.remove(connection)
            if not kept:
                del self._by_origin[origin]

    # what nobody uses -------------------------------------------------------------------------------------------------

    def _kept(self, origin: Origin) -> Connection | None:
        """The one that was used last: those before it may grow old and go."""
        while kept := self._by_origin.get(origin):
            connection = kept.pop()
            if not kept:
                del self._by_origin[origin]
            del self._idle[connection]
            if not connection.is_stale(SURE_SECONDS):
                return connection
            connection.abort()
        return None

    def _keep(self, connection: Connection, origin: Origin) -> None:
        self._idle[connection] = origin
        kept = self._by_origin.get(origin)
        if kept is None:
            self._by_origin[origin] = [connection]
        else:
            kept.append(connection)
        if len(self._idle) > self._max_idle:
            next(iter(self._idle)).abort()
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._sweeping = None
        for connection in list(self._idle):
            left = connection.idle_since + IDLE_SECONDS - loop.time()
            if left > 0:
                self._sweeping = loop.call_later(left, self._sweep)
                break
            connection.abort()


@lru_cache(maxsize=4096)  # the same few come again and again
def _opening(url: str) -> tuple[Location, str]:
    """Where the URL leads, and how every request to it begins."""
    to = locate(url)
    lines = (
        f"POST {to.target} HTTP/1.1",
        f"Host: {to.authority}",
        f"User-Agent: chargehand/{__version__}",
        "Content-Type: application/json",
        "Content-Length: ",
    )
    return to, "\r\n".join(lines)


def _head(opening: str, headers: Mapping[str, str], body_bytes: int) -> bytes:
    lines = [f"{opening}{body_bytes}", *[f"{name}: {value}" for name, value in headers.items()], "\r\n"]
    head = "\r\n".join(lines)
    ends = len(headers) + 6
    if head.count("\r") != ends or head.count("\n") != ends:
        raise ValueError("a header holds a line break")
    return head.encode("ascii")
