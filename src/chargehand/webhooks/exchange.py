"""One HTTP connection to a receiver, used for one request and its answer at a time.

Answers are bounded in bytes and in time. Only the status matters; the beginning of the body is kept for people to read. A
connection is reused only if the answer ended as framed, the whole request was sent, and nothing followed the answer.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec

HEAD_BYTES = 32 << 10  # of an answer together with the interim answers (1xx) before it
BODY_BYTES = 64 << 10  # a body up to this size is read to its end, so that the connection can be reused
LINGER_SECONDS = 1.0  # how long to wait for the rest of a body that has begun
LARGE = 64 << 10  # a request body of this size is written separately, not copied behind the head


class CallFailed(Exception):
    """The receiver could not be reached, or did not answer in HTTP."""


class ReceiverAnswer(msgspec.Struct, frozen=True):
    status: int
    body: bytes  # only its beginning
    retry_after: str


class OutboundConnection(asyncio.Protocol):
    def __init__(self, keep_bytes: int, lost: "Callable[[OutboundConnection], None]") -> None:
        self._keep_bytes = keep_bytes
        self._most_bytes = max(keep_bytes, BODY_BYTES)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[ReceiverAnswer] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._clear()
        self.is_open = False
        self.idle_since = 0.0

    def _clear(self) -> None:
        self._read_bytes = 0  # while the head was not complete
        self._header_bytes = 0
        self._status = 0  # 0: the head is not complete
        self._retry_after = b""
        self._is_framed = False
        self._body = b""
        self._body_bytes = 0
        self._is_lingering = False
        self._is_complete = False
        self._is_last = False

    def is_stale(self, sure_seconds: float) -> bool:
        """Has the receiver closed the connection or sent something unasked, before the event loop noticed?"""
        if self._loop.time() - self.idle_since < sure_seconds:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def send(self, head: bytes, body: bytes, seconds: float) -> "asyncio.Future[ReceiverAnswer]":
        """Send a request; the future holds the answer, CallFailed, or TimeoutError after so many seconds."""
        self._clear()
        waiter = self._waiter = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._timed_out)
        if len(body) < LARGE:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            self._transport.write(body)
        return waiter

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            self._lost(self)
            self._transport.abort()

    # called by the transport ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # no request is waiting for an answer
            return
        if not self._status:
            self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the receiver answered with an upgrade to another protocol")
        except httptools.HttpParserError as error:
            self._broken(f"the answer is not HTTP: {error}")
        else:
            self._check_progress()

    def _check_progress(self) -> None:
        """Finish when the answer is complete or long enough, fail if its head is too long, else wait for more."""
        if self._header_bytes > HEAD_BYTES or (self._read_bytes > HEAD_BYTES and not self._status):
            self._fail(f"the head of the answer is over {HEAD_BYTES} bytes long")
        elif self._is_complete or self._body_bytes > self._most_bytes:
            self._finish()
        elif self._body_bytes and not self._is_lingering:
            self._linger()

    def _linger(self) -> None:
        self._is_lingering = True
        if self._timer is not None:
            left = self._timer.when() - self._loop.time()
            self._timer.cancel()
            self._timer = self._loop.call_later(max(0.0, min(left, LINGER_SECONDS)), self._timed_out)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._lost(self)
        if self._waiter is None:
            return
        if self._status and not self._is_framed:
            self._finish()  # an answer without a length ends with the connection
        else:
            self._broken("the receiver closed the connection before the end of its answer")

    def _timed_out(self) -> None:
        if self._body_bytes:
            self._finish()
        else:
            self._end(TimeoutError())

    # the end of an exchange -------------------------------------------------------------------------------------------

    def _broken(self, reason: str) -> None:
        """Accept a broken answer if its body had begun, else fail."""
        if self._is_complete or self._body_bytes:
            self._is_last = True
            self._finish()
        else:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        self._end(CallFailed(reason))

    def _finish(self) -> None:
        answer = ReceiverAnswer(self._status, self._body[: self._keep_bytes], self._retry_after.decode("latin-1"))
        if self._is_complete and not (self._is_last or self._transport.get_write_buffer_size()):
            self._end(answer)
        else:
            self._end(answer, again=False)

    def _end(self, outcome: ReceiverAnswer | Exception, again: bool = True) -> None:
        waiter, self._waiter = self._waiter, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if isinstance(outcome, Exception) or not again:
            self.abort()
        self.idle_since = self._loop.time()
        if waiter is None or waiter.done():
            return
        if isinstance(outcome, Exception):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)

    # called by the parser ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_last = True  # an answer without a request: the next request would receive it

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._status:
            return  # a trailer, or the header of another answer
        name = name.lower()
        if name == b"content-length" or name == b"transfer-encoding":
            self._is_framed = True
        elif name == b"retry-after":
            self._retry_after = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self._status:
            self._status = status

    def on_body(self, data: bytes) -> None:
        if self._is_complete:
            return
        if self._body_bytes < self._keep_bytes:
            self._body += data[: self._keep_bytes - self._body_bytes]
        self._body_bytes += len(data)

    def on_message_complete(self) -> None:
        if self._status:
            self._is_complete = True
            self._is_last = self._is_last or not self._parser.should_keep_alive()
        else:
            self._retry_after, self._is_framed = b"", False  # 1xx: the answer is still to come
