"""Checks that a schema cannot express: whether the partitions of a layout go together."""

from collections.abc import Iterator, Sequence
from typing import Any

from chargehand.doors.provisioning.recipe.text import pointer
from chargehand.doors.provisioning.refusals import RefusalDetail

REST = "100%"
MIB = 1 << 20
MAX_TOTAL = 1 << 50
MIN_ESP = (
    33 * MIB
)  # a FAT32 file system has at least 65525 clusters; with sectors of 4096 bytes the machine asks for more

_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ESP = {"ef00", "c12a7328-f81f-11d2-ba4b-00a0c93ec93b"}
_BIOS_BOOT = {"ef02", "21686148-6449-6e6f-744e-656564454649"}
_SWAP = {"8200", "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f"}
_ROOT_FORMATS = {"ext4", "xfs", "btrfs"}
_UNMOUNTABLE = {"swap", "raw", "none"}
_TAKEN = {"proc", "sys", "dev", "run"}  # filled by the kernel: whatever is mounted there disappears at boot
WINDOWS = "Windows"

Partition = dict[str, Any]


def bytes_of(size: str) -> int:
    number = size.removesuffix("iB")
    return int(number[:-1]) * _UNITS[number[-1]]


def fixed_bytes(layout: Sequence[Partition]) -> int:
    return sum(bytes_of(part["size"]) for part in layout if part["size"] != REST)


def layout_problems(layout: Sequence[Partition], target: str) -> Iterator[RefusalDetail]:
    for index, part in enumerate(layout):
        yield from _of_one(part, pointer("partition_layout", index), last=index == len(layout) - 1)
    yield from _twice(layout, "label")
    yield from _twice(layout, "mountpoint")
    if fixed_bytes(layout) > MAX_TOTAL:
        yield _conflict("/partition_layout", "the sizes add up to more than 1024T")
    if target == "install-linux.target":
        yield from _of_linux(layout)
    elif target == "install-windows.target":
        yield from _of_windows(layout)


def _of_one(part: Partition, at: str, *, last: bool) -> Iterator[RefusalDetail]:
    kind, made, size = part["type_guid"].lower(), part["format"], part["size"]
    if size == REST:
        if not last:
            yield _conflict(at + "/size", "100% takes all that is left, so only the last partition can have it")
    elif kind in _ESP and bytes_of(size) < MIN_ESP:
        yield _too_small(at, "an EFI system partition needs at least 33M")
    elif bytes_of(size) < MIB:
        yield _too_small(at, "a partition needs at least 1M")
    if kind in _ESP and made != "vfat":
        yield _conflict(at + "/format", "an EFI system partition must be vfat: firmware reads nothing else")
    if kind in _BIOS_BOOT and made not in ("raw", "none"):
        yield _conflict(at + "/format", "a BIOS boot partition holds no file system: use none")
    if (kind in _SWAP) != (made == "swap"):
        yield _conflict(at + "/format", "format swap and type_guid 8200 belong together")
    mountpoint = part.get("mountpoint")
    if mountpoint is None:
        return
    if made in _UNMOUNTABLE or kind in _BIOS_BOOT:
        yield _conflict(at + "/mountpoint", f"a partition with format {made} cannot be mounted: leave it out")
    if mountpoint.split("/")[1] in _TAKEN:
        yield _conflict(at + "/mountpoint", "the kernel fills /proc, /sys, /dev and /run: mount it elsewhere")


def _of_linux(layout: Sequence[Partition]) -> Iterator[RefusalDetail]:
    kinds = {part["type_guid"].lower() for part in layout}
    if not kinds & (_ESP | _BIOS_BOOT):
        message = (
            "nothing to boot from: add an EFI system partition (ef00, vfat), a BIOS boot partition (ef02), or both"
        )
        yield _conflict("/partition_layout", message)
    roots = [index for index, part in enumerate(layout) if part.get("mountpoint") == "/"]
    if not roots:
        yield _conflict("/partition_layout", 'no partition has mountpoint "/", where the image is unpacked')
    for index in roots:
        if layout[index]["format"] not in _ROOT_FORMATS:
            yield _conflict(pointer("partition_layout", index, "format"), '"/" must be ext4, xfs or btrfs')


def _of_windows(layout: Sequence[Partition]) -> Iterator[RefusalDetail]:
    if not {part["type_guid"].lower() for part in layout} & _ESP:
        yield _conflict("/partition_layout", "nothing to boot from: add an EFI system partition (ef00, vfat)")
    systems = [part for part in layout if part["format"] == "ntfs"]
    if not systems:
        yield _conflict("/partition_layout", "no partition has format ntfs, where Windows is installed")
    elif len(systems) > 1 and sum(part.get("label") == WINDOWS for part in systems) != 1:
        message = "several partitions have format ntfs: give the one for Windows the label Windows"
        yield _conflict("/partition_layout", message)
    for index, part in enumerate(layout):
        if "mountpoint" in part:
            yield _conflict(
                pointer("partition_layout", index, "mountpoint"), "Windows has no mountpoints: leave it out"
            )


def _twice(layout: Sequence[Partition], member: str) -> Iterator[RefusalDetail]:
    first: dict[str, int] = {}
    for index, part in enumerate(layout):
        if member not in part:
            continue
        # Labels are compared without case, as udev and Windows do.
        value = part[member].lower() if member == "label" else part[member]
        if value in first:
            message = f"partition {first[value]} has the same {member}; each must be unique"
            yield _conflict(pointer("partition_layout", index, member), message)
        first.setdefault(value, index)


def _too_small(at: str, message: str) -> RefusalDetail:
    return RefusalDetail(at + "/size", "too_small", message)


def _conflict(at: str, message: str) -> RefusalDetail:
    return RefusalDetail(at, "conflict", message)
