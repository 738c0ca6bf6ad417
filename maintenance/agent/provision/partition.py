"""Create partitions and file systems. This step destroys data, so it checks the consent again; a second run changes nothing.

sfdisk reads the table from its standard input. `partx` informs the kernel, even one that cannot read GPT.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from provision.disks import Disk, find
from provision.errors import Exit, Trouble
from provision.journal import say
from provision.layout import (
    MIB,
    Partition,
    check_fits,
    check_linux_boots,
    check_windows_boots,
    device_of,
    read_layout,
)
from provision.places import Places
from provision.plan import Action, Command, Plan, WaitFor, command, execute
from provision.recipe import Recipe
from provision.run import run

STATE = "partition.json"
DISK = "disk.json"
TOLERANCE = MIB  # alignment may shorten the last partition by so much
MOST = 2400.0  # seconds for one mkfs; the unit's timeout is longer

_LABEL_LIMITS = {"vfat": 11, "ext4": 16, "xfs": 12, "btrfs": 255, "ntfs": 32, "swap": 15}
_MKFS: dict[str, tuple[tuple[str, ...], str]] = {
    "vfat": (("mkfs.vfat",), "-n"),
    "ext4": (("mkfs.ext4", "-F", "-q"), "-L"),
    "xfs": (("mkfs.xfs", "-f", "-q"), "-L"),
    "btrfs": (("mkfs.btrfs", "-f", "-q"), "-L"),
    "ntfs": (("mkfs.ntfs", "--fast", "--force", "--quiet"), "-L"),
    "swap": (("mkswap", "--force"), "-L"),
}


def partition(places: Places, recipe: Recipe) -> None:
    if recipe.get("wipe") is not True:
        raise Trouble("the recipe does not consent to wipe the disk", Exit.DISK)
    disk = find(recipe["target_disk"], places, _medium(places))
    say(f"the disk is {disk}")
    places.write(DISK, {"path": disk.path, "size": disk.size, "serial": disk.serial, "wwn": disk.wwn})
    raw = recipe.get("image_format") == "raw-disk"
    parts = () if raw else read_layout(recipe["partition_layout"])
    if not raw:
        check_fits(parts, disk.path, disk.size, disk.sector)
        check_boots(places, recipe, parts)
    name = fingerprint(disk, parts)
    if (places.read(STATE) or {}).get("plan") == name and (raw or table_fits(disk.path, parts)):
        say("the disk is as this recipe wants it already: nothing is done")
        return
    claim(disk)
    log_what_is_erased(disk)
    execute(plan(disk, parts))
    if not raw and not table_fits(disk.path, parts):
        raise Trouble(f"the partition table of {disk.path} is not what was asked for", Exit.DISK)
    places.write(STATE, {"plan": name})


def check_boots(places: Places, recipe: Recipe, parts: Sequence[Partition]) -> None:
    """Raise Trouble for a layout that cannot boot on this machine, before the disk is erased."""
    match recipe.get("task_target"):
        case "install-linux.target":
            check_linux_boots(parts, efi=places.efi.is_dir())
        case "install-windows.target":
            check_windows_boots(parts, efi=places.efi.is_dir())


def claim(disk: Disk) -> None:
    """Open the devices exclusively, which fails if the kernel uses them; `wipefs --force` does not check that."""
    for path in (*disk.partitions, disk.path):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC))
        except OSError as error:
            why = "the kernel says that it is in use" if error.errno == errno.EBUSY else error.strerror
            raise Trouble(f"{path} is not touched: {why}", Exit.DISK) from None


def log_what_is_erased(disk: Disk) -> None:
    for signature in disk.told:
        say(f"this is erased: {signature}")


def _medium(places: Places) -> str:
    return str((places.read("medium.json") or {}).get("device", ""))


def fingerprint(disk: Disk, parts: Sequence[Partition]) -> str:
    named = [disk.path, disk.size, disk.serial, disk.wwn, [vars(part) for part in parts]]
    return hashlib.sha256(json.dumps(named).encode()).hexdigest()


def plan(disk: Disk, parts: Sequence[Partition]) -> Plan:
    """Return the plan. It erases old signatures first, also in old partitions: an old RAID or LVM would claim the disk at the next boot."""
    actions: list[Action] = [command("wipefs", "--all", "--force", path) for path in (*disk.partitions, disk.path)]
    if not parts:  # an image of a whole disk contains its own partitions
        return actions
    actions += [
        Command(("sfdisk", "--wipe", "always", "--wipe-partitions", "always", disk.path), script(parts).encode()),
        *settle(disk.path, parts),
    ]
    for part in parts:
        device = device_of(disk.path, part.number)
        if part.format in _MKFS:
            actions.append(Command(mkfs(part, device), timeout=MOST))
        else:
            actions.append(command("wipefs", "--all", "--force", device))
    actions.append(command("udevadm", "settle", "--timeout=30", may_fail=True))
    return actions


def settle(disk: str, parts: Sequence[Partition]) -> list[Action]:
    return [
        command("partx", "--update", disk),
        command("udevadm", "settle", "--timeout=30", may_fail=True),
        *[WaitFor(device_of(disk, part.number)) for part in parts],
    ]


def script(parts: Sequence[Partition]) -> str:
    lines = ["label: gpt", ""]
    for part in parts:
        fields = [f"size={part.size // 1024}KiB"] if part.size is not None else []
        fields.append(f"type={part.type}")
        if part.label:
            fields.append(f'name="{part.label}"')
        if part.bootable:
            fields.append('attrs="LegacyBIOSBootable"')
        lines.append(", ".join(fields))
    return "\n".join(lines) + "\n"


def mkfs(part: Partition, device: str) -> tuple[str, ...]:
    argv, flag = _MKFS[part.format]
    label = part.label[: _LABEL_LIMITS[part.format]]
    if part.format == "vfat":
        label = label.upper()
        argv = (*argv, "-F", "32") if part.is_esp else argv
    return (*argv, flag, label, device) if label else (*argv, device)


def table_fits(disk: str, parts: Sequence[Partition]) -> bool:
    outcome = run(["sfdisk", "--json", disk], check=False)
    if outcome.code:
        return False
    try:
        return matches(json.loads(outcome.output)["partitiontable"], parts)
    except (ValueError, KeyError):
        return False


def matches(table: Mapping[str, Any], parts: Sequence[Partition]) -> bool:
    found = table.get("partitions", [])
    sector = int(table.get("sectorsize", 512))
    if table.get("label") != "gpt" or len(found) != len(parts):
        return False
    for have, part in zip(found, parts, strict=True):
        if str(have["type"]).upper() != part.type or have.get("name", "") != part.label:
            return False
        if part.size is not None and abs(int(have["size"]) * sector - part.size) > TOLERANCE:
            return False
    return True
