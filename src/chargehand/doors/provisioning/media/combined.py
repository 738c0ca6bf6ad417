"""One medium for a BMC with a single CD drive: the maintenance image, followed by the job's task medium.

    maintenance image | zeros up to a sector | task medium | one sector that says where the task medium lies

The machine boots it as a maintenance image; what follows is not part of that image's file system. The combined medium is not
written to disk: the media server reads each range from the files that it is made of.
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
    """Made for each request: after the maintenance image was replaced, the ETag is another. Blocks."""
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
