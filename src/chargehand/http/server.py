"""uvicorn inside our process, with the bounds it lacks: no client can hold memory or a connection for nothing.

One sweep a second looks at all open connections, so no request pays for timers of its own. What is read next is a new
request (IDLE), more of a header (HEADER) or more of a body (BODY); `since` is when the wait began that is measured.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, cast

import httptools
import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from chargehand.http.cork import Cork
from chargehand.http.hangup import BreakOff
from chargehand.http.listening import BACKLOG, bind
from chargehand.http.problems import PROBLEM_TYPE, Problem
from chargehand.http.tls import CLIENT_NAMES, Tls, names_of
from chargehand.observability.logs import get_logger

App = Callable[[Any, Any, Any], Awaitable[None]]

IDLE: Final = 0
HEADER: Final = 1
BODY: Final = 2

LINGER_SECONDS = 1.0  # how long a refused client has to read why
MAX_PIPELINED = 128  # a read of 256 KiB holds 14,000 small requests, and each costs kilobytes while it queues
SHUTDOWN_SECONDS = 30.0  # for the last bytes of a TLS connection and the client's own goodbye
SWEEP_SECONDS = 1.0

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    max_header_bytes: int  # request line and headers together
    header_timeout_seconds: float  # from connecting, or from the first byte of a request, to the end of its header
    body_timeout_seconds: float  # without a byte of the body, while the app waits for one
    keep_alive_seconds: float
    max_connections: int
    drain_seconds: float
    stall_seconds: float = 300.0  # in which a client takes nothing of what waits for it


class Refusal(Exception):
    """An answer of the connection itself; the app never hears of the request."""

    def __init__(self, status: HTTPStatus, detail: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.problem = Problem(
            type="about:blank",
            title=status.phrase,
            status=status.value,
            code=f"http.{status.value}",
            detail=detail,
            retry_after_seconds=retry_after_seconds,
        )

    def answer(self, default_headers: Sequence[tuple[bytes, bytes]]) -> bytes:
        body = msgspec.json.encode(self.problem)
        headers = [*default_headers, (b"content-type", PROBLEM_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        if self.problem.retry_after_seconds is not None:
            headers.append((b"retry-after", b"%d" % self.problem.retry_after_seconds))
        head = b"".join(b"%s: %s\r\n" % header for header in headers)
        return STATUS_LINE[self.status] + head + b"connection: close\r\n\r\n" + body


class State(ServerState):
    def __init__(self, bounds: Bounds) -> None:
        super().__init__()
        self.bounds = bounds
        self.turned_away: set[Connection] = set()  # told 503 and not served, so not among the connections

    def served(self) -> "tuple[Connection, ...]":
        return cast("tuple[Connection, ...]", tuple(self.connections))


class Connection(HttpToolsProtocol):
    def __init__(
        self,
        config: uvicorn.Config,
        server_state: State,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.state = server_state
        self.bounds = server_state.bounds
        self.phase = IDLE
        self.since = self.loop.time()
        self.head_bytes = 0  # received since the feed that had the end of a header, of a body or of a piece of one
        self.unsure_bytes = 0  # the size of that feed: the next header may have begun in it
        self.unsent = 0  # bytes that waited for the client when the sweep last saw a change, and when that was
        self.unsent_since = self.since
        self.client_names: tuple[str, ...] = ()
        self.refused = False
        self.running: RequestResponseCycle | None = None  # `cycle` is the last one read, which may still be queued

    # What the transport tells

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.cork = Cork(transport, self.loop)
        if len(self.connections) < self.bounds.max_connections:
            self.client_names = names_of(transport)
            self.since = self.loop.time()  # a handshake has its own bound
            super().connection_made(cast(asyncio.Transport, self.cork))
            return
        self.transport = cast(asyncio.Transport, self.cork)
        if len(self.state.turned_away) < self.bounds.max_connections:
            self.state.turned_away.add(self)
            self.refuse(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", retry_after_seconds=1))
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.turned_away.discard(self)
        super().connection_lost(exc)
        # uvicorn tells only the last request read; one running ahead of it would stream to nobody for ever.
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()

    def data_received(self, data: bytes) -> None:
        # A read is up to 256 KiB, and headers take 25 times their size in memory once they are parsed.
        most = self.bounds.max_header_bytes
        if len(data) <= most:
            self.feed(data)
        else:
            for start in range(0, len(data), most):
                self.feed(data[start : start + most])

    def feed(self, data: bytes) -> None:
        if self.refused:
            return
        if self.phase == IDLE:
            self.phase = HEADER
            self.since = self.loop.time()
        self.head_bytes += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self.decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError as error:
            cause = error.__context__  # what a callback raised: we a refusal, uvicorn whatever a bad URL led to
            why = error if cause is None else "Invalid URL"
            malformed = Refusal(HTTPStatus.BAD_REQUEST, f"this is not a valid HTTP/1.1 request: {why}")
            self.refuse(cause if isinstance(cause, Refusal) else malformed)
        else:
            if not self.head_bytes:
                self.unsure_bytes = len(data)
            elif self.head_bytes > self.bounds.max_header_bytes:
                self.refuse(self.header_too_large())

    # What the parser tells. Each request comes through here: what looks clumsy saves a call.

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # llhttp is about to raise HttpParserUpgrade
        if self.head_bytes + self.unsure_bytes > self.bounds.max_header_bytes:
            self.measure_header()
        if self.pipeline and len(self.pipeline) >= MAX_PIPELINED:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, f"more than {MAX_PIPELINED} requests wait for their answer")
        if self.client_names:
            cast("dict[str, Any]", self.scope)[CLIENT_NAMES] = self.client_names
        super().on_headers_complete()
        if not self.pipeline:
            self.running = self.cycle
        self.phase = BODY
        self.since = self.loop.time()
        self.head_bytes = 0
        self.headers = []  # the app's list is complete: a trailer must not slip a header into it

    def on_body(self, body: bytes) -> None:
        self.head_bytes = 0
        if not self.cycle.response_complete:  # else nobody waits for it, and what is left has one timeout in all
            self.since = self.loop.time()
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.phase == BODY:
            self.phase = IDLE
            self.head_bytes = 0
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        # uvicorn's own sets a timer for each answer, where the sweep needs only the time.
        self.since = self.loop.time()
        self.cork.new_answer = True
        self.state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self.running, app = self.pipeline.pop()
            self._start_asgi_task(self.running, app)

    # What is ours

    def expire(self, now: float) -> None:
        """Close the connection if it waited too long for its client; called by the sweep."""
        waited = now - self.since
        bounds, cycle = self.bounds, self.cycle
        if self.stalled(now):
            self.transport.abort()  # a close would wait for the client
        elif self.transport.is_closing():
            if self.refused and not self.unsent and waited > LINGER_SECONDS:
                self.transport.abort()
        elif cycle is not None and not cycle.response_complete and not cycle.disconnected:
            if self.phase != BODY or not cycle.message_event._waiters:
                self.since = now  # the app is at work, for as long as it likes
            elif waited > bounds.body_timeout_seconds:
                self.transport.close()
        elif self.refused:
            if waited > LINGER_SECONDS:
                self.transport.abort()
        elif self.phase == HEADER:
            if waited > bounds.header_timeout_seconds:
                self.give_up_header()
        elif self.phase == BODY:
            if waited > bounds.body_timeout_seconds:
                self.transport.close()
        elif waited > (bounds.header_timeout_seconds if cycle is None else bounds.keep_alive_seconds):
            self.transport.close()

    def stalled(self, now: float) -> bool:
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self.unsent:
            self.unsent, self.unsent_since = unsent, now
        return now - self.unsent_since > self.bounds.stall_seconds

    def give_up_header(self) -> None:
        scope: Any = self.scope  # made with the first letter of a request, and given its method when the header ends
        if scope is not None and "method" not in scope:
            self.refuse(Refusal(HTTPStatus.REQUEST_TIMEOUT, "the header did not arrive in time"))
        else:
            self.transport.close()  # but for an empty line nothing came: an answer could be taken for that to the next

    def refuse(self, refusal: Refusal) -> None:
        """Answer if it is this request's turn, and read no more of the connection."""
        self.refused = True
        self.since = self.loop.time()
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self.phase != BODY:
                cycle.keep_alive = False  # what was asked before is answered first
                return
            if cycle.response_started or cycle is not self.running:
                self.transport.close()
                return
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.write(refusal.answer(self.state.default_headers))
        # A close now would be a reset if the client is still sending, and a reset can destroy the answer on its way.
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()  # TLS knows no half-closed connection, but reads on until the client has closed too

    def decline_upgrade(self, rest: bytes) -> None:
        """Serve a request as if it had not offered another protocol (RFC 9110, 7.8).

        llhttp takes all behind such a header for that protocol, a body too, and Java's HttpClient offers h2c with
        the first POST of each connection. So the header is parsed again without the offer.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.refuse(Refusal(HTTPStatus.NOT_IMPLEMENTED, "this is no proxy: CONNECT is not served"))
            return
        head = [b"%s %s HTTP/%s\r\n" % (method, self.url, self.parser.get_http_version().encode())]
        head += [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.head_bytes = 0
        self.feed(b"".join([*head, b"\r\n", rest]))

    def measure_header(self) -> None:
        size = len(self.url) + sum(map(len, chain.from_iterable(self.headers))) + 4 * len(self.headers)
        if size > self.bounds.max_header_bytes:
            raise self.header_too_large()

    def header_too_large(self) -> Refusal:
        most = self.bounds.max_header_bytes
        return Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"request line and headers are over {most} bytes")


class HttpServer:
    """Serves an ASGI app on the running loop. Signals are the caller's business."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._state = State(bounds)
        self._sockets: list[socket.socket] = []
        self._listeners: list[asyncio.AbstractServer] = []
        self._upkeep: list[asyncio.Task[None]] = []
        self._addresses: tuple[tuple[str, int], ...] = ()

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each socket that was bound."""
        return self._addresses

    async def start(self, app: App, host: str, port: int, tls: Tls | None = None) -> None:
        loop = asyncio.get_running_loop()
        self._sockets = await bind(host, port)
        self._addresses = tuple(bound.getsockname()[:2] for bound in self._sockets)
        config = uvicorn.Config(
            app,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level=logging.WARNING,
            access_log=False,
            proxy_headers=False,  # else whoever connects from loopback may say it is somebody else
        )
        config.load()
        logging.getLogger("uvicorn.error").addFilter(_is_news)
        self._upkeep.append(asyncio.create_task(self._sweep()))
        secured: dict[str, Any] = {}
        if tls is not None:
            self._upkeep.append(asyncio.create_task(tls.watch()))
            secured = {
                "ssl": tls.context,
                "ssl_handshake_timeout": self._bounds.header_timeout_seconds,
                "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
            }
        for bound in self._sockets:
            listener = await loop.create_server(
                lambda: Connection(config, self._state, {}), sock=bound, backlog=BACKLOG, **secured
            )
            self._listeners.append(listener)

    async def drain(self) -> None:
        """Accept nothing new, answer what runs, close; whatever takes longer than `drain_seconds` is cut off."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            listener.close()
        for bound in self._sockets:
            bound.close()
        until = loop.time() + self._bounds.drain_seconds
        while (self._state.connections or self._state.tasks) and loop.time() < until:
            # Each round anew: a client accepted just before has become a connection, a request has been pipelined.
            for connection in self._state.served():
                connection.shutdown()
            await asyncio.sleep(0.02)
        await self._cut_off()
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)

    async def _cut_off(self) -> None:
        tasks = tuple(self._state.tasks)
        if tasks:
            log.warning("requests cut off", count=len(tasks), drain_seconds=self._bounds.drain_seconds)
        for connection in (*self._state.served(), *self._state.turned_away):
            connection.transport.abort()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    async def _sweep(self) -> None:
        bounds, state, loop = self._bounds, self._state, asyncio.get_running_loop()
        waits = bounds.header_timeout_seconds, bounds.body_timeout_seconds, bounds.keep_alive_seconds
        shortest = min(*waits, bounds.stall_seconds)
        while True:
            state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
            now = loop.time()
            if state.turned_away:
                log.warning("connections turned away", count=len(state.turned_away), most=bounds.max_connections)
            for connection in (*state.served(), *state.turned_away):
                try:
                    connection.expire(now)
                except Exception:
                    log.exception("sweep failed for a connection")  # and goes on: all the timeouts hang on it
            await asyncio.sleep(min(SWEEP_SECONDS, shortest / 4))


def _is_news(record: logging.LogRecord) -> bool:
    """An answer that was broken off on purpose is in the job's log already; it needs no traceback."""
    return not (record.exc_info and isinstance(record.exc_info[1], BreakOff))
