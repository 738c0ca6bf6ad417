"""Mounts that are always unmounted, in the reverse order.

Each step has its own mount namespace (`PrivateMounts=` of its unit), so the mounts of a killed step disappear with it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from provision.journal import say
from provision.layout import Partition, device_of, mounted
from provision.rooted import inside
from provision.run import CommandFailed, run

# Without /run: the target is mounted below it.
BOUND = ("dev", "proc", "sys")
MOST = 480.0  # seconds for an umount, which flushes; every unit's timeout is longer


@contextmanager
def mount(device: str, folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    run(["mount", *options, device, str(folder)])
    with taken_down(folder):
        # Later mounts in it must not appear in other namespaces: a copy there would keep it mounted and unflushed.
        run(["mount", "--make-private", str(folder)])
        yield folder


@contextmanager
def taken_down(folder: Path) -> Iterator[None]:
    """Unmount at the end, not lazily, because a lazy unmount would flush after the step was reported as done. If it fails, flush and
    let the step fail; a step that failed already keeps its own error."""
    try:
        yield
    except BaseException:
        try:
            unmount(folder)
        except CommandFailed as error:
            say(f"{folder} stays mounted: {error}")
        raise
    unmount(folder)


def unmount(folder: Path) -> None:
    try:
        run(["umount", "--recursive", str(folder)], timeout=MOST)
    except CommandFailed:
        os.sync()
        raise


@contextmanager
def system(disk: str, parts: Sequence[Partition], target: Path) -> Iterator[Path]:
    """Mount the partitions of the installed system, parents first, and yield its root."""
    with ExitStack() as stack:
        for part in mounted(parts):
            folder = target if part.mountpoint == "/" else inside(target, part.mountpoint)
            # FAT has no owners: without `quiet` files in /boot/efi of an image could not be unpacked there.
            options = ("-o", "quiet") if part.format == "vfat" else ()
            stack.enter_context(mount(device_of(disk, part.number), folder, *options))
        yield target


@contextmanager
def bound(target: Path) -> Iterator[Path]:
    """Bind the kernel's file systems into the target, as slaves, so that unmounting them there does not unmount ours."""
    with ExitStack() as stack:
        for name in BOUND:
            folder = inside(target, name)
            folder.mkdir(exist_ok=True)
            run(["mount", "--rbind", f"/{name}", str(folder)])
            stack.enter_context(taken_down(folder))
            run(["mount", "--make-rslave", str(folder)])
        udev = Path("/run/udev")
        if udev.is_dir():  # without it GRUB and LVM wait for udev
            folder = inside(target, "run/udev")
            folder.mkdir(parents=True, exist_ok=True)
            run(["mount", "--bind", str(udev), str(folder)])
            stack.enter_context(taken_down(folder))
        yield target
