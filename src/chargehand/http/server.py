"""The HTTP server: listens, sweeps over all connections to enforce timeouts, and drains on shutdown."""

import asyncio
import socket
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any

from chargehand.http.connection import App, Bounds, Connection, Serving
from chargehand.http.listening import BACKLOG, bind
from chargehand.http.tls import Tls
from chargehand.observability.logs import get_logger

SHUTDOWN_SECONDS = 30.0  # for the last bytes of a TLS connection and the client's close_notify
SWEEP_SECONDS = 1.0

log = get_logger(__name__)


class HttpServer:
    """Serves an application on the running loop. It installs no signal handlers."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._serving: Serving | None = None
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._tls: Tls | None = None
        self._addresses: tuple[tuple[str, int], ...] = ()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each socket that was bound."""
        return self._addresses

    async def start(
        self, app: App, host: str, port: int, tls: Tls | None = None, inherited: Sequence[socket.socket] = ()
    ) -> None:
        """Listen on host and port, or on sockets that another process has bound."""
        loop = asyncio.get_running_loop()
        self._sockets = list(inherited) or await bind(host, port)
        self._addresses = tuple(bound.getsockname()[:2] for bound in self._sockets)
        serving = self._serving = Serving(app, self._bounds, date=_date())
        self._sweeping = asyncio.create_task(self._sweep(serving))
        self._tls = tls
        secured: dict[str, Any] = {}
        if tls is not None:
            secured = {
                "ssl": tls.context,
                "ssl_handshake_timeout": self._bounds.header_timeout_seconds,
                "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
            }
        for bound in self._sockets:
            listener = await loop.create_server(
                lambda: Connection(serving, loop), sock=bound, backlog=BACKLOG, **secured
            )
            self._listeners.append(listener)

    async def refresh_certificate(self) -> None:
        if self._tls is not None:
            await asyncio.to_thread(self._tls.refresh)

    async def drain(self) -> None:
        """Stop accepting, answer running requests and close; after `drain_seconds` cut off the rest."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.close()
        for bound in self._sockets:
            bound.close()
        if self._serving is not None:
            until = loop.time() + self._bounds.drain_seconds
            while (self._serving.connections or self._serving.tasks) and loop.time() < until:
                # Repeated, because a connection accepted just before may appear, or a request be pipelined.
                for connection in tuple(self._serving.connections):
                    connection.shut_down()
                await asyncio.sleep(0.02)
            await self._cut_off(self._serving)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)

    async def _cut_off(self, serving: Serving) -> None:
        tasks = tuple(serving.tasks)
        if tasks:
            log.warning("requests cut off", count=len(tasks), drain_seconds=self._bounds.drain_seconds)
        for connection in (*serving.connections, *serving.turned_away):
            connection.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    async def _sweep(self, serving: Serving) -> None:
        bounds, loop = self._bounds, asyncio.get_running_loop()
        waits = bounds.header_timeout_seconds, bounds.body_timeout_seconds, bounds.keep_alive_seconds
        shortest = min(*waits, bounds.stall_seconds)
        while True:
            serving.date = _date()
            now = loop.time()
            if serving.turned_away:
                log.warning("connections turned away", count=len(serving.turned_away), most=bounds.max_connections)
            for connection in (*serving.connections, *serving.turned_away):
                try:
                    connection.expire(now)
                except Exception:
                    log.exception("sweep failed for a connection")  # and go on: all timeouts depend on the sweep
            await asyncio.sleep(min(SWEEP_SECONDS, shortest / 4))


def _date() -> bytes:
    return f"date: {formatdate(usegmt=True)}\r\n".encode()
