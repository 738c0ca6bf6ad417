"""What the registry does to its disk so that whatever was confirmed is there after a crash. All of it blocks: for threads."""

import contextlib
import errno
import fcntl
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from chargehand.errors import StoreFull, StoreUnavailable

SHARED = fcntl.LOCK_SH
ALONE = fcntl.LOCK_EX

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(f"the registry: {error.strerror}; free space on its disk", retry_after_seconds=5) from error
        raise StoreUnavailable(f"the registry: {error}; check its directory, the permissions and the disk") from error


@contextlib.contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Over all processes at the directory. Writers share it, for moments; the sweep has it alone, for one removal at a time."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def sync(directory: Path) -> None:
    """Makes the names in it durable. One that is gone was found empty by a sweep: what was placed there is deleted since."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make(directory: Path) -> None:
    if not directory.is_dir():
        make(directory.parent)
        directory.mkdir(mode=0o700, exist_ok=True)
        sync(directory.parent)


def stamp(path: Path, now: int) -> bool:
    """Makes a file count as new; False when there is none."""
    try:
        os.utime(path, ns=(now * 1000, now * 1000))
    except FileNotFoundError:
        return False
    return True


def stamped_at(stat: os.stat_result) -> int:
    return stat.st_mtime_ns // 1000


def listed(directory: Path) -> list[os.DirEntry[str]]:
    """What is in a directory; nothing where there is none."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


class Drafts:
    """Small files that are on the disk already when the lock is taken, and then only have to be renamed."""

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
        """After the lock: whoever is told of success is told after this."""
        for directory in self._changed:
            sync(directory)
        self._changed.clear()
