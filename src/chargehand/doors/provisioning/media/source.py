"""A medium as it is sent: pieces of files and bytes in a row, read as if they were one file.

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

MediaPart = tuple[Path | bytes, int, int]  # where from, the first byte there, and how many

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
        """From `start` up to, not including, `end`. NotFound before the first piece if a file is not as it should be;
        BreakOff later, when one changes: a medium of two halves that do not belong together must not be booted.

        Of a span the system keeps no copy. Who writes into a file in place when the last of it is already on its way can still
        change what is sent; who replaces it cannot.
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
    """Open the parts between start and end, cut to them. An open file stays the same if another gets its name."""
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
    """Offset and length of each piece, and whether it is read; those between the first and the last ones of a large part are spans.

    The first is read so that what cannot be read is not promised. The last ones are read so that the file is checked behind the
    last byte that is taken from it and before the answer is whole.
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
