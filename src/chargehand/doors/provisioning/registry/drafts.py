"""Small files of the registry that are written before its lock is taken and renamed under it."""

import contextlib
import os
import secrets
from pathlib import Path

from chargehand.files.disk import make, stamp, sync


class Drafts:
    """Writes files durably before the lock is taken, so that under it they only have to be renamed."""

    def __init__(self, directory: Path, now: int) -> None:
        self._directory = directory
        self._now = now
        self._waiting: set[Path] = set()
        self._changed: set[Path] = set()

    def __enter__(self) -> "Drafts":
        make(self._directory)
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._waiting:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def write(self, data: bytes) -> Path:
        path = self._directory / secrets.token_hex(16)
        self._waiting.add(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        stamp(path, self._now)
        return path

    def place(self, draft: Path, path: Path) -> None:
        make(path.parent)
        draft.rename(path)
        self._waiting.discard(draft)
        self._changed.add(path.parent)

    def sync(self) -> None:
        """Make the new names durable; called after the lock is released, and before the caller reports success."""
        for directory in self._changed:
            sync(directory)
        self._changed.clear()
