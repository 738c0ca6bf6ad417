"""Files that nobody but the server's own user may read, whatever the directory's mode and the umask it was started with."""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """From now on this process, and those it starts, make files of mode 0600 and directories of mode 0700 at most."""
    os.umask(OTHERS)


def close_to_others(paths: Iterable[Path]) -> None:
    """Take files that are there already away from everybody else. Those of another user stay: `doctor` names them."""
    for path in paths:
        with contextlib.suppress(OSError):
            mode = stat.S_IMODE(path.stat().st_mode)
            if mode & OTHERS:
                path.chmod(mode & ~OTHERS)


def is_open_to_others(path: Path) -> bool:
    try:
        found = path.stat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and bool(found.st_mode & OTHERS)


def sqlite_files(path: Path) -> list[Path]:
    """The database and what SQLite and we keep beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal", ".lock")]
