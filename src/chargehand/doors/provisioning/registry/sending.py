"""A blob on its way out: ETag, If-None-Match, one range, and never more of it in memory than one piece."""

import asyncio
import re
from collections.abc import AsyncIterator
from io import FileIO

from falcon.asgi import Request, Response

from chargehand.doors.provisioning.registry.names import SHA256
from chargehand.http.hangup import BreakOff, gone

PIECE_BYTES = 512 << 10

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def is_known(req: Request, resp: Response, digits: str) -> bool:
    """Names the content in the answer, and says whether the client has it already."""
    etag = f'"{SHA256}{digits}"'
    resp.set_header("docker-content-digest", SHA256 + digits)
    resp.set_header("etag", etag)
    known = [each.strip().removeprefix("W/") for each in (req.get_header("if-none-match") or "").split(",")]
    if etag not in known and "*" not in known:
        return False
    resp.status = 304
    return True


def span(req: Request, resp: Response, digits: str, size: int) -> tuple[int, int] | None:
    """Start and end of what is sent; None when nothing of what was asked for is there."""
    resp.set_header("accept-ranges", "bytes")
    etag = f'"{SHA256}{digits}"'
    asked = req.get_header("range")
    if asked is None or "," in asked or (req.get_header("if-range") or etag) != etag:
        return 0, size  # several ranges are answered as all
    match = _RANGE.fullmatch(asked.strip())
    if match is None:
        return 0, size  # in a unit of which we know nothing
    start, end = _ends(match[1], match[2], size)
    if start >= end:
        resp.set_header("content-range", f"bytes */{size}")
        return None
    resp.status = 206
    resp.set_header("content-range", f"bytes {start}-{end - 1}/{size}")
    return start, end


def _ends(first: str, last: str, size: int) -> tuple[int, int]:
    if first:
        return int(first), min(size, int(last) + 1 if last else size)
    return (max(0, size - int(last)), size) if last else (0, 0)


class Sent:
    """What Falcon reads an answer from: it asks, and closes it in the end whatever happens."""

    def __init__(self, req: Request, file: FileIO, start: int, end: int) -> None:
        self._req = req
        self._file = file
        self._at = start
        self._left = end - start
        self._leaving: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while piece := await self.read():
            yield piece

    async def read(self, _size: int | None = None, /) -> bytes:
        if self._leaving is None:
            self._leaving = asyncio.ensure_future(gone(self._req))
        if not self._left or self._leaving.done():
            return b""
        piece = await asyncio.to_thread(self._next)
        if not piece:
            raise BreakOff("a blob is shorter on the disk than it was")
        return piece

    def _next(self) -> bytes:
        self._file.seek(self._at)
        piece = self._file.read(min(PIECE_BYTES, self._left))
        self._at, self._left = self._at + len(piece), self._left - len(piece)
        return piece

    async def close(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
        # In a thread: where a read that nobody waits for any more holds the file, closing waits for it.
        await asyncio.to_thread(self._file.close)
