"""Write the two archive formats that the image needs, reproducibly: cpio as the kernel unpacks it (newc), and tar."""

import io
import tarfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

from maintenance.build.run import EPOCH

DIRECTORY, FILE, LINK = 0o040000, 0o100000, 0o120000


class Entry(NamedTuple):
    path: str  # without a slash in front
    mode: int  # with the bits of the file type
    data: bytes = b""  # the target of a link
    uid: int = 0
    gid: int = 0


def newc(entries: Iterable[Entry]) -> Iterator[bytes]:
    """Return a cpio archive, sorted by path, so that a directory comes before its content."""
    for number, entry in enumerate(sorted(entries), 1):
        yield from _record(entry, number)
    yield from _record(Entry("TRAILER!!!", 0), 0)


def write_tar(entries: Iterable[Entry], to: IO[bytes]) -> None:
    kinds = {DIRECTORY: tarfile.DIRTYPE, FILE: tarfile.REGTYPE, LINK: tarfile.SYMTYPE}
    with tarfile.open(fileobj=to, mode="w|", format=tarfile.GNU_FORMAT) as tar:
        for entry in sorted(entries):
            info = tarfile.TarInfo(entry.path)
            info.mode, info.uid, info.gid, info.mtime = entry.mode & 0o7777, entry.uid, entry.gid, EPOCH
            info.type = kinds[entry.mode & 0o170000]
            if info.issym():
                info.linkname = entry.data.decode()
                tar.addfile(info)
            else:
                info.size = len(entry.data)
                tar.addfile(info, io.BytesIO(entry.data))


def _record(entry: Entry, number: int) -> Iterator[bytes]:
    name = entry.path.encode() + b"\0"
    links = 2 if entry.mode & 0o170000 == DIRECTORY else 1
    fields = (number, entry.mode, entry.uid, entry.gid, links, EPOCH, len(entry.data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name
    yield head + bytes(-len(head) % 4)
    yield entry.data + bytes(-len(entry.data) % 4)
