"""Files: bytes on disk under their SHA-256 (`Blobs`), and rows in the store that say whose they are (`Files`).

The bytes come first and the row after, so a row always has its bytes; bytes that no row refers to are swept away when they are
old enough that no row can still be on its way. All work on the disk is done in threads.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path
from typing import NamedTuple, cast

from chargehand.engine.file import DropFiles, File, NewFile
from chargehand.engine.job import SECOND
from chargehand.engine.reads import FileFilter
from chargehand.engine.store import FileStore, OldFiles
from chargehand.engine.upkeep import Chore
from chargehand.errors import InvalidField, NotFound, StoreCorrupt, StoreFull, StoreUnavailable, TooLarge

PIECE_BYTES = 256 << 10  # what goes to the disk, or comes from it, in one trip to a thread
MAX_BYTES = 1 << 30
MAX_NAME = 200
SWEEP_BATCH = 500
SWEEP_AGE_SECONDS = 3600.0  # far longer than it takes to write a row after its bytes
DRAFT = "draft-"  # how the names of temporary files begin
LOCK = "lock"

_SHA256 = re.compile(r"[0-9a-f]{64}")
_MEDIA_TYPE = re.compile(r"[\x20-\x7e]{1,200}")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

InUse = Callable[[list[str]], Awaitable[set[str]]]


class Blob(NamedTuple):
    sha256: str
    size: int


class Blobs:
    """Bytes in a directory, each under its hash: what is stored twice lies there once. Nodes may share the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, sha256: str) -> Path:
        if not _SHA256.fullmatch(sha256):
            raise NotFound(f"{sha256[:80]!r} is not the SHA-256 of anything")
        return self._directory / sha256

    async def put(self, content: AsyncIterator[bytes] | bytes, max_bytes: int) -> Blob:
        """Durable when it returns. What is too large, or does not fit on the disk, leaves nothing behind."""
        draft = Draft(self._directory, max_bytes)
        try:
            async with contextlib.aclosing(_pieces(content)) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(draft.write, piece)
            return await asyncio.to_thread(draft.keep)
        except BaseException:
            await asyncio.to_thread(draft.discard)
            raise

    async def read(self, sha256: str, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        """From `start` up to, not including, `end`; None: to the last byte."""
        file, size = await asyncio.to_thread(_open, self.path(sha256), start)
        try:
            left = (size if end is None else end) - start
            while left > 0:
                with _translated():
                    piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, left))
                if not piece:
                    raise StoreCorrupt(f"the content {sha256} is shorter on disk than it was")
                left -= len(piece)
                yield piece
        finally:
            # In a thread: where a read that nobody waits for any more holds the file, closing waits for it.
            await asyncio.to_thread(file.close)

    async def open(self, sha256: str, size: int) -> FileIO:
        """Open what has so many bytes, for a caller that closes it."""
        file, found = await asyncio.to_thread(_open, self.path(sha256), 0)
        if found < size:
            file.close()
            raise StoreCorrupt(f"the content {sha256} is shorter on disk than it was")
        return cast(FileIO, file.detach())

    async def sweep(self, in_use: InUse, older_than_seconds: float, now: int) -> int:
        """Removes blobs that nobody refers to, and what writers that died left behind. The age is what protects a blob
        whose row is still on its way; one that is put again counts as new.
        """
        before = now - int(older_than_seconds * SECOND)
        count, nothing = 0, list[str]()
        batches = _old(self._directory, before)
        while names := await asyncio.to_thread(next, batches, nothing):
            used = await in_use([name for name in names if not name.startswith(DRAFT)])
            unused = [name for name in names if name not in used]
            count += await asyncio.to_thread(self._remove, unused, before)
        return count

    def _remove(self, names: Sequence[str], before: int) -> int:
        count = 0
        for name in names:
            path = self._directory / name
            # Alone at the directory: between the look and the removal nobody may put the same bytes again.
            with _translated(), _locked(self._directory, fcntl.LOCK_EX), contextlib.suppress(FileNotFoundError):
                if _changed_at(path.stat()) <= before:
                    path.unlink()
                    count += 1
        return count


class Draft:
    """A temporary file that becomes a blob, or nothing. Everything here blocks and belongs into a thread.

    A caller that is cancelled leaves its thread behind in the middle of a call; the lock makes `discard` wait for it.
    """

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._size = 0
        self._file: BufferedWriter | None = None
        self._path = Path()
        self._over = False
        self._turn = threading.Lock()

    def write(self, data: bytes) -> None:
        with self._turn, _translated():
            if self._over:
                return
            self._size += len(data)
            if self._size > self._max_bytes:
                raise TooLarge(f"the file is over {self._max_bytes} bytes, the most that is accepted")
            self._digest.update(data)
            self._opened().write(data)

    def keep(self) -> Blob:
        """On disk first, under its name then: whoever finds a name finds all of the bytes, whatever happens to the machine."""
        with self._turn, _translated():
            file = self._opened()
            file.flush()
            os.fsync(file.fileno())
            file.close()
            blob = Blob(self._digest.hexdigest(), self._size)
            with _locked(self._directory, fcntl.LOCK_SH):
                # Also over one that is there already: the same bytes, but new, so that no sweep takes them now.
                os.utime(self._path)
                self._path.rename(self._directory / blob.sha256)
            self._over = True
            _sync(self._directory)
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
            _make(self._directory)
            descriptor, path = tempfile.mkstemp(prefix=DRAFT, dir=self._directory)  # mode 0600
            self._path = Path(path)
            self._file = os.fdopen(descriptor, "wb")
        return self._file


