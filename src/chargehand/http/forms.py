"""Parse forms with files (multipart/form-data) part by part, as they arrive."""

from collections.abc import AsyncGenerator, AsyncIterator

from multipart import MultipartError, MultipartSegment, PushMultipartParser, parse_options_header

from chargehand.errors import BadRequest
from chargehand.http.request import Request

MAX_PARTS = 64
_Events = AsyncGenerator[MultipartSegment | bytes | None, None]  # a part, its pieces, and None at its end


class Part:
    def __init__(self, segment: MultipartSegment, events: _Events) -> None:
        self.name: str = segment.name
        self.filename: str = segment.filename or ""
        self._events = events
        self._ended = False

    async def pieces(self) -> AsyncIterator[bytes]:
        while not self._ended:
            event = await anext(self._events, None)
            if isinstance(event, bytes):
                yield event
            else:
                self._ended = True

    async def read(self, most: int) -> bytes:
        """Return the beginning of the part, up to so many bytes."""
        content = b""
        async for piece in self.pieces():
            content += piece[: most - len(content)]
        return content


async def parts(req: Request) -> AsyncIterator[Part]:
    """Yield the parts in order. Skip what the caller does not read of a part."""
    events = _events(req)
    try:
        async for event in events:
            if isinstance(event, MultipartSegment):
                part = Part(event, events)
                yield part
                async for _ in part.pieces():
                    pass
    finally:
        await events.aclose()


async def _events(req: Request) -> _Events:
    _, options = parse_options_header(req.content_type or "")
    try:  # here, because readers of a part must get the error too
        with PushMultipartParser(options.get("boundary", ""), max_segment_count=MAX_PARTS) as parser:
            while not parser.closed:
                piece = await req.next_piece()
                for event in parser.parse(piece):
                    yield bytes(event) if isinstance(event, (bytearray, memoryview)) else event
    except MultipartError as error:
        raise BadRequest(f"the form is malformed: {error}") from None
    while await req.next_piece():
        pass  # ignore what follows the form
