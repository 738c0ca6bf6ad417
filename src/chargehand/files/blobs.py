"""Bytes on a disk under their SHA-256."""

import asyncio
import contextlib
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import NamedTuple, TypeVar

from chargehand.errors import NotFound, StoreCorrupt, TooLarge
from chargehand.files.disk import SHARED, is_old, listed, locked, make, remove_old, stamp, sync, translated

PIECE_BYTES = 256 << 10  # what goes to the disk, or comes from it, in one trip to a thread
SWEEP_BATCH = 500
DRAFT = "draft-"  # how the names of temporary files begin

_SHA256 = re.compile(r"[0-9a-f]{64}")

T = TypeVar("T")

InUse = Callable[[list[str]], Awaitable[set[str]]]


class Blob(NamedTuple):
    sha256: str
    size: int


class Swept(NamedTuple):
    blobs: int
    bytes: int


class Blobs:
    """Bytes in a directory, each under its hash: what is stored twice lies there once. Nodes may share the directory.

    The time of a file says when it was last put, or renewed: a sweep takes only what is old.
    """

    def __init__(
        self, directory: Path, *, lock: Path | None = None, fan_out: bool = False, what: str = "files"
    ) -> None:
        self.directory = directory
        self.lock = lock or directory / "lock"
        self._fan_out = fan_out  # over folders by the first two digits
        self._what = what  # for errors

    def path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise NotFound(f"{sha256[:80]!r} is not the SHA-256 of anything")
        return self.directory / sha256[:2] / sha256 if self._fan_out else self.directory / sha256

    def adopt(self, draft: Path, sha256: str, now: int) -> Path:
        """Give a file that is complete and on the disk its name, also if that is taken: the same bytes, but new, so that no sweep
        takes them now. Blocks. The caller holds the lock, shared, and syncs the folder of what is returned after it.
        """
        path = self.path(sha256)
        stamp(draft, now)
        make(path.parent)
        draft.rename(path)
        return path

    async def put(self, content: AsyncIterator[bytes] | bytes, max_bytes: int) -> Blob:
        """Store the bytes, durably. What is too large, or does not fit on the disk, leaves nothing behind."""
        draft = Draft(self, max_bytes)
        try:
            async with contextlib.aclosing(_pieces(content)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(draft.write, piece)
            return await asyncio.to_thread(draft.keep)
        except BaseException:
            await asyncio.to_thread(draft.discard)
            raise

    async def read(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """Read from `start` up to, not including, `end`; None: to the last byte."""
        with contextlib.closing(Reader(self)) as reader:
            file, size = await reader.open(sha256, start)
            left = (size if end is None else end) - start
            while left > 0:
                piece = await reader.read(file, min(PIECE_BYTES, left))
                if not piece:
                    raise StoreCorrupt(f"the content {sha256} is shorter on disk than it was")
                left -= len(piece)
                yield piece

    async def open(self, sha256: str, size: int) -> FileIO:
        """Open what has so many bytes, for a caller that closes it."""
        with contextlib.closing(Reader(self)) as reader:
            file, found = await reader.open(sha256, 0)
            if found < size:
                raise StoreCorrupt(f"the content {sha256} is shorter on disk than it was")
            reader.hand_over()
            return file

    async def sweep(self, in_use: InUse, before: int) -> Swept:
        """Remove blobs that are not in use, and what writers that died left behind, if they did not change since then.

        The age is what protects a blob whose reference is still to be written.
        """
        count = size = 0
        batches, nothing = self._old(before), list[Path]()
        while paths := await asyncio.to_thread(next, batches, nothing):
            used = await in_use([path.name for path in paths if not path.name.startswith(DRAFT)])
            swept = await asyncio.to_thread(self._remove, [path for path in paths if path.name not in used], before)
            count, size = count + swept.blobs, size + swept.bytes
        return Swept(count, size)

    def translated(self) -> contextlib.AbstractContextManager[None]:
        return translated(self._what)

    def _old(self, before: int) -> Iterator[list[Path]]:
        """Yield drafts and blobs that did not change since then, some at a time. Other files are left alone."""
        batch: list[Path] = []
        with self.translated():
            for folder in self._folders():
                with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
                    for entry in entries:
                        if (entry.name.startswith(DRAFT) or _SHA256.fullmatch(entry.name)) and is_old(
                            Path(entry.path), before
                        ):
                            batch.append(Path(entry.path))
                        if len(batch) == SWEEP_BATCH:
                            yield batch
                            batch = []
            yield batch

    def _folders(self) -> list[Path]:
        if not self._fan_out:
            return [self.directory]
        return [Path(entry.path) for entry in listed(self.directory) if entry.is_dir()]

    def _remove(self, paths: list[Path], before: int) -> Swept:
        count = size = 0
        for path in paths:
            with self.translated(), contextlib.suppress(FileNotFoundError):
                length = path.stat().st_size
                if remove_old(path, before, self.lock):
                    count, size = count + 1, size + length
        return Swept(count, size)


class Reader:
    """A file that is opened and read in threads.

    A caller that is cancelled leaves its thread behind in the middle of a call, or its call behind in the queue of the threads. So
    whoever is done last closes the file: the caller or that thread. Neither waits for the other.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._file: FileIO | None = None
        self._closed = False
        self._turn = threading.Lock()

    async def open(self, sha256: str, start: int) -> tuple[FileIO, int]:
        """Open the blob at this position, and return it with the number of its bytes."""
        return await asyncio.to_thread(self._in_turn, lambda: self._open(sha256, start))

    async def read(self, file: FileIO, size: int) -> bytes:
        return await asyncio.to_thread(self._in_turn, lambda: file.read(size))

    def close(self) -> None:
        self._closed = True
        self._close_unless_busy()

    def hand_over(self) -> None:
        """Leave the file open: the caller closes it."""
        self._file = None

    def _open(self, sha256: str, start: int) -> tuple[FileIO, int]:
        try:
            file = self._file = self._blobs.path(sha256).open("rb", buffering=0)
        except FileNotFoundError:
            raise NotFound(f"there is no content {sha256}") from None
        file.seek(start)
        return file, os.fstat(file.fileno()).st_size

    def _in_turn(self, work: Callable[[], T]) -> T:
        try:
            with self._turn, self._blobs.translated():
                return work()
        finally:
            if self._closed:
                self._close_unless_busy()

    def _close_unless_busy(self) -> None:
        """Close the file, unless a thread works on it: that thread looks here again when it is done."""
        if self._turn.acquire(blocking=False):
            try:
                if self._file is not None:
                    self._file.close()
            finally:
                self._turn.release()


class Draft:
    """A temporary file that becomes a blob or is discarded. All of it blocks: for threads.

    A caller that is cancelled leaves its thread behind in the middle of a call; the lock makes `discard` wait for it.
    """

    def __init__(self, blobs: Blobs, max_bytes: int) -> None:
        self._blobs = blobs
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BufferedWriter | None = None
        self._path = Path()
        self._over = False
        self._turn = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._turn, self._blobs.translated():
            if self._over:
                return
            self._size += len(data)
            if self._size > self._max_bytes:
                raise TooLarge(f"the file is over {self._max_bytes} bytes, the most that is accepted")
            self._digest.update(data)
            self._opened().write(data)

    def keep(self) -> Blob:
        """Write all bytes to the disk, then give them their name: a name that is there has all of its bytes, also after a crash."""
        with self._turn, self._blobs.translated():
            file = self._opened()
            file.flush()
            os.fsync(file.fileno())
            file.close()
            blob = Blob(self._digest.hexdigest(), self._size)
            with locked(self._blobs.lock, SHARED):
                path = self._blobs.adopt(self._path, blob.sha256, time.time_ns() // 1000)
            self._over = True
            sync(path.parent)
            return blob

    def discard(self) -> None:
        with self._turn:
            if self._over or self._file is None:
                self._over = True
                return
            self._over = True
            with contextlib.suppress(OSError):
                self._file.close()  # writes what it still has, which may be what did not fit
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _opened(self) -> BufferedWriter:
        if self._file is None:
            make(self._blobs.directory)
            descriptor, path = tempfile.mkstemp(prefix=DRAFT, dir=self._blobs.directory)  # mode 0600
            self._path = Path(path)
            self._file = os.fdopen(descriptor, "wb")
        return self._file


async def _pieces(content: AsyncIterator[bytes] | bytes) -> AsyncGenerator[bytes, None]:
    """Gather the content into pieces that are worth a trip to a thread."""
    if isinstance(content, bytes):
        yield content
        return
    gathered = bytearray()
    async for chunk in content:
        gathered += chunk
        if len(gathered) >= PIECE_BYTES:
            yield bytes(gathered)
            gathered.clear()
    yield bytes(gathered)
