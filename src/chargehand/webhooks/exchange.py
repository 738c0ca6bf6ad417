"""One connection to a receiver: a request goes out, an answer comes back, one after the other.

What a receiver sends is bounded in bytes and in time. Its status is what counts; of its body the beginning is kept for people to
read. A connection is used again only if the answer ended where it said, the request had left whole, and nothing came after.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Any, cast

import httptools
import msgspec

HEAD_BYTES = 32 << 10  # of an answer, and of all answers before it that are none yet (1xx)
BODY_BYTES = 64 << 10  # read to the end up to here, so that the connection can be used again
LINGER_SECONDS = 1.0  # for the rest of a body whose beginning is there
LARGE = 64 << 10  # a body is not copied to stand behind its head


class CallFailed(Exception):
    """The receiver was not reached, or what it said is no answer."""


class Answer(msgspec.Struct, frozen=True):
    status: int
    body: bytes  # its beginning
    retry_after: str


class Connection(asyncio.Protocol):
    def __init__(self, keep_bytes: int, lost: "Callable[[Connection], None]") -> None:
        self._keep_bytes = keep_bytes
        self._most_bytes = max(keep_bytes, BODY_BYTES)
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[Answer] | None = None
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
        """The receiver has closed it, or said something that nobody asked for, and the event loop has not come to see it."""
        if self._loop.time() - self.idle_since < sure_seconds:
            return False
        look = select.poll()
        look.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(look.poll(0))

    def send(self, head: bytes, body: bytes, seconds: float) -> "asyncio.Future[Answer]":
        """The answer, or CallFailed, or TimeoutError after so many seconds."""
        self._clear()
        waiter = self._waiter = self._loop.create_future()
        self._timer = self._loop.call_later(seconds, self._late)
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

    # what the transport says ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort()  # nobody has asked
            return
        if not self._status:
            self._read_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail("the receiver changes to another protocol")
        except httptools.HttpParserError as error:
            self._broken(f"the answer is not HTTP: {error}")
        else:
            self._weigh()

    def _weigh(self) -> None:
        """Is it all there, or enough, or too much?"""
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
            self._timer = self._loop.call_later(max(0.0, min(left, LINGER_SECONDS)), self._late)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_open:
            self.is_open = False
            self._lost(self)
        if self._waiter is None:
            return
        if self._status and not self._is_framed:
            self._finish()  # its end is the end of the connection
        else:
            self._broken("the receiver closed the connection before the end of its answer")

    def _late(self) -> None:
        if self._body_bytes:
            self._finish()
        else:
            self._end(TimeoutError())

    # how it ends ------------------------------------------------------------------------------------------------------

    def _broken(self, reason: str) -> None:
        """What was said before that holds, if it was more than a head."""
        if self._is_complete or self._body_bytes:
            self._is_last = True
            self._finish()
        else:
            self._fail(reason)

    def _fail(self, reason: str) -> None:
        self._end(CallFailed(reason))

    def _finish(self) -> None:
        answer = Answer(self._status, self._body[: self._keep_bytes], self._retry_after.decode("latin-1"))
        if self._is_complete and not (self._is_last or self._transport.get_write_buffer_size()):
            self._end(answer)
        else:
            self._end(answer, again=False)

    def _end(self, outcome: Answer | Exception, again: bool = True) -> None:
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

    # what the parser says ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._is_complete:
            self._is_last = True  # an answer to nothing: whatever comes next would be taken for another's

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._status:
            return  # behind a body, or of another answer
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
