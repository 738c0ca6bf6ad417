"""Choose the disk. The hints must match exactly one disk, and it must not be in use."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from provision.errors import Exit, Trouble
from provision.journal import say
from provision.layout import bytes_of
from provision.places import Places
from provision.run import CommandFailed, run

COLUMNS = "NAME,PATH,TYPE,SIZE,RM,RO,SERIAL,WWN,MODEL,VENDOR,ROTA,TRAN,LOG-SEC,FSTYPE,UUID,MOUNTPOINTS"
LATE = 20.0  # seconds to wait for a disk to appear
STEADY = 5.0  # seconds without any change of the disks
NAMES = {"serial", "wwn", "path"}  # hints that name a single disk

_SHARED = ("_raid_member", "mpath_member", "zfs_member")  # the disks of one array or pool have the same UUID
_TOLD = (*_SHARED, "LVM2_member", "crypto_LUKS")


class NoDisk(Trouble):
    pass


class Signature(NamedTuple):
    path: str
    kind: str
    uuid: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.path}"


@dataclass(frozen=True)
class Disk:
    path: str
    kind: str
    size: int
    removable: bool
    read_only: bool
    serial: str
    wwn: str
    model: str
    vendor: str
    rotational: bool
    transport: str
    used: tuple[str, ...]  # reasons why it cannot be used
    partitions: tuple[str, ...]
    sector: int = 512  # logical sector size
    signatures: tuple[Signature, ...] = ()  # of the disk and its partitions

    @property
    def legs(self) -> set[tuple[str, str]]:
        """The arrays or pools that it is a part of. Multiple paths to one disk have no UUID, but the same WWN."""
        found = [(each.kind, each.uuid or self.wwn) for each in self.signatures if each.kind.endswith(_SHARED)]
        return {leg for leg in found if leg[1]}

    @property
    def told(self) -> list[Signature]:
        """Signatures worth a log line before they are erased: an array, a volume group, a pool, an encrypted volume."""
        return [each for each in self.signatures if each.kind.endswith(_TOLD)]

    def __str__(self) -> str:
        named = ", ".join(each for each in (self.model, self.serial and f"serial {self.serial}", self.wwn) if each)
        return f"{self.path} ({self.size} bytes{', ' + named if named else ''})"


def list_disks() -> list[Disk]:
    return read_disks(run(["lsblk", "--json", "--bytes", "--output", COLUMNS]).output)


def look_at(path: str) -> Disk:
    [disk] = read_disks(run(["lsblk", "--json", "--bytes", "--nodeps", "--output", COLUMNS, path]).output)
    return disk


def settle() -> None:
    """Wait until udev has processed all events."""
    try:
        run(["udevadm", "settle", "--timeout=30"])
    except CommandFailed as error:
        say(f"goes on without: {error}")


def read_disks(text: str) -> list[Disk]:
    try:
        return [_disk(each) for each in json.loads(text)["blockdevices"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Trouble(f"what lsblk says cannot be read: {type(error).__name__}", Exit.DISK) from None


def find(
    wanted: str | Mapping[str, Any],
    places: Places,
    medium: str = "",
    seconds: float = LATE,
    see: Callable[[], list[Disk]] = list_disks,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    settle: Callable[[], None] = settle,
) -> Disk:
    """Wait for the disk and return it, or raise. Controllers report their disks one after another: so a missing disk is waited
    for, an ambiguous hint fails at once, and a single match counts only after no disk has appeared for a while."""
    named = is_named(wanted)
    if not named:
        settle()
    began = since = clock()
    before: list[Disk] | None = None
    while True:
        disks = see()
        if disks != before:
            before, since = disks, clock()
        try:
            disk = choose(disks, wanted, places, medium)
        except NoDisk as error:
            if clock() > began + seconds:
                raise
            say(f"waiting: {error}")
            sleep(2.0)
            continue
        if named or clock() - since >= STEADY:
            return disk
        if clock() > began + seconds + 6 * STEADY:
            raise Trouble("disks keep appearing and disappearing: the right one cannot be determined", Exit.DISK)
        sleep(1.0)


def is_named(wanted: str | Mapping[str, Any]) -> bool:
    return isinstance(wanted, str) or bool(NAMES & wanted.keys())


def choose(disks: Sequence[Disk], wanted: str | Mapping[str, Any], places: Places, medium: str = "") -> Disk:
    """Return the one matching disk, or raise. `medium`: the device with the task."""
    if isinstance(wanted, str):
        path = places.device(wanted)
        found = [disk for disk in disks if disk.path == path and disk.kind in ("disk", "loop")]
    else:
        found = [disk for disk in disks if disk.kind == "disk" and disk.size and _fits(disk, wanted, places)]
    if not found:
        seen = ", ".join(str(disk) for disk in disks if disk.kind == "disk") or "none at all"
        raise NoDisk(f"no disk fits {_shown(wanted)}; there are: {seen}", Exit.DISK)
    if len(found) > 1:
        raise Trouble(f"{_shown(wanted)} fits {len(found)} disks: {', '.join(map(str, found))}", Exit.DISK)
    disk = found[0]
    reasons = list(disk.used)
    if disk.removable:
        reasons.append("it is removable")
    if disk.read_only:
        reasons.append("it is read-only")
    if disk.path == medium:
        reasons.append("the task medium is in it")
    others = [each.path for each in disks if each.path != disk.path and each.legs & disk.legs]
    if others and not is_named(wanted):
        reasons.append(f"it belongs together with {', '.join(others)}: name it by path, serial or wwn to take it alone")
    if reasons:
        raise Trouble(f"{disk} is not touched: {'; '.join(reasons)}", Exit.DISK)
    return disk


def _fits(disk: Disk, hints: Mapping[str, Any], places: Places) -> bool:
    checks: dict[str, Callable[[Any], bool]] = {
        "serial": lambda value: _same(disk.serial, value),
        "wwn": lambda value: _wwn(disk.wwn) == _wwn(value),
        "path": lambda value: disk.path == places.device(value),
        "model": lambda value: _same(disk.model, value),
        "vendor": lambda value: _same(disk.vendor, value),
        "min_size": lambda value: disk.size >= bytes_of(value),
        "max_size": lambda value: disk.size <= bytes_of(value),
        "rotational": lambda value: disk.rotational is value,
        "transport": lambda value: disk.transport == value,
    }
    if not hints or not hints.keys() <= checks.keys():
        raise Trouble(f"hints that are not known: {', '.join(sorted(hints.keys() - checks.keys()))}", Exit.DISK)
    return all(checks[name](value) for name, value in hints.items())


def _same(one: str, other: str) -> bool:
    """Compare without case, and treat underscores as spaces, which udev replaces by them."""
    return (
        bool(one)
        and " ".join(one.replace("_", " ").split()).lower() == " ".join(other.replace("_", " ").split()).lower()
    )


def _wwn(text: str) -> str:
    return text.lower().removeprefix("0x").removeprefix("naa.").removeprefix("eui.").replace("-", "")


def _shown(wanted: str | Mapping[str, Any]) -> str:
    return wanted if isinstance(wanted, str) else ", ".join(f"{name} {value}" for name, value in sorted(wanted.items()))


def _disk(given: Mapping[str, Any]) -> Disk:
    return Disk(
        path=str(given.get("path") or f"/dev/{given['name']}"),
        kind=str(given["type"]),
        size=int(given["size"] or 0),
        removable=bool(given["rm"]),
        read_only=bool(given["ro"]),
        serial=_text(given, "serial"),
        wwn=_text(given, "wwn"),
        model=_text(given, "model"),
        vendor=_text(given, "vendor"),
        rotational=bool(given["rota"]),
        transport=_text(given, "tran") or _transport_of(str(given["name"])),
        used=tuple(_uses(given)),
        partitions=tuple(str(each["path"]) for each in given.get("children", ()) if each["type"] == "part"),
        sector=int(given.get("log-sec") or 512),
        signatures=tuple(_signatures(given)),
    )


def _signatures(given: Mapping[str, Any]) -> Iterator[Signature]:
    if kind := _text(given, "fstype"):
        yield Signature(str(given.get("path")), kind, _text(given, "uuid"))
    for child in given.get("children", ()):
        if child["type"] == "part":
            yield from _signatures(child)


def _uses(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a disk is in use: mounts and swap on it or its partitions, and RAID, LVM or encryption that hold it."""
    for mountpoint in given.get("mountpoints") or ():
        if mountpoint:
            yield f"{given.get('path')} is in use as {mountpoint}"
    if given.get("fstype") == "iso9660":
        yield f"{given.get('path')} holds an ISO 9660 medium, perhaps the one that was booted"
    for child in given.get("children", ()):
        if child["type"] != "part":
            yield f"{child.get('path')} ({child['type']}) holds {given.get('path')}"
        yield from _uses(child)


def _text(given: Mapping[str, Any], name: str) -> str:
    return str(given.get(name) or "").strip()


def _transport_of(name: str) -> str:
    """Return the transport that lsblk of util-linux 2.38 does not report for virtio disks."""
    return "virtio" if name.startswith("vd") else ""
