"""The first-boot configuration of the installed system: a NoCloud seed, and the host name for images without cloud-init.

The seed is written to the partition with the label cidata, or if there is none, into the root file system.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path

from provision.errors import Exit, Trouble
from provision.image import chosen, tag_of
from provision.journal import say
from provision.layout import CIDATA, LINUX_ROOT, cidata_of, device_of, read_layout
from provision.mounts import mount, system
from provision.places import Places
from provision.plan import Action, Plan, WriteFile, execute
from provision.recipe import Recipe
from provision.rooted import inside
from provision.run import run

FILES = ("user-data", "meta-data", "network-config")
SEED = "/var/lib/cloud/seed/nocloud"
ROOT_FORMATS = ("ext4", "xfs", "btrfs")

_OWN_NAME = re.compile(r"127\.0\.1\.1\s")


def config_drive(places: Places, recipe: Recipe) -> None:
    disk = chosen(places)
    files = seed(places)
    name = str(recipe.get("hostname", ""))
    if recipe.get("image_format") == "raw-disk":
        return _into_image(places, disk, files, name)
    parts = read_layout(recipe["partition_layout"])
    drive = cidata_of(parts)
    with system(disk, parts, places.target) as target:
        execute(plan(target, None if drive else SEED, files, name))
    if drive is not None:
        with mount(device_of(disk, drive.number), places.run / CIDATA) as folder:
            execute(plan(folder, "/", files, ""))
    return None


def seed(places: Places) -> dict[str, bytes]:
    files = {name: (places.run / name).read_bytes() for name in FILES if places.has(name)}
    if "meta-data" in files:
        files.setdefault("user-data", b"#cloud-config\n")  # cloud-init ignores a seed without it
    return files


def plan(root: Path, folder: str | None, files: Mapping[str, bytes], name: str) -> Plan:
    """Return the plan. `folder`: where in the tree the seed is written; None: not in this tree."""
    actions: list[Action] = []
    if folder is not None:
        actions += [
            WriteFile(root, f"{folder.rstrip('/')}/{each}", data, 0o600) for each, data in sorted(files.items())
        ]
    if name:
        actions.append(WriteFile(root, "/etc/hostname", f"{name.partition('.')[0]}\n".encode()))
        actions.append(WriteFile(root, "/etc/hosts", hosts(_read(root, "/etc/hosts"), name).encode()))
    return actions


def hosts(before: str, name: str) -> str:
    """Return /etc/hosts with the name at 127.0.1.1, in place of other lines for that address."""
    lines = [line for line in before.splitlines() if not _OWN_NAME.match(line)]
    lines = lines or ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    short = name.partition(".")[0]
    lines.insert(1, f"127.0.1.1\t{name}" + (f" {short}" if short != name else ""))
    return "\n".join(lines) + "\n"


def _read(root: Path, path: str) -> str:
    try:
        return inside(root, path).read_text(errors="replace")
    except OSError:
        return ""


# an image of a whole disk, which has its own partitions ----------------------------------------------------------------


def _into_image(places: Places, disk: str, files: Mapping[str, bytes], name: str) -> None:
    if not name and set(files) <= {"meta-data", "user-data"} and not places.has("user-data"):
        say("the recipe configures nothing: the image is left as it is")
        return
    parts = _partitions(disk)
    drive = next((path for path, _ in parts if tag_of(path, "LABEL").lower() == CIDATA), None)
    if drive is not None:
        with mount(drive, places.run / CIDATA) as folder:
            execute(plan(folder, "/", files, ""))
        return
    roots = [path for path, kind in parts if tag_of(path, "TYPE") in ROOT_FORMATS and kind == LINUX_ROOT]
    roots = roots or [path for path, _ in parts if tag_of(path, "TYPE") in ROOT_FORMATS]
    if len(roots) != 1:
        raise Trouble(
            f"the image has no partition with label {CIDATA}, and {len(roots)} that could be its root: "
            "where the configuration belongs is not clear",
            Exit.IMAGE,
        )
    with mount(roots[0], places.target) as folder:
        execute(plan(folder, SEED, files, name))


def _partitions(disk: str) -> list[tuple[str, str]]:
    """Return the device and the type of each partition."""
    outcome = run(["sfdisk", "--json", disk], check=False)
    try:
        return [
            (str(each["node"]), str(each["type"]).upper())
            for each in json.loads(outcome.output)["partitiontable"]["partitions"]
        ]
    except (ValueError, KeyError):
        raise Trouble(f"{disk} has no partition table after the image was written", Exit.IMAGE) from None
