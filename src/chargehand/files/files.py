"""Rows in the store that say whose the bytes on the disk are.

The bytes come first and the row after, so a row always has its bytes. A sweep removes bytes without a row once they are so old that
no row can still be on its way.
"""

import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from io import FileIO

from chargehand.engine.chores import Chore
from chargehand.engine.file import DropFiles, File, NewFile
from chargehand.engine.job import SECOND
from chargehand.engine.reads import FileFilter
from chargehand.engine.store import FileStore, OldFiles
from chargehand.errors import InvalidField
from chargehand.files.blobs import Blobs

MAX_BYTES = 1 << 30
MAX_NAME = 200
SWEEP_AGE_SECONDS = 3600.0  # far longer than it takes to write a row after its bytes

_MEDIA_TYPE = re.compile(r"[\x20-\x7e]{1,200}")


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
        """Store the bytes and the row. A file of a job replaces the one with the same name."""
        checked_name("name", name)
        if not _MEDIA_TYPE.fullmatch(media_type):
            raise InvalidField("media_type", "must have 1 to 200 printable ASCII characters")
        blob = await self._blobs.put(content, max_bytes)
        new = NewFile(self._new_id(), tenant, name, media_type, blob.size, blob.sha256, job_id, purpose)
        return await self.put(new)

    def read(self, file: File, start: int = 0, end: int | None = None) -> AsyncGenerator[bytes, None]:
        return self._blobs.read(file.sha256, start, file.size if end is None else end)

    async def open(self, file: File) -> FileIO:
        """Open the bytes for a caller that closes them."""
        return await self._blobs.open(file.sha256, file.size)

    async def drop(self, file_id: str, tenant: str | None = None) -> bool:
        """Remove the row. The bytes go with the next sweep, unless another row has them too."""
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
        """Remove bytes that no row refers to. Safe beside all writers, and on all nodes at once.

        A row is written only after its bytes; bytes whose row is still on its way are younger than the age. Bytes that are
        stored again count as new, and a lock on the directory keeps that and the removal apart.
        """
        before = self._now() - int(older_than_seconds * SECOND)
        return (await self._blobs.sweep(self._store.blobs_in_use, before)).blobs


def checked_name(field: str, name: str) -> str:
    """Return the name if it is safe in a path, in a header and on a screen."""
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise InvalidField(field, f"must have 1 to {MAX_NAME} printable characters")
    if "/" in name or "\\" in name or name in (".", ".."):
        raise InvalidField(field, "must be the name of a file: no slash, no backslash, not . or ..")
    return name
