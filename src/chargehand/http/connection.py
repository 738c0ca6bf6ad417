"""One connection: parses bytes into requests, passes them to the application, writes the answers in the order of the requests.

llhttp (httptools) parses and refuses what is ambiguous. One request is served at a time; pipelined requests wait. What is read next
is a new request (IDLE), more of a header (HEADER) or more of a body (BODY). The server's sweep checks how long that takes, by
`_since`, so that no request needs timers of its own.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, cast

import httptools

from chargehand.http.framing import NAMES, Refusal, check_framing, refusal_for, target_of
from chargehand.http.request import Disconnected, Request
from chargehand.http.response import BreakOff, FileSpan, Response, Stream, discard
from chargehand.http.spans import SpanWriter
from chargehand.http.tls import names_of
from chargehand.observability.logs import get_logger

App = Callable[[Request], Awaitable[Response]]

IDLE: Final = 0
HEADER: Final = 1
BODY: Final = 2

BUFFERED = 65_536  # bytes of a body that the handler has not read; beyond that the connection stops reading
LARGE = 65_536  # a piece of this size is written by itself: joining it with others would copy it
LINGER_SECONDS = 1.0  # how long a refused client has to read the refusal
MAX_PIPELINED = 128  # a read of 256 KiB holds 14,000 small requests, and each costs kilobytes while it queues

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    max_header_bytes: int  # request line and headers together
    header_timeout_seconds: float  # from connecting, or from the first byte of a request, to the end of its header
    body_timeout_seconds: float  # without a byte of the body, while the app waits for one
    keep_alive_seconds: float
    max_connections: int
    drain_seconds: float
    stall_seconds: float = 300.0  # how long a client may read nothing of its answer


@dataclass(slots=True)
class Serving:
    """What all connections of a server share."""

    app: App
    bounds: Bounds
    connections: "set[Connection]" = field(default_factory=set)
    turned_away: "set[Connection]" = field(default_factory=set)  # answered with 503 because there are too many
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    date: bytes = b""  # the Date header of this second


class Connection(asyncio.Protocol):
    def __init__(self, serving: Serving, loop: asyncio.AbstractEventLoop) -> None:
        self._serving = serving
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._phase = IDLE
        self._since = self._unsent_since = loop.time()
        self._url = b""
        self._headers: dict[str, str] = {}
        self._head_bytes = 0  # received after the feed that last ended a header, a body or a piece of one
        self._unsure_bytes = 0  # the size of that feed: the next header may have begun in it
        self._reading: Request | None = None  # the request whose body is arriving
        self._pipelined: deque[Request] = deque()  # requests that wait for the running one
        self._running: Request | None = None
        self._task: asyncio.Task[None] | None = None
        self._started = False  # whether the answer to the running request has begun
        self._expects = False  # whether the client waits for `100 Continue` before it sends the body
        self._last = False  # whether the request that was read last is the last of this connection
        self._half_closed = False  # whether the client has closed its side
        self._refused = False  # whether everything that still arrives is discarded
        self._ended = False
        self._was_served = False
        self._paused = False  # whether reading from the client is paused
        self._drained: asyncio.Future[None] | None = None  # while the write buffer is full
        self._spans: SpanWriter | None = None  # created when the first part of a file is sent
        self._unsent = 0  # bytes in the write buffer when the sweep last saw that number change

    # called by the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._client_names = names_of(transport)
        self._scheme = "http" if transport.get_extra_info("sslcontext") is None else "https"
        self._since = self._loop.time()  # the TLS handshake has its own timeout
        serving, most = self._serving, self._serving.bounds.max_connections
        if len(serving.connections) < most:
            serving.connections.add(self)
        elif len(serving.turned_away) < most:
            serving.turned_away.add(self)
            self._refuse(Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", retry_after_seconds=1))
        else:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._serving.connections.discard(self)
        self._serving.turned_away.discard(self)
        self._pipelined.clear()
        self.resume_writing()
        if self._spans is not None:
            self._spans.wake()
        self._hung_up()

    def eof_received(self) -> bool:
        """The client closed its side: answer its requests, and let handlers that wait for it know."""
        self._half_closed = True
        self._hung_up()
        return self._scheme == "http" and self._running is not None

    def _hung_up(self) -> None:
        if self._reading is not None:
            self._reading.cut()
        for request in (self._running, *self._pipelined):
            if request is not None:
                request.leave()

    def pause_writing(self) -> None:
        self._drained = self._loop.create_future()

    def resume_writing(self) -> None:
        drained, self._drained = self._drained, None
        if drained is not None and not drained.done():
            drained.set_result(None)

    def data_received(self, data: bytes) -> None:
        # A read is up to 256 KiB, and headers take 25 times their size in memory once they are parsed.
        most = self._serving.bounds.max_header_bytes
        if len(data) <= most:
            self._feed(data)
        else:
            for start in range(0, len(data), most):
                self._feed(data[start : start + most])

    def _feed(self, data: bytes) -> None:
        if self._refused or (self._last and self._phase == IDLE):
            return
        if self._phase == IDLE:
            self._phase = HEADER
            self._since = self._loop.time()
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            if not (self._last and self._phase == IDLE):  # else it came behind the last request
                self._refuse(refusal_for(error))
            return
        if not self._head_bytes:
            self._unsure_bytes = len(data)
        elif self._head_bytes > self._serving.bounds.max_header_bytes:
            self._refuse(self._header_too_large())
            return
        if self._running is None:
            self._begin()

    # called by the parser, for each request ---------------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == BODY:
            return  # a trailer is no header
        headers, text = self._headers, value.decode("latin-1").strip(" \t")
        key = NAMES.get(name) or name.decode("latin-1").lower()
        if key not in headers:
            headers[key] = text
        elif key == "host":
            raise Refusal(HTTPStatus.BAD_REQUEST, "the header Host must occur exactly once")
        else:
            headers[key] = f"{headers[key]}{'; ' if key == 'cookie' else ', '}{text}"

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        if parser.should_upgrade():
            return  # llhttp is about to raise HttpParserUpgrade
        if self._last and self._phase == IDLE:
            raise Refusal(HTTPStatus.BAD_REQUEST, "the request before was the last of this connection")  # never sent
        if self._head_bytes + self._unsure_bytes > self._serving.bounds.max_header_bytes:
            self._measure_header()
        if len(self._pipelined) >= MAX_PIPELINED:
            raise Refusal(HTTPStatus.TOO_MANY_REQUESTS, f"more than {MAX_PIPELINED} pipelined requests are waiting")
        version = parser.get_http_version()
        if version != "1.1" or "transfer-encoding" in headers:
            check_framing(version, headers.get("transfer-encoding"))
        method = parser.get_method().decode("latin-1")
        self._reading = Request(
            method, target_of(self._url), headers, b"", version, self._scheme, self._client_names, self
        )
        self._pipelined.append(self._reading)
        self._expects = "expect" in headers and headers["expect"].lower() == "100-continue" and version != "1.0"
        self._last = self._last or version == "1.0" or not parser.should_keep_alive()
        self._phase = BODY
        self._since = self._loop.time()
        self._head_bytes = 0
        self._url, self._headers = b"", {}

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        request = self._reading
        if request is None:
            return  # it was answered: one timeout holds for the whole rest of its body
        self._since = self._loop.time()
        self._expects = False
        request.add(body)
        if request.buffered > BUFFERED:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._phase != BODY:
            return  # the header of an upgrade, which will be parsed again
        self._phase = IDLE
        self._head_bytes = 0
        self._expects = False
        if self._reading is not None:
            self._reading.complete()
            self._reading = None
        if self._running is None:
            self._begin()
        if self._pipelined:
            self._pause_reading()
        else:
            self._resume_reading()  # a client that disconnects is noticed only while reading

    # called by the request --------------------------------------------------------------------------------------------

    def want_body(self) -> None:
        """The handler waits for more of the body."""
        if self._expects:
            self._expects = False
            self._transport.write(_CONTINUE)
        self._resume_reading()

    def body_taken(self) -> None:
        """The handler has read what had arrived of the body."""
        if self._paused and self._reading is self._running:
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._paused and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._paused and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    # answering --------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Start to serve the next request, if there is one."""
        if not self._pipelined:
            return
        self._running = request = self._pipelined.popleft()
        self._started = False
        self._task = self._loop.create_task(self._serve(request))
        self._serving.tasks.add(self._task)

    async def _serve(self, request: Request) -> None:
        is_whole = False
        try:
            response = await self._serving.app(request)
            if response.stream is None:
                is_whole = self._write_whole(request, response)
                if self._drained is not None:
                    await self._drained  # so that a client which reads nothing cannot fill the memory with answers
            else:
                is_whole = await self._write_stream(request, response, response.stream)
        except (BreakOff, Disconnected):
            pass  # it was logged where it was raised, and there is no client left to answer
        except Exception:
            log.exception("an answer could not be completed", method=request.method, path=request.path[:200])
        finally:
            self._answered(request, is_whole)

    def _is_answerable(self, request: Request) -> bool:
        """Is the client still connected, and was no refusal sent in place of this request's answer?"""
        return self._running is request and not self._ended

    def _write_whole(self, request: Request, response: Response) -> bool:
        if not self._is_answerable(request):
            return False
        head = self._head(request, response, is_chunked=False)
        body = response.data if response.has_body and request.method != "HEAD" else b""
        if len(body) <= LARGE:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return True

    async def _write_stream(self, request: Request, response: Response, stream: Stream) -> bool:
        length = response.headers.get("content-length")
        is_chunked = length is None and request.version != "1.0"
        if self._is_answerable(request):
            self._transport.write(self._head(request, response, is_chunked=is_chunked))
        if not self._is_answerable(request) or not response.has_body or request.method == "HEAD":
            await discard(stream)
            return True
        try:
            sent = await self._write_pieces(request, stream, is_chunked)
            if sent is not None and length is not None and sent != int(length):
                log.error("an answer is not as long as its Content-Length", path=request.path[:200], sent=sent)
                return False
            return sent is not None
        finally:
            await stream.aclose()

    async def _write_pieces(self, request: Request, stream: Stream, is_chunked: bool) -> int | None:
        """Return the number of bytes sent, or None if the client has disconnected."""
        transport, sent = self._transport, 0
        async for piece in stream:
            if not self._is_answerable(request):
                return None
            sent += len(piece)
            if isinstance(piece, FileSpan):
                await self._write_span(piece, is_chunked)
            elif not is_chunked:
                transport.write(piece)
            elif len(piece) > LARGE:
                transport.writelines((b"%x\r\n" % len(piece), piece, b"\r\n"))
            elif piece:
                transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if self._drained is not None:
                await self._drained
        if is_chunked:
            transport.write(b"0\r\n\r\n")
        return sent

    async def _write_span(self, span: FileSpan, is_chunked: bool) -> None:
        if self._spans is None:
            self._spans = SpanWriter(self._transport, self._loop, self._drain)
        if not is_chunked:
            await self._spans.write(span)
        elif span.count:
            self._transport.write(b"%x\r\n" % span.count)
            await self._spans.write(span)
            self._transport.write(b"\r\n")

    async def _drain(self) -> None:
        if self._drained is not None:
            await self._drained

    def _head(self, request: Request, response: Response, *, is_chunked: bool) -> bytes:
        if self._expects and self._reading is request:
            self._last = True  # without `100 Continue` a client may send the body or not: what follows is ambiguous
            self._expects = False
        self._started = True
        return response.head(self._serving.date, is_last=self._is_last(), is_chunked=is_chunked)

    def _is_last(self) -> bool:
        """Will the connection be closed after the answer to the running request?"""
        return (self._last or self._refused) and not self._pipelined and self._reading in (None, self._running)

    def _answered(self, request: Request, is_whole: bool) -> None:
        """After an answer, serve the next request or close the connection."""
        if self._task is not None:
            self._serving.tasks.discard(self._task)
        if self._running is not request:
            return  # it was refused in the meantime
        self._was_served = True
        self._since = self._loop.time()
        is_last = self._is_last()
        self._running = None
        if self._reading is request:
            self._reading = None  # the rest of its body is discarded
        if self._ended:
            return
        if not is_whole:
            self._transport.abort() if request.version == "1.0" else self._transport.close()
        elif is_last:
            self._finish()
        elif self._pipelined:
            self._begin()
        elif self._half_closed:
            self._transport.close()
        else:
            self._resume_reading()

    # ending -----------------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Close, but let a client that is still sending read its answer: a reset could discard it in transit."""
        if self._half_closed or (self._phase == IDLE and not self._refused):
            self._transport.close()
            return
        self._refused = True
        self._resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        else:
            self._transport.close()  # TLS has no half-closed connections, but reads on until the client has closed too

    def _refuse(self, refusal: Refusal) -> None:
        """Send the refusal unless earlier requests must be answered first, and read no more from the connection."""
        broken = self._reading
        self._refused = True
        self._reading = None
        self._since = self._loop.time()
        if broken is not None and broken is not self._running:
            self._pipelined.remove(broken)
            broken = None
        if broken is not None:
            broken.cut()
            broken.leave()
            if self._started:
                self._transport.close()
                return
            self._running = None
        if self._running is not None:
            return  # earlier requests are answered, and then the connection is closed
        self._transport.write(
            refusal.response.head(self._serving.date, is_last=True, is_chunked=False) + refusal.response.data
        )
        self._finish()

    def shut_down(self) -> None:
        """Accept no further request; close as soon as nothing is left to answer."""
        if self._running is None:
            self._transport.close()
        else:
            self._last = True

    def abort(self) -> None:
        self._transport.abort()

    def expire(self, now: float) -> None:
        """Close the connection if it has waited too long for its client. The server's sweep calls this."""
        waited = now - self._since
        bounds, running = self._serving.bounds, self._running
        if self._is_stalled(now):
            self._transport.abort()  # a close would wait for the client
        elif self._transport.is_closing():
            if self._refused:
                self._linger(now)
        elif running is not None:
            if self._reading is not running or not running.is_awaited:
                self._since = now  # a handler may take as long as it likes
            elif waited > bounds.body_timeout_seconds:
                self._transport.close()
        elif self._refused:
            self._linger(now)
        elif self._phase == HEADER:
            if waited > bounds.header_timeout_seconds:
                self._give_up_header()
        elif self._phase == BODY:
            if waited > bounds.body_timeout_seconds:
                self._transport.close()
        elif waited > (bounds.keep_alive_seconds if self._was_served else bounds.header_timeout_seconds):
            self._transport.close()

    def _linger(self, now: float) -> None:
        if self._unsent:
            self._since = now  # the client is still reading the refusal
        elif now - self._since > LINGER_SECONDS:
            self._transport.abort()

    def _is_stalled(self, now: float) -> bool:
        unsent = self._transport.get_write_buffer_size()
        if not unsent and self._spans is not None:
            unsent = self._spans.unsent
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        return now - self._unsent_since > self._serving.bounds.stall_seconds

    def _give_up_header(self) -> None:
        if self._url:
            self._refuse(Refusal(HTTPStatus.REQUEST_TIMEOUT, "the header did not arrive in time"))
        else:
            self._transport.close()  # at most an empty line came: an answer could be mistaken for the answer to the next request

    # unusual headers --------------------------------------------------------------------------------------------------

    def _decline_upgrade(self, rest: bytes) -> None:
        """Serve a request as if it had not offered another protocol (RFC 9110, 7.8).

        llhttp takes everything after such a header, even a body, for the other protocol, and Java's HttpClient offers h2c
        with the first POST of each connection. So the header is parsed again without the offer.
        """
        method = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse(Refusal(HTTPStatus.NOT_IMPLEMENTED, "this server is not a proxy: CONNECT is not supported"))
            return
        head = [b"%b %b HTTP/%b\r\n" % (method, self._url, self._parser.get_http_version().encode())]
        head += [f"{name}: {value}\r\n".encode("latin-1") for name, value in self._headers.items() if name != "upgrade"]
        self._parser = httptools.HttpRequestParser(self)
        self._url, self._headers = b"", {}
        self._head_bytes = 0
        self._feed(b"".join([*head, b"\r\n", rest]))

    def _measure_header(self) -> None:
        size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in self._headers.items())
        if size > self._serving.bounds.max_header_bytes:
            raise self._header_too_large()

    def _header_too_large(self) -> Refusal:
        most = self._serving.bounds.max_header_bytes
        return Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"request line and headers are over {most} bytes")
