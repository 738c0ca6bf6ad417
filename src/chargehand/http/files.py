"""Sending a stored file: ETag, If-None-Match, one range. Never shown in a browser as a page of ours."""

import re
from urllib.parse import quote

from falcon.asgi import Request, Response

from chargehand.engine.file import File
from chargehand.files import Files

_RANGE = re.compile(r"bytes=(\d{0,15})-(\d{0,15})")


async def send_file(req: Request, resp: Response, files: Files, file: File) -> None:
    etag = f'"{file.sha256}"'
    resp.set_header("etag", etag)
    resp.set_header("accept-ranges", "bytes")
    resp.set_header("x-content-type-options", "nosniff")
    resp.set_header("content-disposition", f"attachment; filename*=UTF-8''{quote(file.name, safe='')}")
    if_none_match = req.get_header("if-none-match") or ""
    if etag in if_none_match or if_none_match.strip() == "*":
        resp.status = 304
        return
    resp.content_type = file.media_type
    start, end = 0, file.size
    if (asked := req.get_header("range")) and (req.get_header("if-range") or etag) == etag:
        span = _span(asked, file.size)
        if span is None:
            resp.status = 416
            resp.set_header("content-range", f"bytes */{file.size}")
            return
        start, end = span
        resp.status = 206
        resp.set_header("content-range", f"bytes {start}-{end - 1}/{file.size}")
    resp.set_header("content-length", str(end - start))
    if req.method != "HEAD":
        resp.stream = files.read(file, start, end)


def _span(asked: str, size: int) -> tuple[int, int] | None:
    """Start and end of the one range asked for, or None when there is nothing in it. Several ranges are answered as all."""
    if "," in asked:
        return 0, size
    match = _RANGE.fullmatch(asked.strip())
    if match is None or not (match[1] or match[2]):
        return None
    if not match[1]:
        start, end = max(0, size - int(match[2])), size
    else:
        start, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    return (start, end) if start < end else None
