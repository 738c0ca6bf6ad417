"""The task medium: a small ISO 9660 image with Rock Ridge and Joliet that tells a machine what to do.

Identical content gives identical bytes, so a BMC that asks again after a restart of the controller gets the same medium.
Everything here blocks: call it in a thread. Several threads may build at the same time.
"""

import contextlib
import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from pycdlib import PyCdlib
from pycdlib.pycdlibexception import PyCdlibException

from chargehand.doors.provisioning.media.iso_dates import stamp
from chargehand.doors.provisioning.taxonomy import Key
from chargehand.files.disk import sync

LABEL = "TASK"  # the maintenance system finds the medium by it
MAX_BYTES = 10 << 20
MAX_FILES = 64
EARLIEST = 315532800  # 1980: every file system can store it
LATEST = 4102444800  # 2100

# Joliet's limit is 64 characters. No dot at the end, because some readers of Joliet cut it off.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9_-])?")
_LABEL = re.compile(r"[A-Z0-9_]{1,16}")  # Joliet's limit is 16 characters
_FILE_MODE = 0o100444


class IsoError(Exception):
    """A medium cannot be built, or its file cannot be read."""

    def __init__(self, message: str, key: Key = Key.ISO_BUILD) -> None:
        super().__init__(message)
        self.key = key


class Built(NamedTuple):
    path: Path
    size: int
    sha256: str


def build_task_iso(path: Path, files: Mapping[str, bytes], *, label: str = LABEL, epoch: int) -> Built:
    """Write the image durably and atomically. All dates in it are `epoch`."""
    _check(files, label, epoch)
    image = bytearray(_mastered(files, label))
    if len(image) > MAX_BYTES:
        raise IsoError(f"the task medium has {len(image)} bytes; at most {MAX_BYTES} are allowed")
    stamp(image, epoch)
    _write(path, image)
    return Built(path, len(image), hashlib.sha256(image).hexdigest())


def _check(files: Mapping[str, bytes], label: str, epoch: int) -> None:
    if not _LABEL.fullmatch(label):
        raise IsoError(f"{label[:60]!a} is not a label: it must have 1 to 16 capital letters, digits and underscores")
    if not EARLIEST <= epoch < LATEST:
        raise IsoError(f"the date {epoch} is not between 1980 and 2100")
    if not 1 <= len(files) <= MAX_FILES:
        raise IsoError(f"{len(files)} files; there must be 1 to {MAX_FILES}")
    for name in files:
        if not _NAME.fullmatch(name):
            raise IsoError(
                f"{name[:60]!a} is not a valid file name on the task medium: it must have "
                "1 to 64 lower-case letters, digits, dots, hyphens and underscores, "
                "begin with a letter or a digit, and not end with a dot"
            )
    size = sum(map(len, files.values()))
    if size > MAX_BYTES:
        raise IsoError(f"the files have {size} bytes; at most {MAX_BYTES} are allowed")


def _mastered(files: Mapping[str, bytes], label: str) -> bytes:
    image = BytesIO()
    iso = PyCdlib()
    try:
        # Interchange level 3 allows names of 31 characters without Rock Ridge. Most readers know Rock Ridge 1.09.
        iso.new(interchange_level=3, vol_ident=label, app_ident_str="CHARGEHAND", joliet=3, rock_ridge="1.09")
        for (name, content), plain in zip(sorted(files.items()), _plain_names(sorted(files)), strict=True):
            iso.add_fp(
                BytesIO(content),
                len(content),
                iso_path=f"/{plain}",
                rr_name=name,
                joliet_path=f"/{name}",
                file_mode=_FILE_MODE,
            )
        iso.write_fp(image)
        iso.close()
    except PyCdlibException as error:
        raise IsoError(f"the task medium could not be built: {error}") from error
    return image.getvalue()


def _plain_names(names: list[str]) -> Iterator[str]:
    """Names for readers that know neither extension: capital letters, digits and underscores, one dot, none twice."""
    taken: set[str] = set()
    for name in names:
        stem, _, suffix = name.upper().rpartition(".")
        if not stem or not re.fullmatch(r"[A-Z0-9_]{1,4}", suffix):
            stem, suffix = name.upper(), ""
        stem = re.sub(r"[^A-Z0-9_]", "_", stem)[:20]
        plain, count = f"{stem}.{suffix}", 0
        while plain in taken:
            count += 1
            plain = f"{stem}_{count}.{suffix}"
        taken.add(plain)
        yield f"{plain};1"


def _write(path: Path, image: bytes | bytearray) -> None:
    draft = None
    try:
        # Readable for this user only: the medium holds the job's token and what the recipe hides.
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        with os.fdopen(handle, "wb") as file:
            file.write(image)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        draft = None
        sync(path.parent)
    except OSError as error:
        raise IsoError(f"the task medium could not be written to {path.parent}: {error.strerror or error}") from error
    finally:
        if draft is not None:
            with contextlib.suppress(OSError):
                os.unlink(draft)
