"""The HTTP client of webhooks: only POST, over connections that are kept open for a while.

Our own, because a general client takes four times as much processor time (`docs/decisions.md`). It follows no redirects, uses
no proxy, keeps no cookies and decompresses nothing. It never sends a request twice: the receiver may have acted on the first,
and the outbox retries anyway.
"""

import asyncio
from collections.abc import Mapping
from functools import lru_cache
from typing import Self

from chargehand import __version__
from chargehand.webhooks.dialling import Dialler
from chargehand.webhooks.egress import EgressPolicy, Location, Resolve, locate
from chargehand.webhooks.exchange import OutboundConnection, ReceiverAnswer

IDLE_SECONDS = 15.0
SURE_SECONDS = 0.5  # a connection used so recently is reused without checking that it is still open
Origin = tuple[bool, str, int]


class ConnectionPool:
    """Keeps at most `max_idle` unused connections. Callers bound how many requests are in flight."""

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
        self._open: set[OutboundConnection] = set()
        self._idle: dict[OutboundConnection, Origin] = {}  # longest idle first
        self._by_origin: dict[Origin, list[OutboundConnection]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        for connection in list(self._open):
            connection.abort()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> ReceiverAnswer:
        """Return the answer; raise CallFailed, TimeoutError (all of it took too long) or ValueError (cannot be sent)."""
        to, opening = _opening(url)
        head = _head(opening, headers, len(body))
        origin, seconds = to[:3], self._timeout_seconds
        connection = self._reuse(origin)
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

    def _new(self) -> OutboundConnection:
        return OutboundConnection(self._answer_bytes, self._lost)

    def _lost(self, connection: OutboundConnection) -> None:
        self._open.discard(connection)
        origin = self._idle.pop(connection, None)
        if origin is not None:
            kept = self._by_origin[origin]
            kept.remove(connection)
            if not kept:
                del self._by_origin[origin]

    # idle connections -------------------------------------------------------------------------------------------------

    def _reuse(self, origin: Origin) -> OutboundConnection | None:
        """Return the idle connection that was used last, so that the older ones can time out; None if there is none."""
        while kept := self._by_origin.get(origin):
            connection = kept.pop()
            if not kept:
                del self._by_origin[origin]
            del self._idle[connection]
            if not connection.is_stale(SURE_SECONDS):
                return connection
            connection.abort()
        return None

    def _keep(self, connection: OutboundConnection, origin: Origin) -> None:
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


@lru_cache(maxsize=4096)  # there are few URLs, each called many times
def _opening(url: str) -> tuple[Location, str]:
    """Return where to connect for a URL, and the bytes with which every request to it begins."""
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
