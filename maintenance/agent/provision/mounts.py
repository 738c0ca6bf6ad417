"""Mounts that are taken down again, whatever happens, in the reverse order.

Each step has a mount name space of its own (`PrivateMounts=` of its unit), so what one that was killed left is gone with it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from provision.journal import say
from provision.layout import Partition, device_of, mounted
from provision.rooted import inside
from provision.run import CommandFailed, run

# /run is not among them: the target is mounted below it.
BOUND = ("dev", "proc", "sys")
MOST = 480.0  # of an umount, which writes what is not written; every unit has more


@contextmanager
def mount(device: str, folder: Path, *options: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    run(["mount", *options, device, str(folder)])
    with taken_down(folder):
        # What is mounted in it later must not show up in other name spaces: a copy there would keep it mounted, and not written.
        run(["mount", "--make-private", str(folder)])
        yield folder


@contextmanager
def taken_down(folder: Path) -> Iterator[None]:
    """Not lazily: what is not written yet would be written after the step was called done. What cannot be taken down is written,
    and the step has failed; one that failed already has its own reason."""
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
    """The tree of what is installed, its partitions mounted parents first."""
    with ExitStack() as stack:
        for part in mounted(parts):
            folder = target if part.mountpoint == "/" else inside(target, part.mountpoint)
            # FAT has no owners: without `quiet` an image with files in /boot/efi could not be unpacked there.
            options = ("-o", "quiet") if part.format == "vfat" else ()
            stack.enter_context(mount(device_of(disk, part.number), folder, *options))
        yield target


@contextmanager
def bound(target: Path) -> Iterator[Path]:
    """With the kernel's own trees in it, as slaves: nothing that is unmounted in there is unmounted out here."""
    with ExitStack() as stack:
        for name in BOUND:
            folder = inside(target, name)
            folder.mkdir(exist_ok=True)
            run(["mount", "--rbind", f"/{name}", str(folder)])
            stack.enter_context(taken_down(folder))
            run(["mount", "--make-rslave", str(folder)])
        udev = Path("/run/udev")
        if udev.is_dir():  # without it GRUB and LVM wait for a udev that they cannot see
            folder = inside(target, "run/udev")
            folder.mkdir(parents=True, exist_ok=True)
            run(["mount", "--bind", str(udev), str(folder)])
            stack.enter_context(taken_down(folder))
        yield target
