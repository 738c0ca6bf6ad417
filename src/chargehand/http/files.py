"""Send content that has a size, an ETag and a reader, with conditional requests and a single range; stop if the caller disconnects.

`send_file` does so for stored files, as attachments that a browser never shows as a page.
"""

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from urllib.parse import quote

from chargehand.engine.file import File
from chargehand.files import PIECE_BYTES, Files
from chargehand.http.request import Request
from chargehand.http.response import FileSpan, Piece, Response
from chargehand.observability.logs import get_logger

_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")

# Called with the offset of the answer, the bytes sent so far, and whether that is all of them: once with False after the
# first piece, and once when the answer ended or was broken off.
Sent = Callable[[int, int, bool], None]

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Content:
    size: int
    etag: str  # with its quotes
    media_type: str
    read: Callable[[int, int], AsyncGenerator[Piece, None]]  # from the first offset up to, not including, the second


def is_known(req: Request, etag: str) -> bool:
    """Does If-None-Match contain this ETag (with its quotes)?"""
    known = [each.strip().removeprefix("W/") for each in (req.get_header("if-none-match") or "").split(",")]
    return etag in known or "*" in known


def send_asset(req: Request, resp: Response, body: bytes, etag: str, media_type: str) -> None:
    """Answer with a small file from memory, or with 304 if the caller has it."""
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


async def _large(files: Files, file: File, start: int, end: int) -> AsyncGenerator[FileSpan, None]:
    with await files.open(file) as opened:
        yield FileSpan(opened, start, end - start)


async def send_content(req: Request, resp: Response, content: Content, sent: Sent | None = None) -> None:
    """Answer with the content. An error before the first piece becomes the answer; after that the connection is closed."""
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
        await anext(reader, b"")  # so that HEAD fails too if the content cannot be read
        await reader.aclose()
    else:
        resp.stream = Body(req, await anext(reader, b""), reader, start, end, sent)
    resp.content_type = content.media_type
    resp.set_header("content-length", str(end - start))


class Body:
    """The body of an answer; it reports its progress to `sent`."""

    def __init__(
        self, req: Request, first: Piece, rest: AsyncGenerator[Piece, None], start: int, end: int, sent: Sent | None
    ) -> None:
        self._req = req
        self._first = first
        self._rest = rest
        self._start = start
        self._length = end - start
        self._sent = sent
        self._given = 0  # bytes passed to the connection, which may still be sending the last piece
        self._reported = False

    async def __aiter__(self) -> AsyncIterator[Piece]:
        self._given = len(self._first)
        yield self._first
        self._report_first()
        async for piece in self._rest:
            self._given += len(piece)
            yield piece

    async def aclose(self) -> None:
        try:
            await self._rest.aclose()
        finally:
            self._report_first()
            self._report(whole=not self._req.gone and self._given == self._length)

    def _report_first(self) -> None:
        if not self._reported and self._given:
            self._reported = True
            self._report(whole=False)

    def _report(self, *, whole: bool) -> None:
        if self._sent is None:
            return
        try:
            self._sent(self._start, self._given, whole)
        except Exception:
            log.exception("the progress of an answer could not be recorded")  # which must not break the answer


def _span(req: Request, content: Content) -> tuple[int, int] | None:
    """Return start and end of the requested range, an empty one if it cannot be satisfied; None to send everything.

    That is done for several ranges, another unit, an outdated If-Range, or a method other than GET.
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
