"""Read the files of a task medium directly from a device or a part of one.

Without a mount we need no loop device for the tail of a combined medium, no kernel module, and no unmount.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

SECTOR = 2048
FIRST_DESCRIPTOR = 16
MAX_DESCRIPTORS = 32
MAX_FILE = 4 << 20
MAX_DIRECTORY = 1 << 20
JOLIET = (b"%/@", b"%/C", b"%/E")

Read = Callable[[int, int], bytes]  # (offset, count)


class NotIso(Exception):
    pass


class Descriptor(NamedTuple):
    label: str
    extent: int
    size: int
    joliet: bool


def label(read: Read) -> str | None:
    """Return the volume's label; None if this is not ISO 9660."""
    try:
        return next(_descriptors(read)).label
    except (NotIso, StopIteration, OSError):
        return None


def files(read: Read) -> dict[str, bytes]:
    """Return all files of the root directory by their long names."""
    found = list(_descriptors(read))
    if not found:
        raise NotIso("no volume descriptor")
    best = next((each for each in found if each.joliet), found[0])
    if not 0 < best.size <= MAX_DIRECTORY:
        raise NotIso("the root directory has no sensible size")
    return dict(_entries(read, best))


def _descriptors(read: Read) -> Iterator[Descriptor]:
    for number in range(FIRST_DESCRIPTOR, FIRST_DESCRIPTOR + MAX_DESCRIPTORS):
        block = read(number * SECTOR, SECTOR)
        if len(block) < SECTOR or block[1:6] != b"CD001":
            raise NotIso("no ISO 9660 file system")
        kind = block[0]
        if kind == 255:
            return
        joliet = kind == 2 and block[88:91] in JOLIET
        if kind == 1 or joliet:
            name = block[40:72].decode("utf-16-be" if joliet else "ascii", "replace").rstrip(" \0")
            yield Descriptor(name, _number(block, 158), _number(block, 166), joliet)


def _entries(read: Read, directory: Descriptor) -> Iterator[tuple[str, bytes]]:
    data = _exactly(read, directory.extent * SECTOR, directory.size)
    at = 0
    while at < len(data):
        length = data[at]
        if not length:  # the rest of a sector is empty
            at = (at // SECTOR + 1) * SECTOR
            continue
        record = data[at : at + length]
        at += length
        if length < 34 or len(record) < 33 + record[32]:
            raise NotIso("a directory record is cut off")
        raw = record[33 : 33 + record[32]]
        if record[25] & 2 or raw in (b"\0", b"\1"):
            continue
        name = raw.decode("utf-16-be", "replace") if directory.joliet else raw.decode("ascii", "replace").lower()
        size = _number(record, 10)
        if size > MAX_FILE:
            raise NotIso(f"{name!r} has {size} bytes; no file of a task has that many")
        yield name.partition(";")[0].rstrip("."), _exactly(read, _number(record, 2) * SECTOR, size)


def _number(block: bytes, at: int) -> int:
    return int.from_bytes(block[at : at + 4], "little")


def _exactly(read: Read, offset: int, count: int) -> bytes:
    data = read(offset, count)
    if len(data) != count:
        raise NotIso("the medium ends too early")
    return data
