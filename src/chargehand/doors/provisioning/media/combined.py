"""One medium for a BMC with a single CD drive: the maintenance image, and behind it the job's task medium.

    maintenance image | zeros up to a sector | task medium | one sector that says where the task medium lies

The machine boots it as the maintenance image that it is; what lies behind is not part of that file system. Nothing is
written to disk for it: whoever serves it takes each range from the files it is made of.
"""

import hashlib
import json
import os
from pathlib import Path

from chargehand.doors.provisioning.media.iso import Built, IsoError
from chargehand.doors.provisioning.media.iso_dates import SECTOR
from chargehand.doors.provisioning.media.source import MediaSource
from chargehand.doors.provisioning.taxonomy import Key

MAGIC = b"CHARGEHAND-TASK-1\n"


def combined(maintenance: Path, task: Built) -> MediaSource:
    """Made for each request: a maintenance image that was replaced meanwhile is another medium, with another ETag. Blocks."""
    try:
        found = os.stat(maintenance)
    except OSError as error:
        raise IsoError(
            f"the maintenance image {maintenance} cannot be read: {error.strerror}", Key.ISO_SERVE
        ) from error
    boot = found.st_size
    padding = -boot % SECTOR
    extent = {"offset": boot + padding, "length": task.size, "sha256": task.sha256}
    trailer = (MAGIC + json.dumps(extent).encode()).ljust(SECTOR, b"\0")
    sources = ((maintenance, boot), (bytes(padding), padding), (task.path, task.size), (trailer, SECTOR))
    identity = f"{found.st_ino} {boot} {found.st_mtime_ns} {task.sha256}"
    return MediaSource(
        sum(length for _, length in sources),
        f'"{hashlib.sha256(identity.encode()).hexdigest()[:32]}"',
        [(source, 0, length) for source, length in sources if length],
    )
