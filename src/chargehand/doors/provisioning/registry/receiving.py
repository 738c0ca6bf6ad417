"""A body on its way in: gathered into pieces that are worth a trip to a thread, never more of it in memory than one."""

import asyncio
import re
from collections.abc import AsyncGenerator

from falcon.asgi import Request

from chargehand.doors.provisioning.registry.errors import Code, Refused
from chargehand.doors.provisioning.registry.uploads import PIECE_BYTES
from chargehand.http.hangup import gone

_CONTENT_RANGE = re.compile(r"(?:bytes[ =])?(\d{1,18})-(\d{1,18})(?:/(?:\d{1,18}|\*))?")


async def pieces(req: Request) -> AsyncGenerator[bytes, None]:
    gathered = bytearray()
    async for chunk in req.stream:
        gathered += chunk
        if len(gathered) >= PIECE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    if gathered:
        yield bytes(gathered)


async def arrived_whole(req: Request, received: int) -> bool:
    """Whether the body ended, and was not cut off: a stream that breaks looks like one that ends."""
    if req.content_length is not None:
        return received == req.content_length
    leaving = asyncio.ensure_future(gone(req))
    await asyncio.sleep(0)  # a client that has left is seen at once, one that is there not at all
    left = leaving.done()
    leaving.cancel()
    await asyncio.wait({leaving})
    return not left


def content_range(req: Request) -> tuple[int, int] | None:
    """Start and length of what the client says it sends; None when it does not say."""
    text = req.get_header("content-range")
    if text is None:
        return None
    match = _CONTENT_RANGE.fullmatch(text.strip())
    if match is None or int(match[1]) > int(match[2]):
        raise Refused(400, Code.BLOB_UPLOAD_INVALID, "Content-Range must be the first and the last byte: `0-1023`")
    start, length = int(match[1]), int(match[2]) - int(match[1]) + 1
    if req.content_length is not None and req.content_length != length:
        raise Refused(
            400, Code.SIZE_INVALID, f"Content-Range speaks of {length} bytes, Content-Length of another number"
        )
    return start, length
