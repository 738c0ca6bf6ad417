"""Sending what has a size, an ETag and a reader: conditions, one range, and an end when the caller has gone.

`send_file` is that for stored files. Nothing here is ever shown in a browser as a page of ours.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import quote

from chargehand.engine.file import File
from chargehand.files import PIECE_BYTES, Files
from chargehand.http.request import Request
from chargehand.http.response import Piece, Response, Span
from chargehand.observability.logs import get_logger

_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")

# Called with where the answer began, the bytes handed over so far, and whether that is all of them: once with False when
# the first are on their way, and once when the answer ended or broke.
Sent = Callable[[int, int, bool], None]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Content:
    size: int
    etag: str  # with its quotes
    media_type: str
    read: Callable[[int, int], AsyncGenerator[Piece, None]]  # from the first offset up to, not including, the second


def is_known(req: Request, etag: str) -> bool:
    """Whether the caller has what this ETag, with its quotes, names."""
    known = [each.strip().removeprefix("W/") for each in (req.get_header("if-none-match") or "").split(",")]
    return etag in known or "*" in known


def send_asset(req: Request, resp: Response, body: bytes, etag: str, media_type: str) -> None:
    """Answer with a small file that is in memory, or with 304 to whoever has it."""
    resp.set_header("etag", etag)
    if is_known(req, etag):
        resp.status = 304
    else:
        resp.content_type = media_type
        resp.data = body


async def send_file(req: Request, resp: Response, files: Files, file: File) -> None:
    resp.set_header("content-disposition", f"attachment; filename*=UTF-8''{quote(file.name, safe='')}")

    def read(start: int, end: int) -> AsyncGenerator[Piece, None]:
        return files.read(file, start, end) if end - start <= PIECE_BYTES else _large(files, file, start, end)

    await send_content(req, resp, Content(file.size, f'"{file.sha256}"', file.media_type, read))


async def _large(files: Files, file: File, start: int, end: int) -> AsyncGenerator[Span, None]:
    with await files.open(file) as opened:
        yield Span(opened, start, end - start)


async def send_content(req: Request, resp: Response, content: Content, sent: Sent | None = None) -> None:
    """What the reader raises before its first piece becomes the answer; after that only the connection can be closed."""
    resp.set_header("etag", content.etag)
    resp.set_header("accept-ranges", "bytes")
    if is_known(req, content.etag):
        resp.status = 304
        return
    span = _span(req, content)
    start, end = span or (0, content.size)
    if span is not None:
        if start >= end:
            resp.status = 416
            resp.set_header("content-range", f"bytes */{content.size}")
            return
        resp.status = 206
        resp.set_header("content-range", f"bytes {start}-{end - 1}/{content.size}")
    reader = content.read(start, end)
    if req.method == "HEAD":
        await anext(reader, b"")  # so that what cannot be read is not promised
        await reader.aclose()
    else:
        resp.stream = Body(req, await anext(reader, b""), reader, start, end, sent)
    resp.content_type = content.media_type
    resp.set_header("content-length", str(end - start))


class Body:
    """The body of an answer, which tells `sent` what became of it."""

    def __init__(
        self, req: Request, first: Piece, rest: AsyncGenerator[Piece, None], start: int, end: int, sent: Sent | None
    ) -> None:
        self._req = req
        self._first = first
        self._rest = rest
        self._start = start
        self._length = end - start
        self._sent = sent
        self._given = 0  # to the connection, with the last piece perhaps still on its way
        self._told = False

    async def __aiter__(self) -> AsyncIterator[Piece]:
        self._given = len(self._first)
        yield self._first
        self._tell_first()
        async for piece in self._rest:
            self._given += len(piece)
            yield piece

    async def aclose(self) -> None:
        try:
            await self._rest.aclose()
        finally:
            self._tell_first()
            self._tell(whole=not self._req.gone and self._given == self._length)

    def _tell_first(self) -> None:
        if not self._told and self._given:
            self._told = True
            self._tell(whole=False)

    def _tell(self, *, whole: bool) -> None:
        if self._sent is None:
            return
        try:
            self._sent(self._start, self._given, whole)
        except Exception:
            log.exception("what was sent could not be noted")  # which is no reason to break the answer


def _span(req: Request, content: Content) -> tuple[int, int] | None:
    """Start and end of the one range asked for, with nothing between them when it cannot be had; None: all is sent.

    So it is when several ranges are asked for, in another unit, of an older version, or with another method than GET.
    """
    asked = (req.get_header("range") or "").strip().lower()
    if req.method != "GET" or not asked.startswith("bytes=") or "," in asked:
        return None
    if (req.get_header("if-range") or content.etag) != content.etag:
        return None
    match = _RANGE.fullmatch(asked)
    if match is None or not (match[1] or match[2]):
        return 0, 0
    if not match[1]:
        return max(0, content.size - int(match[2])), content.size
    return int(match[1]), min(content.size, int(match[2]) + 1 if match[2] else content.size)
