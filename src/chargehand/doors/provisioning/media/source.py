"""A medium as it is sent: parts of files, and bytes, read in order as if they were one file.

A combined ISO is the maintenance system's image, padding, the task's image and a trailer; it never exists on disk as a whole.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from chargehand.errors import NotFound
from chargehand.http.response import BreakOff, FileSpan, Piece
from chargehand.http.spans import PIECE_BYTES, read_piece
from chargehand.observability.logs import get_logger

MediaPart = tuple[Path | bytes, int, int]  # source, offset in it, length

ISO = "application/x-iso9660-image"
SPAN_BYTES = 1 << 20  # are sent before the file is checked for changes

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class MediaSource:
    size: int
    etag: str  # with its quotes
    parts: Sequence[MediaPart]
    media_type: str = ISO

    def __post_init__(self) -> None:
        short = any(isinstance(part, bytes) and len(part) < start + length for part, start, length in self.parts)
        if short or self.size != sum(length for _, _, length in self.parts):
            raise ValueError("the parts of a medium do not make up its size")

    async def read(self, start: int, end: int) -> AsyncGenerator[Piece, None]:
        """Yield the bytes from `start` up to, not including, `end`. Raise NotFound before the first piece if a file is missing or too
        short, and BreakOff later if a file changes: a mixture of two versions must not be booted.

        The system sends a span without a copy of it. So a program that writes into the file in place, while its last bytes are being
        sent, may still change them; a program that replaces the file cannot.
        """
        with ExitStack() as stack:
            parts = await asyncio.to_thread(_open, self.parts, start, end)
            for content, _, _ in parts:
                if isinstance(content, _Opened):
                    stack.enter_context(content.file)
            for content, first, length in parts:
                for offset, count, is_read in _pieces(first, first + length):
                    if isinstance(content, bytes):
                        yield content[offset : offset + count]
                    elif is_read:
                        piece = await read_piece(content.file, offset, count)
                        content.check()
                        yield piece
                    else:
                        yield FileSpan(content.file, offset, count)
                        content.check()
                    await asyncio.sleep(0)  # a fast reader would keep all other tasks waiting


class _Opened(NamedTuple):
    file: FileIO
    path: Path
    stamp: tuple[int, int]  # size and time of the last change

    def check(self) -> None:
        if _stamp(self.file) != self.stamp:
            log.error("a medium changed while it was sent", path=str(self.path))
            raise BreakOff(f"{self.path} changed while it was sent")


def _open(parts: Sequence[MediaPart], start: int, end: int) -> list[tuple[_Opened | bytes, int, int]]:
    """Open the parts between start and end, cut to this range. An open file stays the same if another one replaces it."""
    cut: list[tuple[_Opened | bytes, int, int]] = []
    at = 0
    with ExitStack() as unless_all:
        for content, first, length in parts:
            skip, most = max(0, start - at), min(length, end - at)
            if skip < most:
                opened = content if isinstance(content, bytes) else _opened(content, first + length)
                if isinstance(opened, _Opened):
                    unless_all.enter_context(opened.file)
                cut.append((opened, first + skip, most - skip))
            at += length
        unless_all.pop_all()
    return cut


def _opened(path: Path, least: int) -> _Opened:
    try:
        file = FileIO(path)
        stamp = _stamp(file)
    except OSError as error:
        log.error("a medium cannot be read", path=str(path), error=str(error))
        raise NotFound("there is no such medium") from None
    if stamp[0] < least:
        file.close()
        log.error("a medium is shorter than it was", path=str(path), size=stamp[0], least=least)
        raise NotFound("there is no such medium")
    return _Opened(file, path, stamp)


def _pieces(first: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield offset and length of each piece, and whether it is read; in a large part all but the first and the last ones are spans.

    The first piece is read, so that an unreadable file is refused before the answer begins. The last ones are read, so that the file
    is checked after its last byte was read and before the answer is complete.
    """
    offset = first
    while offset < end:
        is_read = offset == first or end - offset <= SPAN_BYTES
        count = min(PIECE_BYTES, end - offset) if is_read else min(SPAN_BYTES, end - offset - SPAN_BYTES)
        yield offset, count, is_read
        offset += count


def _stamp(file: FileIO) -> tuple[int, int]:
    found = os.fstat(file.fileno())
    return found.st_size, found.st_mtime_ns
