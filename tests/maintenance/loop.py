"""A loop device as a disk, for tests that really partition, format and mount."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.packages import missing

TOOLS = ("losetup", "sfdisk", "partx", "wipefs", "lsblk", "blkid", "mkfs.ext4", "mount", "umount", "debugfs")


def tool(*argv: str, given: str = "") -> str:
    done = subprocess.run(argv, input=given, capture_output=True, check=False, text=True)
    assert done.returncode == 0, (argv, done.stdout, done.stderr)
    return done.stdout


@contextmanager
def loop_disk(path: Path, size: int) -> Iterator[str]:
    """Yield the name of the device; fail the test if loop devices are not available."""
    if os.geteuid():
        pytest.fail("only root can attach loop devices")
    if lacking := missing(TOOLS):
        pytest.fail(lacking, pytrace=False)
    with path.open("wb") as file:
        file.truncate(size)
    attached = subprocess.run(["losetup", "--find", "--show", str(path)], capture_output=True, check=False, text=True)
    if attached.returncode:
        pytest.fail(f"no loop device can be had: {attached.stderr.strip()}")
    device = attached.stdout.strip()
    try:
        yield device
    finally:
        subprocess.run(["partx", "--delete", device], capture_output=True, check=False)
        subprocess.run(["losetup", "--detach", device], capture_output=True, check=False)


def under(folder: Path) -> list[str]:
    """Return what is mounted under the path."""
    with open("/proc/self/mountinfo") as file:
        return [line.split(" ")[4] for line in file if line.split(" ")[4].startswith(str(folder))]
