"""Install Windows from a .wim: wimlib applies it to the unmounted NTFS volume, which preserves all attributes; then make it bootable.

A .wim needs random access, so it cannot be streamed, and it does not fit into memory. So it is stored at the end of the target
partition: the volume is created smaller at first, and grows over that space when the .wim is no longer needed.
"""

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision import bcd
from provision.disks import look_at
from provision.errors import Exit, Trouble
from provision.image import STAMP, Moved, chosen, found, uuid_of, write_raw
from provision.journal import say
from provision.layout import MIB, Partition, check_windows_boots, device_of, read_layout, windows_of
from provision.mounts import mount
from provision.oci import Blob, stream
from provision.partition import mkfs
from provision.places import Places
from provision.plan import Plan, WriteFile, command, execute
from provision.recipe import Recipe
from provision.run import run

ROOM = 64 * MIB  # overhead of the file system that stores the .wim
CLUSTER = 4096
LOADER = "\\EFI\\Microsoft\\Boot\\bootmgfw.efi"
LABEL = "Windows Boot Manager"
MOST = 6600.0  # seconds for applying a .wim; the unit's timeout is longer


def image_windows(places: Places, recipe: Recipe, moved: Moved) -> None:
    if recipe.get("image_format") == "raw-disk":
        return write_raw(places, recipe, moved)
    parts = read_layout(recipe["partition_layout"])
    check_windows_boots(parts, efi=places.efi.is_dir())
    disk = chosen(places)
    part = windows_of(parts)
    device = device_of(disk, part.number)
    blob = found(places, recipe)
    index = int(recipe.get("wim_index", 1))
    stamp = {"digest": blob.digest, "wim_index": index, "uuid": uuid_of(device)}
    if places.read(STAMP) == stamp:
        say("this image is on the disk already: nothing is done")
        return None
    places.forget(STAMP)
    front = split(size_of(device), blob.size, device)
    execute(volume_plan(part, device, front, look_at(disk).sector))
    with waiting_room(device, front, places.run / "scratch") as folder:
        wim = folder / "image.wim"
        download(blob, wim, moved)
        run(["wimlib-imagex", "apply", str(wim), str(index), device], timeout=MOST)
    execute(grow_plan(device))
    places.write(STAMP, {**stamp, "uuid": uuid_of(device)})
    return None


