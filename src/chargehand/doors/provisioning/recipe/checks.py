"""Checks that a schema cannot express: whether the fields of a recipe go together, and whether its URLs are allowed.

Each check reads only members that the schema accepts, so that one mistake is not reported twice.
"""

import re
from collections.abc import Iterator
from typing import Any

from chargehand.doors.provisioning.recipe.partitions import bytes_of, fixed_bytes, layout_problems
from chargehand.doors.provisioning.refusals import RefusalDetail
from chargehand.errors import EgressRefused
from chargehand.webhooks.egress import EgressPolicy

# The machine fetches, not this server, so private addresses are allowed. Addresses that are never legitimate stay refused.
_policy = EgressPolicy(allow_local=True)
_METADATA_NAMES = {
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "instance-data",
    "instance-data.ec2.internal",
}

FIRMWARE_DIGEST = "USER_FIRMWARE_SHA256"
_SHA256 = re.compile(r"(?:sha256:)?[0-9a-fA-F]{64}")
_PARTITION = re.compile(
    r"/dev/(?:(?:sd|vd|hd|xvd)[a-z]+[0-9]+|(?:nvme[0-9]+n|mmcblk|nbd|loop)[0-9]+p[0-9]+|.*-part[0-9]+)"
)
_NO_DISK = re.compile(r"/dev/(?:sr[0-9]+|cdrom|dvd|ram[0-9]+|zram[0-9]+|null|zero|mem|fd[0-9]+)(?:/.*)?")


def cross_problems(document: dict[str, Any], broken: set[str]) -> Iterator[RefusalDetail]:
    """Yield what is wrong. `broken`: the members that the schema has refused already."""
    sound = {name: value for name, value in document.items() if name not in broken}
    if "firmware_url" in sound:
        yield from _address_problems("firmware_url", sound["firmware_url"])
        if "env" not in broken and not _SHA256.fullmatch(sound.get("env", {}).get(FIRMWARE_DIGEST, "")):
            message = f"firmware needs a digest, to be verified: give {FIRMWARE_DIGEST} in env, 64 hexadecimal digits"
            yield RefusalDetail("/firmware_url", "conflict", message)
    if "oci_url" in sound:
        yield from _address_problems("oci_url", "http://" + sound["oci_url"].partition("/")[0])
    if "target_disk" in sound:
        yield from _disk_problems(sound["target_disk"])
    if "partition_layout" in sound:
        yield from layout_problems(sound["partition_layout"], str(sound.get("task_target")))
        yield from _fit_problems(sound["partition_layout"], sound.get("target_disk"))


def _address_problems(name: str, url: str) -> Iterator[RefusalDetail]:
    """Yield what is wrong with a URL. Names are not resolved: they may mean something else on the machine's network."""
    at = "/" + name
    try:
        host = _policy.check_url(name, url).partition("://")[2].partition("/")[0].partition(":")[0]
    except EgressRefused as error:
        yield RefusalDetail(at, "address", error.message.removeprefix(f"{name}: "))
        return
    if host.removesuffix(".") in _METADATA_NAMES:
        yield RefusalDetail(at, "address", "the host is a cloud's metadata service and is never called")


def _disk_problems(disk: str | dict[str, Any]) -> Iterator[RefusalDetail]:
    at, path = ("/target_disk", disk) if isinstance(disk, str) else ("/target_disk/path", disk.get("path", ""))
    if _NO_DISK.fullmatch(path):
        yield RefusalDetail(at, "conflict", "is not a disk that can be installed to")
    elif _PARTITION.fullmatch(path):
        yield RefusalDetail(at, "conflict", "is a partition; name the whole disk")
    limits = (
        [bytes_of(disk[name]) for name in ("min_size", "max_size") if name in disk] if isinstance(disk, dict) else []
    )
    if limits != sorted(limits):
        yield RefusalDetail("/target_disk/min_size", "conflict", "is more than max_size, so no disk can fit")


def _fit_problems(layout: list[dict[str, Any]], disk: object) -> Iterator[RefusalDetail]:
    if isinstance(disk, dict) and "max_size" in disk and fixed_bytes(layout) >= bytes_of(disk["max_size"]):
        message = "the sizes add up to more than target_disk/max_size leaves room for"
        yield RefusalDetail("/partition_layout", "conflict", message)
