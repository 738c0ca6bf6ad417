"""Write the image from the registry to the disk: a file tree into the mounted layout, or a whole disk.

The data is hashed while it is written. The step succeeds only if the digest is right at the end; if it is wrong, nothing bootable
is left on the disk.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence

from provision import raw_writer
from provision.disks import look_at
from provision.errors import Exit, Trouble
from provision.journal import say
from provision.layout import MIB, Partition, device_of, mounted, read_layout, root_of
from provision.mounts import system
from provision.oci import Blob, DigestMismatch, resolve, stream
from provision.partition import DISK, MOST, STATE, mkfs
from provision.pipeline import pour
from provision.places import Places
from provision.plan import Command, command, execute
from provision.recipe import Recipe
from provision.run import run

STAMP = "image.json"
BEGUN = "image-begun.json"  # the image that the file systems hold in part or whole
HEAD = "image-head"

Moved = Callable[[int, int], None]  # (bytes so far, total)


def untar(target: str) -> tuple[str, ...]:
    return ("tar", "--extract", "--preserve-permissions", "--numeric-owner", "--xattrs", "--xattrs-include=*", "--acls",
            "--directory", target, "--file", "-")  # fmt: skip


def to_disk(disk: str, head: str) -> tuple[str, ...]:
    return (sys.executable, "-I", raw_writer.__file__, disk, head)


def image_linux(places: Places, recipe: Recipe, moved: Moved) -> None:
    if recipe.get("image_format") == "raw-disk":
        return write_raw(places, recipe, moved)
    disk = chosen(places)
    parts = read_layout(recipe["partition_layout"])
    blob = found(places, recipe)
    root = device_of(disk, root_of(parts).number)
    stamp = {"digest": blob.digest, "uuid": uuid_of(root)}
    if places.read(STAMP) == stamp:
        say("this image is on the disk already: nothing is done")
        return None
    places.forget(STAMP)
    begun = places.read(BEGUN) or stamp
    if begun["uuid"] == stamp["uuid"] and begun["digest"] != stamp["digest"]:
        say(f"the file systems hold files of {begun['digest']}: they are made anew")
        empty(disk, parts)
        stamp["uuid"] = uuid_of(root)
    places.write(BEGUN, stamp)
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


def empty(disk: str, parts: Sequence[Partition]) -> None:
    execute([Command(mkfs(part, device_of(disk, part.number)), timeout=MOST) for part in mounted(parts)])


def write_raw(places: Places, recipe: Recipe, moved: Moved) -> None:
    disk = chosen(places)
    blob = found(places, recipe)
    stamp = {"digest": blob.digest, "disk": disk}
    if places.read(STAMP) == stamp:
        say("this image is on the disk already: nothing is done")
        return
    places.forget(STAMP)
    spoil(disk)  # erased first, because a mix of old and new content might boot
    head = places.run / HEAD
    try:
        pour(stream(blob), blob.media_type, to_disk(disk, str(head)), lambda count: moved(count, blob.size))
        put_head(disk, head.read_bytes())
        complete_table(disk)
    except BaseException:
        spoil(disk)
        raise
    finally:
        head.unlink(missing_ok=True)
    execute([command("partx", "--update", disk, may_fail=True), command("udevadm", "settle", may_fail=True)])
    places.write(STAMP, stamp)


def put_head(disk: str, head: bytes) -> None:
    """Write the first MiB, which was held back until the digest was verified."""
    with open(disk, "r+b") as file:
        file.write(head)
        file.flush()
        os.fsync(file.fileno())


def complete_table(disk: str) -> None:
    """Move the backup GPT to the end of the disk, which is larger than the image."""
    outcome = run(["sfdisk", "--json", disk], check=False)
    try:
        kind = json.loads(outcome.output)["partitiontable"]["label"]
    except (ValueError, KeyError):
        raise Trouble("the image has no partition table: it is not one of a whole disk", Exit.IMAGE) from None
    if kind == "gpt":
        run(["sfdisk", "--no-reread", "--no-tell-kernel", "--relocate", "gpt-bak-std", disk])


def spoil(device: str) -> None:
    """Zero the first and the last MiB: partition table, boot sector, superblock, and their backup."""
    with open(device, "r+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for at in (0, max(0, size - MIB)):
            file.seek(at)
            file.write(bytes(min(MIB, size - at)))
        os.fsync(file.fileno())
    say(f"the beginning and the end of {device} were zeroed: nothing there can be booted or mounted")


def chosen(places: Places) -> str:
    """Return the disk that the partition step chose, or raise if that name is another disk now: names may change."""
    kept = places.read(DISK) or {}
    if not kept.get("path"):
        raise Trouble("no disk was chosen: the partition step has not run")
    path = str(kept.pop("path"))
    if kept:
        seen = look_at(path)
        for name, value in kept.items():
            if getattr(seen, name) != value:
                raise Trouble(f"{seen} is not the disk that was chosen: its {name} was {value or 'none'}", Exit.DISK)
    return path


def found(places: Places, recipe: Recipe) -> Blob:
    report = places.read("report.json") or {}
    blob = resolve(recipe["oci_url"], str(report.get("registry_url", "")), str(report.get("token", "")))
    say(f"{recipe['oci_url']} is {blob.digest}, {blob.size} bytes")
    return blob


def uuid_of(device: str) -> str:
    return tag_of(device, "UUID")


def tag_of(device: str, tag: str) -> str:
    """Return a tag, read from the device itself: blkid's cache may be older than the file system."""
    outcome = run(["blkid", "--probe", "--match-tag", tag, "--output", "value", device], check=False)
    return outcome.output.strip() if outcome.code == 0 else ""