def split(size: int, wim: int, device: str) -> int:
    """Return where the space for the .wim begins. Unpacked it is larger, so at least its own size must be left for the volume."""
    front = (size - wim - wim // 50 - ROOM) // MIB * MIB
    if front < wim:
        raise Trouble(f"{device} with {size} bytes is too small for an image that has {wim} packed", Exit.DISK)
    return front


def volume_plan(part: Partition, device: str, front: int, sector: int) -> Plan:
    """Return the plan for the smaller volume; mkfs.ntfs counts in sectors of the device."""
    return [
        command("wipefs", "--all", "--force", device),
        command(*mkfs(part, device), str(front // sector), timeout=3600),
    ]


def grow_plan(device: str) -> Plan:
    return [
        command("ntfsresize", "--force", "--force", device, stdin=b"y\n", timeout=3600),
        command("ntfsfix", "--clear-dirty", device, may_fail=True),
    ]


@contextmanager
def waiting_room(device: str, front: int, folder: Path) -> Iterator[Path]:
    loop = run(["losetup", "--find", "--show", "--offset", str(front), device]).output.strip()
    try:
        run(["mkfs.ext4", "-F", "-q", "-O", "^has_journal", "-m", "0", loop])
        with mount(loop, folder):
            yield folder
    finally:
        run(["losetup", "--detach", loop], check=False)


def download(blob: Blob, path: Path, moved: Moved) -> None:
    """Download the .wim; its digest is verified before anything is applied."""
    count = 0
    with path.open("wb") as file:
        for piece in stream(blob):
            file.write(piece)
            count += len(piece)
            moved(count, blob.size)


def size_of(device: str) -> int:
    with open(device, "rb") as file:
        return file.seek(0, os.SEEK_END)


# booting ----------------------------------------------------------------------------------------------------------------


def bootloader_windows(places: Places, recipe: Recipe) -> None:
    if recipe.get("image_format") == "raw-disk":
        say("the image brings its own boot loader: nothing is done")
        return
    disk = chosen(places)
    parts = read_layout(recipe["partition_layout"])
    check_windows_boots(parts, efi=places.efi.is_dir())
    part = windows_of(parts)
    esp = next(part for part in parts if part.is_esp)
    disk_id, part_ids = identifiers(disk)
    with (
        mount(device_of(disk, part.number), places.run / "windows", "-t", "ntfs-3g") as system,
        mount(device_of(disk, esp.number), places.run / "esp") as boot,
    ):
        hive = copy_boot_files(system, boot)
        loader = "{" + str(uuid.uuid5(part_ids[part.number], "loader")) + "}"
        bcd.write(
            str(hive),
            loader,
            bcd.partition(disk_id, part_ids[esp.number]),
            bcd.partition(disk_id, part_ids[part.number]),
        )
        if places.has("unattend.xml"):
            execute(unattend_plan(system, (places.run / "unattend.xml").read_bytes()))
    if not has_entry(run(["efibootmgr", "--verbose"], check=False).output, part_ids[esp.number]):
        execute(firmware_entry(disk, esp.number))


def identifiers(disk: str) -> tuple[uuid.UUID, dict[int, uuid.UUID]]:
    table = json.loads(run(["sfdisk", "--json", disk]).output)["partitiontable"]
    return uuid.UUID(table["id"]), {
        number: uuid.UUID(each["uuid"]) for number, each in enumerate(table["partitions"], 1)
    }


def copy_boot_files(system: Path, boot: Path) -> Path:
    """Copy the boot files of the image's Windows to the EFI system partition; return the path of the boot configuration."""
    efi = any_case(system, "Windows/Boot/EFI")
    home = boot / "EFI/Microsoft/Boot"
    shutil.copytree(efi, home, copy_function=shutil.copyfile, dirs_exist_ok=True)
    for extra in ("Fonts", "Resources"):
        try:
            folder = any_case(system, f"Windows/Boot/{extra}")
        except Trouble:
            continue
        shutil.copytree(folder, home / extra, copy_function=shutil.copyfile, dirs_exist_ok=True)
    fallback = boot / "EFI/Boot/bootx64.efi"
    fallback.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(any_case(efi, "bootmgfw.efi"), fallback)
    hive = home / "BCD"
    shutil.copyfile(any_case(system, "Windows/System32/config/BCD-Template"), hive)
    return hive


def any_case(root: Path, path: str) -> Path:
    """Return a path without regard to case, as in Windows: images differ in it."""
    here = root
    for part in path.split("/"):
        try:
            names = os.listdir(here)
        except OSError:
            names = []
        match = next((name for name in names if name.lower() == part.lower()), None)
        if match is None:
            raise Trouble(f"the image has no {path}: it does not look like Windows", Exit.IMAGE)
        here /= match
    return here


def unattend_plan(system: Path, content: bytes) -> Plan:
    folder = any_case(system, "Windows").name
    return [WriteFile(system, f"/{folder}/Panther/unattend.xml", content, 0o600)]


def has_entry(listing: str, partition: uuid.UUID) -> bool:
    """Does the firmware have our entry, by label and partition? Each run would add another one."""
    lines = listing.lower().splitlines()
    return any(LABEL.lower() in line and str(partition) in line for line in lines if line.startswith("boot"))


def firmware_entry(disk: str, number: int) -> Plan:
    """Return the plan for an entry in the firmware, which makes Windows first; without it \\EFI\\Boot\\bootx64.efi is found."""
    argv = ("efibootmgr", "--create", "--disk", disk, "--part", str(number), "--label", LABEL)
    return [command(*argv, "--loader", LOADER, may_fail=True)]
