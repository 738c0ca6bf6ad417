"""Windows from a .wim: applied by wimlib to the NTFS volume itself, which keeps what a mounted one would lose, and made bootable.

A .wim is read here and there, not from its beginning to its end, and memory is too small for it. So it waits at the end of the
partition it is meant for: the volume is made smaller at first, and grows over that place when the .wim is no longer needed.
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

ROOM = 64 * MIB  # for the file system that the .wim waits in
CLUSTER = 4096
LOADER = "\\EFI\\Microsoft\\Boot\\bootmgfw.efi"
LABEL = "Windows Boot Manager"
MOST = 6600.0  # of applying a .wim; the unit has more


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
    """Where the waiting room begins. What is unpacked is larger than what is packed, so at least as much must be left."""
    front = (size - wim - wim // 50 - ROOM) // MIB * MIB
    if front < wim:
        raise Trouble(f"{device} with {size} bytes is too small for an image that has {wim} packed", Exit.DISK)
    return front


def volume_plan(part: Partition, device: str, front: int, sector: int) -> Plan:
    """mkfs.ntfs counts in the sectors of the device."""
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
    """Its digest is known to be right before anything is applied."""
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
    """From the image's own Windows to the EFI system partition; gives where the boot configuration is."""
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
    """To Windows the case of names does not count, and images differ in it."""
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
    """Each run would add another one: its label and its partition tell that it is there."""
    lines = listing.lower().splitlines()
    return any(LABEL.lower() in line and str(partition) in line for line in lines if line.startswith("boot"))


def firmware_entry(disk: str, number: int) -> Plan:
    """The firmware finds \\EFI\\Boot\\bootx64.efi without it; with it Windows is first."""
    argv = ("efibootmgr", "--create", "--disk", disk, "--part", str(number), "--label", LABEL)
    return [command(*argv, "--loader", LOADER, may_fail=True)]
