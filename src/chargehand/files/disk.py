"""Files on a disk that processes share, such that what a caller was told is there after a crash. All of it blocks: for threads."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from chargehand.errors import StoreFull, StoreUnavailable

SHARED = fcntl.LOCK_SH
ALONE = fcntl.LOCK_EX

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def translated(what: str) -> Iterator[None]:
    """Turn errors of the disk into errors of the store, about what lies there."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise StoreFull(f"{what}: {error.strerror}; free space on the disk", retry_after_seconds=5) from error
        raise StoreUnavailable(f"{what}: {error}; check the directory, its permissions and the disk") from error


@contextlib.contextmanager
def locked(path: Path, how: int) -> Iterator[None]:
    """Hold the lock over all processes at the directory. Writers share it, for moments; a sweep has it alone, for one removal."""
    make(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def sync(directory: Path) -> None:
    """Make the names in it durable. One that is gone was found empty by a sweep: what was placed there is deleted since."""
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
    """Make a file count as new; return False if there is none."""
    try:
        os.utime(path, ns=(now * 1000, now * 1000))
    except FileNotFoundError:
        return False
    return True


def stamped_at(stat: os.stat_result) -> int:
    return stat.st_mtime_ns // 1000


def listed(directory: Path) -> list[os.DirEntry[str]]:
    """Return what is in a directory; nothing if there is none."""
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def is_old(path: Path, before: int) -> bool:
    """Say if the file did not change since then. One that is gone is not old: somebody else has removed it."""
    try:
        return stamped_at(path.stat()) <= before
    except FileNotFoundError:
        return False


def remove_old(path: Path, before: int, lock: Path) -> bool:
    """Remove the file if it is old. Alone at the lock: between the look and the removal nobody may write it again."""
    if not is_old(path, before):
        return False
    with locked(lock, ALONE):
        if not is_old(path, before):
            return False
        path.unlink(missing_ok=True)
        return True
