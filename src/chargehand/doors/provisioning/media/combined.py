"""One medium for a BMC with a single CD drive: the maintenance image, and behind it the job's task medium.

    maintenance image | zeros up to a sector | task medium | one sector that says where the task medium lies

The machine boots it as the maintenance image that it is; what lies behind is not part of that file system. Nothing is
written to disk for it: whoever serves it takes each range from the files it is made of.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from chargehand.doors.provisioning.media.iso import MAX_BYTES, Built, IsoError
from chargehand.doors.provisioning.media.iso_dates import SECTOR
from chargehand.doors.provisioning.taxonomy import Key

MAGIC = b"CHARGEHAND-TASK-1\n"
SEARCHED_SECTORS = 16  # from the end: drives may add some

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ImagePart(NamedTuple):
    source: Path | bytes
    start: int  # in the image, or for a piece, in the source
    length: int


class TaskExtent(NamedTuple):
    offset: int
    length: int
    sha256: str


class Combined:
    """Made for each request: a maintenance image that was replaced meanwhile is another medium, with another ETag."""

    def __init__(self, maintenance: Path, task: Built) -> None:
        try:
            found = os.stat(maintenance)
        except OSError as error:
            raise IsoError(
                f"the maintenance image {maintenance} cannot be read: {error.strerror}", Key.ISO_SERVE
            ) from error
        boot = found.st_size
        padding = -boot % SECTOR
        trailer = _trailer(TaskExtent(boot + padding, task.size, task.sha256))
        sources = ((maintenance, boot), (bytes(padding), padding), (task.path, task.size), (trailer, SECTOR))
        self._parts: list[ImagePart] = []
        self.size = 0
        for source, length in sources:
            if length:
                self._parts.append(ImagePart(source, self.size, length))
            self.size += length
        identity = f"{found.st_ino} {boot} {found.st_mtime_ns} {task.sha256}"
        self.etag = f'"{hashlib.sha256(identity.encode()).hexdigest()[:32]}"'

    def parts(self) -> list[ImagePart]:
        """In order and without gaps; `start` is where each lies in the image."""
        return list(self._parts)

    def pieces(self, start: int, end: int) -> Iterator[ImagePart]:
        """What the range from `start` up to, not including, `end` is made of; `start` of a piece is in its source."""
        for source, at, length in self._parts:
            first, last = max(start, at), min(end, at + length)
            if first < last:
                yield ImagePart(source, first - at, last - first)


def find_task(read: Callable[[int, int], bytes], size: int) -> TaskExtent | None:
    """Find the task on a medium that `read(offset, n)` reads. None: it is not a combined one."""
    for sector in range(size // SECTOR - 1, max(-1, size // SECTOR - 1 - SEARCHED_SECTORS), -1):
        block = read(sector * SECTOR, SECTOR)
        if block.startswith(MAGIC):
            return _task(block, sector * SECTOR)
    return None


def _trailer(task: TaskExtent) -> bytes:
    return (MAGIC + json.dumps(task._asdict()).encode()).ljust(SECTOR, b"\0")


def _task(block: bytes, end: int) -> TaskExtent | None:
    try:
        said = json.loads(block[len(MAGIC) :].rstrip(b"\0"))
        offset, length, sha256 = said["offset"], said["length"], said["sha256"]
    except (ValueError, KeyError, TypeError):
        return None
    if type(offset) is not int or type(length) is not int or not _SHA256.fullmatch(str(sha256)):
        return None
    fits = offset >= 0 and offset % SECTOR == 0 and 0 < length <= MAX_BYTES and offset + length <= end
    return TaskExtent(offset, length, sha256) if fits else None
