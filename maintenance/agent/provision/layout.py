"""The partitions of a recipe as values: sizes in bytes, types as GUIDs, device names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from provision.errors import Exit, Trouble

MIB = 1 << 20
REST = "100%"

ESP = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
BIOS_BOOT = "21686148-6449-6E6F-744E-656564454649"
LINUX_ROOT = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
TYPES = {
    "ef00": ESP,
    "ef02": BIOS_BOOT,
    "8300": "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
    "8302": "933AC7E1-2EB4-4F13-B844-0E14E2AEF915",
    "8304": LINUX_ROOT,
    "8200": "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F",
    "0700": "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7",
    "0c01": "E3C9E316-0B5C-4DB8-817D-F92DF00215AE",
    "2700": "DE94BBA4-06D1-4D40-A16A-BFD50179D6AC",
}
CIDATA = "cidata"
WINDOWS = "Windows"
EFI_FOLDER = "/boot/efi"

# FAT32 has at least 65525 clusters, and a cluster at least one sector.
_MIN_ESP = {512: 33 * MIB, 4096: 260 * MIB}
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_ENDS = 2 * MIB  # space for the GPT at both ends of a disk, and for the alignment of the first partition


@dataclass(frozen=True)
class Partition:
    number: int
    size: int | None  # None: the rest of the disk
    type: str
    format: str
    label: str
    mountpoint: str
    bootable: bool

    @property
    def is_esp(self) -> bool:
        return self.type == ESP


def bytes_of(size: str) -> int:
    number = size.removesuffix("iB")
    return int(number[:-1]) * _UNITS[number[-1]]


def read_layout(layout: Sequence[Mapping[str, Any]]) -> tuple[Partition, ...]:
    """Read the layout of a valid recipe. Rules that a schema cannot express are checked again here, before the disk is erased."""
    parts = tuple(_partition(number, each) for number, each in enumerate(layout, 1))
    if not parts:
        raise Trouble("the layout has no partitions", Exit.DISK)
    if any(part.size is None for part in parts[:-1]):
        raise Trouble("only the last partition can take 100%", Exit.DISK)
    for member in ("label", "mountpoint"):
        given = [getattr(part, member).lower() for part in parts if getattr(part, member)]
        if len(given) != len(set(given)):
            raise Trouble(f"two partitions have the same {member}", Exit.DISK)
    return parts


def _partition(number: int, given: Mapping[str, Any]) -> Partition:
    kind = str(given["type_guid"])
    guid = TYPES.get(kind.lower(), kind.upper())
    mountpoint = given.get("mountpoint", EFI_FOLDER if guid == ESP else "")
    return Partition(
        number,
        None if given["size"] == REST else bytes_of(given["size"]),
        guid,
        given["format"],
        given.get("label", ""),
        mountpoint,
        bool(given.get("bootable", False)),
    )


def check_fits(parts: Sequence[Partition], disk: str, size: int, sector: int = 512) -> None:
    needed = sum(part.size or MIB for part in parts) + _ENDS
    if needed > size:
        raise Trouble(f"the partitions need {needed} bytes and {disk} has {size}", Exit.DISK)
    left = size - _ENDS - sum(part.size or 0 for part in parts)
    least = _MIN_ESP[4096 if sector >= 4096 else 512]
    if any(part.is_esp and (part.size or left) < least for part in parts):
        raise Trouble(
            f"on {disk}, with sectors of {sector} bytes, an EFI system partition needs at least {least // MIB}M",
            Exit.DISK,
        )


def check_linux_boots(parts: Sequence[Partition], *, efi: bool) -> None:
    if efi and esp_of(parts) is None:
        raise Trouble("this machine booted by UEFI and the layout has no EFI system partition (ef00)", Exit.DISK)
    if not efi and all(part.type != BIOS_BOOT for part in parts):
        raise Trouble("this machine booted by BIOS and the layout has no BIOS boot partition (ef02)", Exit.DISK)


def check_windows_boots(parts: Sequence[Partition], *, efi: bool) -> None:
    if not efi:
        raise Trouble(
            "this machine booted by BIOS and Windows is installed for UEFI only: switch its firmware", Exit.DISK
        )
    if esp_of(parts) is None:
        raise Trouble("the layout has no EFI system partition (ef00)", Exit.DISK)


def device_of(disk: str, number: int) -> str:
    """Return a partition's device name; a disk's name that ends in a digit gets a p before the number."""
    return f"{disk}{'p' if disk[-1].isdigit() else ''}{number}"


def mounted(parts: Sequence[Partition]) -> list[Partition]:
    """Return the mounted partitions of a Linux system, parents before their children."""
    found = [part for part in parts if part.mountpoint and part.format not in ("swap", "raw", "none")]
    return sorted(found, key=lambda part: (part.mountpoint.rstrip("/").count("/"), part.mountpoint))


def root_of(parts: Sequence[Partition]) -> Partition:
    for part in parts:
        if part.mountpoint == "/":
            return part
    raise Trouble('no partition has mountpoint "/"', Exit.DISK)


def windows_of(parts: Sequence[Partition]) -> Partition:
    found = [part for part in parts if part.format == "ntfs"]
    if len(found) > 1:
        found = [part for part in found if part.label == WINDOWS]
    if len(found) != 1:
        raise Trouble("which ntfs partition is for Windows is not clear: give it the label Windows", Exit.DISK)
    return found[0]


def esp_of(parts: Sequence[Partition]) -> Partition | None:
    return next((part for part in parts if part.is_esp), None)


def cidata_of(parts: Sequence[Partition]) -> Partition | None:
    return next((part for part in parts if part.label.lower() == CIDATA), None)
