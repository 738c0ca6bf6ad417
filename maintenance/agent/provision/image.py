"""The image, straight from the registry onto the disk: a file tree into the mounted layout, or a whole disk.

What arrives is hashed while it is written. Only when the stream has ended and the digest is right is the step done; with a wrong
one, nothing is left that a machine could boot.
"""

import os
from collections.abc import Callable

from provision.errors import Trouble
from provision.journal import say
from provision.layout import MIB, device_of, mounted, read_layout, root_of
from provision.mounts import system
from provision.oci import Blob, DigestMismatch, resolve, stream
from provision.partition import DISK, STATE
from provision.pipeline import pour
from provision.places import Places
from provision.plan import command, execute
from provision.recipe import Recipe
from provision.run import run

STAMP = "image.json"

Moved = Callable[[int, int], None]  # (bytes so far, of how many)


def untar(target: str) -> tuple[str, ...]:
    return ("tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls",
            "--directory", target, "--file", "-")  # fmt: skip


def to_disk(disk: str) -> tuple[str, ...]:
    return ("dd", f"of={disk}", "bs=4M", "iflag=fullblock", "conv=notrunc,fsync", "status=none")


def image_linux(places: Places, recipe: Recipe, moved: Moved) -> None:
    if recipe.get("image_format") == "raw-disk":
        return write_raw(places, recipe, moved)
    disk = chosen(places)
    parts = read_layout(recipe["partition_layout"])
    blob = found(places, recipe)
    stamp = {"digest": blob.digest, "uuid": uuid_of(device_of(disk, root_of(parts).number))}
    if places.read(STAMP) == stamp:
        say("this image is on the disk already: nothing is done")
        return None
    places.forget(STAMP)
    try:
        with system(disk, parts, places.target) as target:
            pour(stream(blob), blob.media_type, untar(str(target)), lambda count: moved(count, blob.size))
            os.sync()
    except DigestMismatch:
        for part in mounted(parts):
            spoil(device_of(disk, part.number))
        places.forget(STATE)
        raise
    places.write(STAMP, stamp)
    return None


def write_raw(places: Places, recipe: Recipe, moved: Moved) -> None:
    disk = chosen(places)
    blob = found(places, recipe)
    stamp = {"digest": blob.digest, "disk": disk}
    if places.read(STAMP) == stamp:
        say("this image is on the disk already: nothing is done")
        return
    places.forget(STAMP)
    try:
        pour(stream(blob), blob.media_type, to_disk(disk), lambda count: moved(count, blob.size))
    except BaseException:
        spoil(disk)  # half a disk may boot as well as a wrong one
        raise
    execute([command("partx", "--update", disk, may_fail=True), command("udevadm", "settle", may_fail=True)])
    places.write(STAMP, stamp)


def spoil(device: str) -> None:
    """The first MiB: no table, no boot sector and no superblock survives it; and what lies at the end of a disk as a copy."""
    with open(device, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for at in (0, max(0, size - MIB)):
            file.seek(at)
            file.write(bytes(min(MIB, size - at)))
        os.fsync(file.fileno())
    say(f"{device} was made unusable, because its content cannot be trusted")


def chosen(places: Places) -> str:
    disk = (places.read(DISK) or {}).get("path")
    if not disk:
        raise Trouble("no disk was chosen: the partition step has not run")
    return str(disk)


def found(places: Places, recipe: Recipe) -> Blob:
    report = places.read("report.json") or {}
    blob = resolve(recipe["oci_url"], str(report.get("registry_url", "")), str(report.get("token", "")))
    say(f"{recipe['oci_url']} is {blob.digest}, {blob.size} bytes")
    return blob


def uuid_of(device: str) -> str:
    return tag_of(device, "UUID")


def tag_of(device: str, tag: str) -> str:
    """Read from the device itself: the cache that blkid keeps may be older than the file system."""
    outcome = run(["blkid", "--probe", "--match-tag", tag, "--output", "value", device], check=False)
    return outcome.output.strip() if outcome.code == 0 else ""