class Files:
    """Named bytes of tenants and of jobs."""

    def __init__(
        self,
        store: FileStore,
        blobs: Blobs,
        new_id: Callable[[], str],
        now: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._store = store
        self._blobs = blobs
        self._new_id = new_id
        self._now = now

    async def save(
        self,
        tenant: str,
        name: str,
        media_type: str,
        content: AsyncIterator[bytes] | bytes,
        *,
        job_id: str | None = None,
        purpose: str = "",
        max_bytes: int = MAX_BYTES,
    ) -> File:
        """A file of a job takes the place of the one that had its name."""
        checked_name("name", name)
        if not _MEDIA_TYPE.fullmatch(media_type):
            raise InvalidField("media_type", "must have 1 to 200 printable ASCII characters")
        blob = await self._blobs.put(content, max_bytes)
        new = NewFile(self._new_id(), tenant, name, media_type, blob.size, blob.sha256, job_id, purpose)
        return await self.put(new)

    def read(self, file: File, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        return self._blobs.read(file.sha256, start, file.size if end is None else end)

    async def open(self, file: File) -> FileIO:
        """For a caller that closes it."""
        return await self._blobs.open(file.sha256, file.size)

    async def drop(self, file_id: str, tenant: str | None = None) -> bool:
        """The row; the bytes go with the next sweep, unless somebody else has the same."""
        return await self._store.write(DropFiles((file_id,), tenant)) == 1

    async def put(self, new: NewFile) -> File:
        """Add a row for bytes that are stored already."""
        return await self._store.write(new)

    async def get(self, file_id: str, tenant: str | None = None) -> File | None:
        found = await self._store.list_files(FileFilter(tenant, file_id))
        return found[0] if found else None

    async def of_job(self, job_id: str, name: str) -> File | None:
        found = await self._store.list_files(FileFilter(job_id=job_id, name=name))
        return found[0] if found else None

    async def list_of_job(self, job_id: str) -> list[File]:
        return await self._store.list_files(FileFilter(job_id=job_id))

    async def list_uploaded(self, tenant: str, purpose: str | None, before: str | None, limit: int) -> list[File]:
        """Files with a purpose, newest first."""
        return await self._store.list_files(FileFilter(tenant, purpose=purpose, before=before, limit=limit))

    async def prune(self, age_seconds: float, limit: int) -> int:
        """Remove the rows of files that are too old and belong to no job; return how many."""
        return await self._store.prune(OldFiles(age_seconds), limit)

    def chores(self, every_seconds: float) -> list[Chore]:
        return [Chore("orphaned files", every_seconds, self.sweep)]

    async def sweep(self, older_than_seconds: float = SWEEP_AGE_SECONDS) -> int:
        """Removes bytes that no row refers to. Safe beside all writers, and on all nodes at once.

        A row is written only after its bytes; bytes whose row is still on its way are younger than the age. Bytes that are
        stored again count as new, and a lock on the directory keeps that and the removal apart.
        """
        return await self._blobs.sweep(self._store.blobs_in_use, older_than_seconds, self._now())


def checked_name(field: str, name: str) -> str:
    """A name that is safe in a path, in a header and on a screen."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidField(field, f"must have 1 to {MAX_NAME} printable characters")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise InvalidField(field, "must be the name of a file: no slash, no backslash, not . or ..")
    return name


async def _pieces(content: AsyncIterator[bytes] | bytes) -> AsyncGenerator[bytes, None]:
    """Gathered into pieces that are worth a trip to a thread."""
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


# on the disk, in a thread -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise StoreFull(f"files: {error.strerror}; free space on their disk", retry_after_seconds=5) from None
        raise StoreUnavailable(f"files: {error}; check the directory, its permissions and the disk") from None


@contextlib.contextmanager
def _locked(directory: Path, how: int) -> Iterator[None]:
    """Over all processes at the directory. Writers share it; a sweep has it alone, for one removal at a time."""
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make(directory: Path) -> None:
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        _sync(directory.parent)


def _open(path: Path, start: int) -> tuple[BufferedReader, int]:
    with _translated():
        try:
            file = path.open("rb")
        except FileNotFoundError:
            raise NotFound(f"there is no content {path.name}") from None
        file.seek(start)
        return file, os.fstat(file.fileno()).st_size


def _old(directory: Path, before: int) -> Iterator[list[str]]:
    """The names of drafts and blobs that did not change since then, some at a time. What is not ours is left alone."""
    with _translated(), contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        names: list[str] = []
        for entry in entries:
            if entry.name.startswith(DRAFT) or _SHA256.fullmatch(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    if _changed_at(entry.stat()) <= before:
                        names.append(entry.name)
            if len(names) == SWEEP_BATCH:
                yield names
                names = []
        yield names


def _changed_at(stat: os.stat_result) -> int:
    return stat.st_mtime_ns // 1000
