"""Send parts of files: by sendfile(2) from the system's cache to the socket, or by reading and writing where that is impossible.

Only cached parts are sent on the event loop. What must come from the disk is sent in a thread, so that nothing else waits for it.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from io import FileIO

from chargehand.http.request import Disconnected
from chargehand.http.response import BreakOff, FileSpan
from chargehand.observability.logs import get_logger

AT_ONCE = 1 << 20  # bytes for one call of sendfile, which blocks the loop
PIECE_BYTES = 256 << 10  # larger pieces were slower: they leave the processor's cache before they are sent
STRIDE = 128 << 10  # how much the system reads ahead: as a rule its cache has no smaller gaps
CAN_SEND = sys.platform == "linux"
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_probe = bytearray(1)

log = get_logger(__name__)


class SpanWriter:
    """Writes spans to one connection. `drain` waits until the transport's buffer is below its limit."""

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, drain: Callable[[], Awaitable[None]]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._drain = drain
        self._writable: asyncio.Future[None] | None = None  # while the socket's buffer is full
        self._taken = 0  # bytes of all spans that the socket accepted

    @property
    def unsent(self) -> int:
        """0, or while the socket's buffer is full a number that changes with every byte sent."""
        return 0 if self._writable is None else self._taken + 1

    def wake(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    async def write(self, span: FileSpan) -> None:
        """Raise BreakOff if the file is shorter than the span, Disconnected if the client has gone."""
        offset, end = span.offset, span.offset + span.count
        if CAN_SEND and self._transport.get_extra_info("sslcontext") is None:
            await self._flush()
            offset = await self._send(span.file, offset, end)
        while offset < end:
            piece = await read_piece(span.file, offset, min(PIECE_BYTES, end - offset))
            self._check_open()
            self._transport.write(piece)
            offset += len(piece)
            await self._drain()

    async def _flush(self) -> None:
        """Wait until the transport's buffer is empty."""
        self._check_open()
        if self._transport.get_write_buffer_size():
            self._transport.set_write_buffer_limits(high=0)
            await self._drain()
            self._check_open()
            self._transport.set_write_buffer_limits()

    async def _send(self, file: FileIO, offset: int, end: int) -> int:
        """Return the offset that sendfile reached: less than the end if it does not support the file."""
        # A duplicate: the loop allows no second writer on the transport's descriptor, and it may be closed and reused under a thread.
        socket = os.dup(self._transport.get_extra_info("socket").fileno())
        try:
            while offset < end:
                try:
                    taken = await self._take(socket, file.fileno(), offset, min(AT_ONCE, end - offset))
                except BlockingIOError:
                    await self._wait(socket)
                except ConnectionError:
                    raise Disconnected from None
                else:
                    if not taken:
                        raise _short(file)
                    offset += taken
                    self._taken += taken
                    await asyncio.sleep(0)  # a fast client would otherwise starve all others
                self._check_open()
        except OSError:
            pass  # reading the rest will raise if the file is to blame
        finally:
            os.close(socket)
        return offset

    async def _take(self, socket: int, file: int, offset: int, count: int) -> int:
        if _is_cached(file, offset, count):
            return os.sendfile(socket, file, offset, count)
        sending = self._loop.run_in_executor(None, os.sendfile, socket, file, offset, count)
        try:
            return await asyncio.shield(sending)
        except asyncio.CancelledError:
            await asyncio.wait((sending,))  # the thread uses the descriptors, which are closed next
            raise

    async def _wait(self, socket: int) -> None:
        self._writable = self._loop.create_future()
        self._loop.add_writer(socket, self.wake)
        try:
            await self._writable
        finally:
            self._writable = None
            self._loop.remove_writer(socket)

    def _check_open(self) -> None:
        if self._transport.is_closing():
            raise Disconnected


async def read_piece(file: FileIO, offset: int, count: int) -> bytes:
    """Read a piece of a file; what the system has in its cache at once, the rest in a thread."""
    piece = bytearray(count)
    try:
        got = os.preadv(file.fileno(), [piece], offset, _NOWAIT) if _NOWAIT else 0
    except OSError:  # it would have to wait, or the file system does not support this
        got = 0
    if got < count:
        await asyncio.to_thread(_fill, file, memoryview(piece)[got:], offset + got)
    return piece  # type: ignore[return-value]  # sent like bytes, without a copy


def _fill(file: FileIO, rest: memoryview, offset: int) -> None:
    while rest:
        try:
            got = os.preadv(file.fileno(), [rest], offset)
        except OSError as error:
            log.error("a file cannot be read", path=str(file.name), error=str(error))
            raise BreakOff(str(error)) from None
        if not got:
            raise _short(file)
        rest, offset = rest[got:], offset + got


def _short(file: FileIO) -> BreakOff:
    log.error("a file is shorter than it was", path=str(file.name))
    return BreakOff(f"{file.name} ended too soon")


def _is_cached(file: int, offset: int, count: int) -> bool:
    try:
        for at in (*range(offset, offset + count, STRIDE), offset + count - 1):
            if not _NOWAIT or not os.preadv(file, [_probe], at, _NOWAIT):
                return False
    except OSError:
        return False
    return True
