"""Keep files readable only for the server's own user, whatever the directory's mode and the umask at the start."""

import contextlib
import os
import stat
from collections.abc import Iterable
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def keep_files_private() -> None:
    """Let this process, and those it starts, create files with mode 0600 and directories with 0700 at most."""
    os.umask(OTHERS)


def close_to_others(paths: Iterable[Path]) -> None:
    """Remove other users' access to existing files. Files of another owner stay as they are: `doctor` reports them."""
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
    """Return the paths of the database and of the files that SQLite and we keep beside it."""
    return [path.with_name(path.name + suffix) for suffix in ("", "-wal", "-shm", "-journal", ".lock")]
