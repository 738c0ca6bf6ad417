"""/etc/fstab from the layout: by UUID, because device names change between boots."""

from collections.abc import Callable, Sequence

from provision.errors import Exit, Trouble
from provision.layout import Partition, mounted

HEADER = "# written when this machine was provisioned\n"

_OPTIONS = {
    "vfat": "umask=0077",
    "ext4": "errors=remount-ro",
    "xfs": "defaults",
    "btrfs": "defaults",
    "ntfs": "defaults",
}


def fstab(parts: Sequence[Partition], uuid_of: Callable[[Partition], str]) -> str:
    lines = []
    for part in mounted(parts):
        options = "defaults" if part.format == "ext4" and part.mountpoint != "/" else _OPTIONS[part.format]
        checked = 0 if part.format in ("xfs", "btrfs", "ntfs") else 1 if part.mountpoint == "/" else 2
        lines.append((_uuid(part, uuid_of), part.mountpoint, part.format, options, f"0 {checked}"))
    lines += [(_uuid(part, uuid_of), "none", "swap", "sw", "0 0") for part in parts if part.format == "swap"]
    return HEADER + "".join("\t".join(line) + "\n" for line in lines)


def _uuid(part: Partition, uuid_of: Callable[[Partition], str]) -> str:
    found = uuid_of(part)
    if not found:
        raise Trouble(f"partition {part.number} ({part.format}) has no UUID: it holds no file system", Exit.DISK)
    return f"UUID={found}"
