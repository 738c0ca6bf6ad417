"""The directory whose files a program adds to its result."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chargehand.client import Fail, Held

MAX_FILES = 99  # a result has at most 100, and stdout may be one
MAX_BYTES = 64 << 20  # of all files, for the worker's memory; what a server takes is up to its server.max_body_bytes


@contextmanager
def files_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="chargehand-files-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def attach_all(folder: Path, task: Held) -> None:
    """Attach the files in the folder, in the order of their names. Fail: there is something that cannot be attached."""
    names = sorted(os.listdir(folder))
    if len(names) > MAX_FILES:
        raise Fail(f"$CHARGEHAND_FILES has {len(names)} files; at most {MAX_FILES} can go with a result")
    left = MAX_BYTES
    for name in names:
        content = _content(folder / name, left)
        left -= len(content)
        task.attach(name, content)


def _content(path: Path, left: int) -> bytes:
    # Never through a link, nor waiting for the other end of a pipe: the program may not read what its worker may.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Fail(f"$CHARGEHAND_FILES: {path.name!r} cannot be read: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Fail(f"$CHARGEHAND_FILES: {path.name!r} is no regular file; directories and links cannot be attached")
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(left + 1)
    finally:
        os.close(descriptor)
    if len(content) > left:
        raise Fail(
            f"$CHARGEHAND_FILES: more than {MAX_BYTES} bytes, at {path.name!r}; at most so many go with a result"
        )
    return content
