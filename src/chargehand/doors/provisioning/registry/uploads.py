"""Uploads: blobs that are not complete yet, each in a file that grows.

The size of its file is the progress of an upload, so it can be resumed after a restart and on another node. Each piece is written
under a lock of its own file, and only at the end of the file: if two clients send the same upload, one of them is refused. All
methods block: call them in a thread.
"""

import contextlib
import fcntl
import hashlib
import os
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from io import FileIO
from typing import NamedTuple, Protocol

from chargehand.doors.provisioning.registry.layout import UPLOADS, Layout, translated
from chargehand.doors.provisioning.registry.names import is_hex
from chargehand.doors.provisioning.registry.refusals import Code, RegistryRefused
from chargehand.files.disk import FULL, SHARED, listed, make, stamp, stamped_at, sync

PIECE_BYTES = 1 << 20
REMEMBERED = 256
LOCK_SECONDS = 1.0  # how long a request waits for another one at the same upload


class Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def hexdigest(self) -> str: ...


class Hashed(NamedTuple):
    """The hash of the first bytes of an upload. It stays valid, because a file only grows."""

    size: int
    hash: Hash


class Hashes:
    """Keeps hashes of uploads, so that a finished file need not be read again; a file without one is read."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[str, Hashed] = OrderedDict()
        self._turn = threading.Lock()

    def recall(self, upload: str) -> Hashed | None:
        with self._turn:
            return self._hashes.pop(upload, None)

    def remember(self, upload: str, hashed: Hashed) -> None:
        with self._turn:
            self._hashes[upload] = hashed
            if len(self._hashes) > REMEMBERED:
                self._hashes.popitem(last=False)


class BlobUploads:
    def __init__(self, layout: Layout, max_bytes: int, now: Callable[[], int], hashes: Hashes) -> None:
        self._layout = layout
        self._max_bytes = max_bytes
        self._now = now
        self._hashes = hashes

    @translated()
    def begin(self, name: str) -> str:
        upload = secrets.token_hex(16)
        path = self._layout.upload(name, upload)
        with self._layout.locked(SHARED):  # else a collection could remove the directory between the two lines
            make(path.parent)
            path.touch(mode=0o600, exist_ok=False)
            stamp(path, self._now())
        self._hashes.remember(upload, Hashed(0, hashlib.sha256()))
        return upload

    @translated()
    def size(self, name: str, upload: str) -> int:
        try:
            return self._layout.upload(name, _checked(upload)).stat().st_size
        except FileNotFoundError:
            raise _unknown() from None

    @translated()
    def append(self, name: str, upload: str, offset: int, data: bytes) -> int:
        """Append and return the new size. Remove the upload if it exceeds the limit or the disk is full."""
        with self._opened(name, upload) as file:
            size = os.fstat(file.fileno()).st_size
            if size != offset:
                raise out_of_order(name, upload, size)
            if size + len(data) > self._max_bytes:
                self._discard(name, upload)
                raise too_large(self._max_bytes)
            try:
                _write(file, offset, data)
            except OSError as error:
                if error.errno in FULL:
                    self._discard(name, upload)
                raise
            hashed = self._hashes.recall(upload)
            if hashed is not None and hashed.size == offset:
                hashed.hash.update(data)
                hashed = Hashed(offset + len(data), hashed.hash)
            if hashed is not None:
                self._hashes.remember(upload, hashed)
            stamp(self._layout.upload(name, upload), self._now())
            return offset + len(data)

    @translated()
    def finish(self, name: str, upload: str, digits: str) -> None:
        """Make the upload a durable blob of the repository; refuse and remove it if its digest differs."""
        with self._opened(name, upload) as file:
            if self._hash_all(file, upload) != digits:
                self._discard(name, upload)
                raise RegistryRefused(
                    400, Code.DIGEST_INVALID, "what arrived has another digest; the upload is discarded"
                )
            try:
                os.fsync(file.fileno())
            except OSError:
                self._discard(
                    name, upload
                )  # some file systems report a full disk only now; the content of the file is unknown then
                raise
            self._keep(name, upload, digits)

    def _keep(self, name: str, upload: str, digits: str) -> None:
        with self._layout.locked(SHARED):
            now = self._now()  # under the lock: a collection that began while we waited must find it newer
            blob = self._layout.blobs.adopt(self._layout.upload(name, upload), digits, now)
            link(self._layout, name, digits, now)
        sync(blob.parent)
        sync(self._layout.layer(name, digits).parent)

    @translated()
    def cancel(self, name: str, upload: str) -> None:
        with self._opened(name, upload):
            self._discard(name, upload)

    @translated()
    def expire(self, name: str, before: int) -> int:
        """Remove uploads to which nothing was added since then."""
        count = 0
        for entry in listed(self._layout.repository(name) / UPLOADS):
            with contextlib.suppress(RegistryRefused, FileNotFoundError):
                if stamped_at(entry.stat()) <= before:
                    with self._opened(name, entry.name) as file:
                        if stamped_at(os.fstat(file.fileno())) <= before:
                            self._discard(name, entry.name)
                            count += 1
        return count

    # ------------------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, name: str, upload: str) -> Iterator[FileIO]:
        path = self._layout.upload(name, _checked(upload))
        try:
            file = FileIO(path, "r+")
        except FileNotFoundError:
            raise _unknown() from None
        with file:
            _lock(file)
            # While we waited it may have become a blob, which must not change any more.
            if os.fstat(file.fileno()).st_nlink == 0 or not path.exists():
                raise _unknown()
            yield file

    def _discard(self, name: str, upload: str) -> None:
        self._hashes.recall(upload)
        self._layout.upload(name, upload).unlink(missing_ok=True)

    def _hash_all(self, file: FileIO, upload: str) -> str:
        hashed = self._hashes.recall(upload) or Hashed(0, hashlib.sha256())
        file.seek(hashed.size)
        while piece := file.read(PIECE_BYTES):
            hashed.hash.update(piece)
        return hashed.hash.hexdigest()


def link(layout: Layout, name: str, digits: str, now: int) -> None:
    """Record that the repository has the blob. The caller holds the lock and syncs the directory."""
    path = layout.layer(name, digits)
    make(path.parent)
    path.touch(mode=0o600)
    stamp(path, now)


def location(name: str, upload: str) -> str:
    return f"/v2/{name}/blobs/uploads/{upload}"


def range_of(size: int) -> str:
    """Return the progress of an upload in the form of the spec: up to its last byte, and `0-0` also for an empty one."""
    return f"0-{max(0, size - 1)}"


def out_of_order(name: str, upload: str, size: int) -> RegistryRefused:
    headers = {"location": location(name, upload), "range": range_of(size)}
    return RegistryRefused(416, Code.BLOB_UPLOAD_INVALID, f"the upload continues at byte {size}", headers=headers)


def too_large(max_bytes: int) -> RegistryRefused:
    return RegistryRefused(
        413,
        Code.SIZE_INVALID,
        f"the blob is over {max_bytes} bytes, the limit of provisioning.registry_max_blob_bytes",
    )


def _checked(upload: str) -> str:
    """Refuse an id that this server cannot have made."""
    if len(upload) != 32 or not is_hex(upload + upload):
        raise _unknown()
    return upload


def _unknown() -> RegistryRefused:
    return RegistryRefused(404, Code.BLOB_UPLOAD_UNKNOWN, "there is no such upload; begin a new one")


def _lock(file: FileIO) -> None:
    """Lock the file, or refuse after LOCK_SECONDS: finishing a large upload may hash for minutes, and no thread waits for that."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise RegistryRefused(
                    409, Code.BLOB_UPLOAD_INVALID, "another request is at work on this upload"
                ) from None
            time.sleep(0.005)


def _write(file: FileIO, offset: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(file.fileno(), rest, offset)
        rest, offset = rest[written:], offset + written
