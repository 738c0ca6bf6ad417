"""Find the task: a CD or a stick with the label TASK, or the tail of the medium that was booted.

Drives appear late and in any order, so all of them are read repeatedly until the time is over; those that cannot be a disk
first.
"""

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from provision.errors import Exit, Trouble
from provision.iso9660 import SECTOR, NotIso, Read, files, label
from provision.journal import say
from provision.places import Places

LABEL = "TASK"
MAGIC = b"CHARGEHAND-TASK-1\n"
SEARCHED_SECTORS = 16  # searched from the end: drives may add sectors
MAX_TASK = 10 << 20
LOOK_EVERY = 1.0

_IGNORED = re.compile(r"(loop|ram|zram|dm-|md|nbd|fd)[0-9]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Task(NamedTuple):
    device: str
    files: dict[str, bytes]


def find(places: Places, seconds: float, sleep: Callable[[float], None] = time.sleep) -> Task:
    limit = time.monotonic() + seconds
    while True:
        troubles: list[str] = []
        for device in devices(places):
            try:
                with opened(places, device) as (read, size):
                    found = look(read, size)
            except OSError as error:
                troubles.append(f"{device}: {error.strerror or type(error).__name__}")  # usually no medium in the drive
            except NotIso as error:
                if time.monotonic() > limit:
                    raise Trouble(f"the task medium {device} cannot be read: {error}", Exit.MEDIUM_UNREADABLE) from None
            else:
                if found is not None:
                    say(f"the task is on {device}")
                    return Task(device, found)
        if time.monotonic() > limit:
            seen = "; ".join(troubles) or ", ".join(devices(places)) or "no drive at all"
            raise Trouble(f"no medium with label {LABEL} within {seconds:g} seconds; seen: {seen}", Exit.NO_MEDIUM)
        sleep(LOOK_EVERY)


def devices(places: Places) -> list[str]:
    try:
        names = [name for name in os.listdir(places.blocks) if not _IGNORED.fullmatch(name)]
    except OSError:
        return []
    return ["/dev/" + name for name in sorted(names, key=lambda name: (_rank(places, name), name))]


def _rank(places: Places, name: str) -> int:
    if name.startswith("sr"):
        return 0
    try:
        return 1 if (places.blocks / name / "removable").read_text().strip() == "1" else 2
    except OSError:
        return 2


@contextmanager
def opened(places: Places, device: str) -> Iterator[tuple[Read, int]]:
    handle = os.open(places.at(device), os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield lambda offset, count: os.pread(handle, count, offset), os.lseek(handle, 0, os.SEEK_END)
    finally:
        os.close(handle)


def look(read: Read, size: int) -> dict[str, bytes] | None:
    """Return the files of the task on this medium; None if there is no task; raise NotIso if it cannot be read."""
    if label(read) == LABEL:
        return files(read)
    content = tail(read, size)
    if content is None:
        return None
    return files(lambda offset, count: content[offset : offset + count])


def tail(read: Read, size: int) -> bytes | None:
    """Return a reader for the task behind another image, if the last sectors name one; its digest is checked."""
    last = size // SECTOR - 1
    for sector in range(last, max(-1, last - SEARCHED_SECTORS), -1):
        try:
            block = read(sector * SECTOR, SECTOR)
        except OSError:
            continue  # a CD's last sectors may be unreadable
        if block.startswith(MAGIC):
            return _behind(read, block, sector * SECTOR)
    return None


def _behind(read: Read, block: bytes, end: int) -> bytes:
    try:
        said = json.loads(block[len(MAGIC) :].rstrip(b"\0"))
        offset, length, digest = said["offset"], said["length"], said["sha256"]
    except (ValueError, KeyError, TypeError):
        raise NotIso("its last sector does not say where the task is") from None
    sound = type(offset) is int and type(length) is int and _SHA256.fullmatch(str(digest)) is not None
    if not sound or offset < 0 or offset % SECTOR or not 0 < length <= MAX_TASK or offset + length > end:
        raise NotIso("its last sector points to where no task can be")
    content = read(offset, length)
    if hashlib.sha256(content).hexdigest() != digest:
        raise NotIso("the task behind the image is damaged: its digest differs")
    return content
