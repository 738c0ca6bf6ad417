"""Sends a blob: ETag, If-None-Match, one range; without reading it into memory, if the system can send files."""

import re
from collections.abc import AsyncIterator
from io import FileIO

from chargehand.doors.provisioning.registry.names import SHA256
from chargehand.http.files import is_known as has
from chargehand.http.request import Request
from chargehand.http.response import FileSpan, Response

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


def is_known(req: Request, resp: Response, digits: str) -> bool:
    """Set the digest and ETag of the answer. Return whether the client has the blob already."""
    etag = f'"{SHA256}{digits}"'
    resp.set_header("docker-content-digest", SHA256 + digits)
    resp.set_header("etag", etag)
    if not has(req, etag):
        return False
    resp.status = 304
    return True


def span(req: Request, resp: Response, digits: str, size: int) -> tuple[int, int] | None:
    """Return start and end of what to send; None if the range is outside of the blob."""
    resp.set_header("accept-ranges", "bytes")
    etag = f'"{SHA256}{digits}"'
    asked = req.get_header("range")
    if asked is None or "," in asked or (req.get_header("if-range") or etag) != etag:
        return 0, size  # for several ranges, send all
    match = _RANGE.fullmatch(asked.strip())
    if match is None:
        return 0, size  # an unknown unit
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


class FileBody:
    """The body of an answer from a file, which is closed at the end."""

    def __init__(self, file: FileIO, start: int, end: int) -> None:
        self._span = FileSpan(file, start, end - start)

    async def __aiter__(self) -> AsyncIterator[FileSpan]:
        yield self._span

    async def aclose(self) -> None:
        self._span.file.close()
