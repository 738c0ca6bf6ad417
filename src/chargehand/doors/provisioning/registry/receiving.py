"""Reads a body in pieces large enough for a call in a thread, with never more than one piece in memory."""

import re
from collections.abc import AsyncGenerator

from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused
from chargehand.doors.provisioning.registry.uploads import PIECE_BYTES
from chargehand.http.request import Disconnected, Request

_CONTENT_RANGE = re.compile(r"(?:bytes[ =])?(\d{1,18})-(\d{1,18})(?:/(?:\d{1,18}|\*))?")


class Incoming:
    """Yield the body of a request in pieces."""

    def __init__(self, req: Request) -> None:
        self._req = req
        self.is_whole = False  # set at the end: the body was not cut off

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        gathered = bytearray()
        try:
            while chunk := await self._req.next_piece():
                gathered += chunk
                if len(gathered) >= PIECE_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
            self.is_whole = True
        except Disconnected:
            pass  # what arrived is kept: the client may come back and send the rest
        if gathered:
            yield bytes(gathered)


def content_range(req: Request) -> tuple[int, int] | None:
    """Return start and length from Content-Range; None without one."""
    text = req.get_header("content-range")
    if text is None:
        return None
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise RegistryRefused(
            400, Code.BLOB_UPLOAD_INVALID, "Content-Range must have the form `first-last`, such as `0-1023`"
        )
    start, length = int(match[1]), int(match[2]) - int(match[1]) + 1
    if req.content_length is not None and req.content_length != length:
        raise RegistryRefused(
            400, Code.SIZE_INVALID, f"Content-Range has {length} bytes, Content-Length another number"
        )
    return start, length
