"""Each rule for recipes, by its name: what it refuses, where it points, and under which code."""

import base64
import json
from typing import Any, NamedTuple

import pytest

from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.recipe.recipe import check
from chargehand.doors.provisioning.recipe.schema import FIELDS, SCHEMA
from tests.provisioning.recipes import ESP, EXAMPLES, GONE, ROOT, example, layout, linux, part, refused, windows_layout


class Rule(NamedTuple):
    name: str
    document: Any
    path: str
    code: str


# fmt: off
RULES = [
    Rule("a recipe is an object", [], "", "type"),
    Rule("an unknown field is refused", linux(partitions=[]), "/partitions", "unknown_field"),
    Rule("the schema is this one", linux(**{"$schema": "http://example.com"}), "/$schema", "enum"),
    Rule("only version 1 is known", linux(schema_version="2.0"), "/schema_version", "pattern"),
    Rule("a version is a string", linux(schema_version=1), "/schema_version", "type"),
    Rule("a target is needed", linux(task_target=GONE), "/task_target", "required"),
    Rule("targets are a closed list", linux(task_target="evil.target"), "/task_target", "enum"),
    # the disk
    Rule("Linux needs a disk", linux(target_disk=GONE), "/target_disk", "required"),
    Rule("Windows needs a disk", example("windows", target_disk=GONE), "/target_disk", "required"),
    Rule("a disk is under /dev", linux(target_disk="/etc/passwd"), "/target_disk", "pattern"),
    Rule("a disk's path has no ..", linux(target_disk="/dev/../etc/passwd"), "/target_disk", "pattern"),
    Rule("a disk is not a Windows path", linux(target_disk="\\\\.\\PhysicalDrive0"), "/target_disk", "pattern"),
    Rule("a disk's path has no control characters", linux(target_disk="/dev/sda\n"), "/target_disk", "pattern"),
    Rule("a SCSI partition is not a disk", linux(target_disk="/dev/sda1"), "/target_disk", "conflict"),
    Rule("an NVMe partition is not a disk", linux(target_disk="/dev/nvme0n1p2"), "/target_disk", "conflict"),
    Rule("a partition by id is not a disk", linux(target_disk={"path": "/dev/disk/by-id/a-part1"}), "/target_disk/path", "conflict"),
    Rule("a CD drive is not a disk", linux(target_disk="/dev/sr0"), "/target_disk", "conflict"),
    Rule("there is at least one hint", linux(target_disk={}), "/target_disk", "too_small"),
    Rule("hints are a closed list", linux(target_disk={"colour": "red"}), "/target_disk/colour", "unknown_field"),
    Rule("a serial is not empty", linux(target_disk={"serial": ""}), "/target_disk/serial", "too_small"),
    Rule("a serial has no control characters", linux(target_disk={"serial": "a\0"}), "/target_disk/serial", "pattern"),
    Rule("a WWN is well-formed", linux(target_disk={"wwn": "0x50 "}), "/target_disk/wwn", "pattern"),
    Rule("a model is short", linux(target_disk={"model": "m" * 129}), "/target_disk/model", "too_large"),
    Rule("a size hint has a unit", linux(target_disk={"min_size": "100"}), "/target_disk/min_size", "pattern"),
    Rule("a size hint is not a percentage", linux(target_disk={"max_size": "100%"}), "/target_disk/max_size", "pattern"),
    Rule("min_size is not above max_size", linux(target_disk={"min_size": "2T", "max_size": "1T"}), "/target_disk/min_size", "conflict"),
    Rule("rotational is a boolean", linux(target_disk={"rotational": "no"}), "/target_disk/rotational", "type"),
    Rule("transports are a closed list", linux(target_disk={"transport": "usb"}), "/target_disk/transport", "enum"),
    # consent
    Rule("Linux needs consent", linux(wipe=GONE), "/wipe", "required"),
    Rule("Windows needs consent", example("windows", wipe=GONE), "/wipe", "required"),
    Rule("ESXi needs consent", example("esxi", wipe=GONE), "/wipe", "required"),
    Rule("consent is true", linux(wipe=False), "/wipe", "enum"),
    Rule("consent is a boolean", linux(wipe="true"), "/wipe", "type"),
    # the image
    Rule("Linux needs an image", linux(oci_url=GONE), "/oci_url", "required"),
    Rule("Windows needs an image", example("windows", oci_url=GONE), "/oci_url", "required"),
    Rule("an image has no scheme", linux(oci_url="https://host/image:1"), "/oci_url", "pattern"),
    Rule("an image has a host", linux(oci_url="image:1"), "/oci_url", "pattern"),
    Rule("an image has no ..", linux(oci_url="host/../image"), "/oci_url", "pattern"),
    Rule("an image has no user", linux(oci_url="user:pw@host/image"), "/oci_url", "pattern"),
    Rule("a digest is complete", linux(oci_url="host/image@sha256:abc"), "/oci_url", "pattern"),
    Rule("an image is not on the metadata address", linux(oci_url="169.254.169.254/image"), "/oci_url", "address"),
    Rule("the metadata address is refused as a number", linux(oci_url="2852039166/image"), "/oci_url", "address"),
    Rule("the metadata address is refused inside IPv6", linux(oci_url="[::ffff:169.254.169.254]:80/image"), "/oci_url", "address"),
    Rule("the metadata address is refused by its name", linux(oci_url="metadata.google.internal/image"), "/oci_url", "address"),
    Rule("a port is at most 65535", linux(oci_url="host:99999/image"), "/oci_url", "address"),
    Rule("image formats are a closed list", linux(image_format="qcow2"), "/image_format", "enum"),
    Rule("Windows is not installed from a file tree", example("windows", image_format="rootfs-tar"), "/image_format", "enum"),
    Rule("a raw disk has its own partitions", linux(image_format="raw-disk"), "/partition_layout", "conflict"),
    Rule("a raw disk has no WIM", example("windows", image_format="raw-disk"), "/wim_index", "conflict"),
    Rule("a WIM index begins at 1", example("windows", wim_index=0), "/wim_index", "out_of_range"),
    Rule("a WIM index is a whole number", example("windows", wim_index=1.5), "/wim_index", "type"),
    # partitions
    Rule("Linux needs partitions", linux(partition_layout=GONE), "/partition_layout", "required"),
    Rule("Windows needs partitions", example("windows", partition_layout=GONE), "/partition_layout", "required"),
    Rule("there is at least one partition", layout(), "/partition_layout", "too_small"),
    Rule("there are at most 64 partitions", layout(*[part()] * 65), "/partition_layout", "too_large"),
    Rule("a partition is an object", layout("root"), "/partition_layout/0", "type"),  # type: ignore[arg-type]
    Rule("a partition has a size", layout(ESP, part(size=GONE), ROOT), "/partition_layout/1/size", "required"),
    Rule("a partition has a type", layout(ESP, part(type_guid=GONE), ROOT), "/partition_layout/1/type_guid", "required"),
    Rule("a partition has a format", layout(ESP, part(format=GONE), ROOT), "/partition_layout/1/format", "required"),
    Rule("a partition has no other members", layout(ESP, part(fs="x"), ROOT), "/partition_layout/1/fs", "unknown_field"),
    Rule("no size without a unit", layout(ESP, part(size="512"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no decimal units", layout(ESP, part(size="512MB"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no percentage but 100%", layout(ESP, part(size="50%"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no size of 0", layout(ESP, part(size="0M"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no size below 1M", layout(ESP, part(size="64K"), ROOT), "/partition_layout/1/size", "too_small"),
    Rule("no ESP below 33M", layout({**ESP, "size": "32M"}, ROOT), "/partition_layout/0/size", "too_small"),
    Rule("no sizes beyond 1024T in all", layout(ESP, part(size="9999T"), ROOT), "/partition_layout", "conflict"),
    Rule("no sizes beyond max_size of the disk", linux(target_disk={"max_size": "1G"}), "/partition_layout", "conflict"),
    Rule("100% is last", layout(ESP, ROOT, part()), "/partition_layout/1/size", "conflict"),
    Rule("100% is given once", layout(ESP, part(size="100%"), ROOT), "/partition_layout/1/size", "conflict"),
    Rule("types are known", layout(ESP, part(type_guid="abcd"), ROOT), "/partition_layout/1/type_guid", "pattern"),
    Rule("formats are a closed list", layout(ESP, part(format="zfs"), ROOT), "/partition_layout/1/format", "enum"),
    Rule("a label has no colon", layout(ESP, part(label="a:b"), ROOT), "/partition_layout/1/label", "pattern"),
    Rule("a label has no control characters", layout(ESP, part(label="a\x1b"), ROOT), "/partition_layout/1/label", "pattern"),
    Rule("a label has at most 36 characters", layout(ESP, part(label="a" * 37), ROOT), "/partition_layout/1/label", "pattern"),
    Rule("labels are unique, ignoring case", layout(ESP, {**ROOT, "label": "ESP"}), "/partition_layout/1/label", "conflict"),
    Rule("a mountpoint is absolute", layout(ESP, part(mountpoint="var"), ROOT), "/partition_layout/1/mountpoint", "pattern"),
    Rule("a mountpoint has no ..", layout(ESP, part(mountpoint="/../x"), ROOT), "/partition_layout/1/mountpoint", "pattern"),
    Rule("mountpoints are unique", layout(ESP, part(mountpoint="/"), ROOT), "/partition_layout/2/mountpoint", "conflict"),
    Rule("nothing is mounted over /proc", layout(ESP, part(mountpoint="/proc/x"), ROOT), "/partition_layout/1/mountpoint", "conflict"),
    Rule("swap is not mounted", layout(ESP, part(type_guid="8200", format="swap", mountpoint="/s"), ROOT), "/partition_layout/1/mountpoint", "conflict"),
    Rule("a partition without a file system is not mounted", layout(ESP, part(format="none", mountpoint="/s"), ROOT), "/partition_layout/1/mountpoint", "conflict"),
    Rule("swap has type 8200", layout(ESP, part(format="swap"), ROOT), "/partition_layout/1/format", "conflict"),
    Rule("bootable is a boolean", layout(ESP, part(bootable=1), ROOT), "/partition_layout/1/bootable", "type"),
    Rule("an ESP is vfat", layout({**ESP, "format": "ext4"}, ROOT), "/partition_layout/0/format", "conflict"),
    Rule("an ESP by its GUID is vfat", layout(part(type_guid="C12A7328-F81F-11D2-BA4B-00A0C93EC93B"), ROOT), "/partition_layout/0/format", "conflict"),
    Rule("BIOS boot has no file system", layout(part(type_guid="EF02"), ROOT), "/partition_layout/0/format", "conflict"),
    Rule("Linux needs something to boot from", layout(ROOT), "/partition_layout", "conflict"),
    Rule("Linux needs a root file system", layout(ESP, part()), "/partition_layout", "conflict"),
    Rule("a root is a Linux file system", layout(ESP, {**ROOT, "format": "vfat"}), "/partition_layout/1/format", "conflict"),
    Rule("Windows needs an ESP", windows_layout(part(format="ntfs")), "/partition_layout", "conflict"),
    Rule("Windows needs NTFS", windows_layout(ESP, part()), "/partition_layout", "conflict"),
    Rule("of several NTFS partitions one has the label Windows", windows_layout(ESP, part(format="ntfs"), part(format="ntfs")), "/partition_layout", "conflict"),
    Rule("Windows has no mountpoints", windows_layout(ESP, part(format="ntfs", mountpoint="/")), "/partition_layout/1/mountpoint", "conflict"),
    # firmware and installers
    Rule("an update needs firmware", example("supermicro-update", firmware_url=GONE), "/firmware_url", "required"),
    Rule("firmware has a digest", example("supermicro-update", env={}), "/firmware_url", "conflict"),
    Rule("a digest has 64 digits", example("supermicro-update", env={"USER_FIRMWARE_SHA256": "abc"}), "/firmware_url", "conflict"),
    Rule("firmware comes by HTTP", example("supermicro-update", firmware_url="file:///etc/passwd"), "/firmware_url", "pattern"),
    Rule("firmware has no password", example("supermicro-update", firmware_url="https://u:p@h/x"), "/firmware_url", "pattern"),
    Rule("firmware has no fragment", example("supermicro-update", firmware_url="https://h/x#y"), "/firmware_url", "pattern"),
    Rule("firmware is not on the metadata address", example("supermicro-update", firmware_url="http://169.254.169.254/x"), "/firmware_url", "address"),
    Rule("firmware has a short URL", example("supermicro-update", firmware_url="http://h/" + "x" * 1100), "/firmware_url", "too_large"),
    Rule("an update installs nothing", example("supermicro-update", target_disk="/dev/sda"), "/target_disk", "conflict"),
    Rule("an update wipes nothing", example("supermicro-update", wipe=True), "/wipe", "conflict"),
    Rule("Linux has no firmware", linux(firmware_url="https://h/x"), "/firmware_url", "conflict"),
    Rule("ESXi needs its installer", example("esxi", installer_iso=GONE), "/installer_iso", "required"),
    Rule("ESXi needs a kickstart file", example("esxi", ks_cfg=GONE), "/ks_cfg", "required"),
    Rule("an installer is a plain name", example("esxi", installer_iso="../x.iso"), "/installer_iso", "pattern"),
    Rule("an installer is an ISO", example("esxi", installer_iso="x.img"), "/installer_iso", "pattern"),
    Rule("ESXi has no image", example("esxi", oci_url="h/x"), "/oci_url", "conflict"),
    Rule("ESXi's disk is in its kickstart file", example("esxi", target_disk="/dev/sda"), "/target_disk", "conflict"),
    Rule("Linux has no installer", linux(installer_iso="x.iso"), "/installer_iso", "conflict"),
    Rule("Linux has no answer file", linux(unattend_xml="<a/>"), "/unattend_xml", "conflict"),
    Rule("Windows has no cloud-init", example("windows", user_data="x"), "/user_data", "conflict"),
    # payloads
    Rule("a payload is not a number", linux(user_data=5), "/user_data", "type"),
    Rule("a payload is not a URL", linux(user_data={"url": "http://h/x"}), "/user_data/url", "unknown_field"),
    Rule("a payload is not a path", linux(user_data={"path": "/etc/passwd"}), "/user_data/path", "unknown_field"),
    Rule("a payload is not a file of the medium", linux(user_data={"file": "user-data"}), "/user_data/file", "conflict"),
    Rule("a payload is not empty", linux(user_data={}), "/user_data", "too_small"),
    Rule("a payload has only one form", linux(user_data={"content": "a", "base64": "YQ=="}), "/user_data", "too_large"),
    Rule("a payload's text has no NUL", linux(user_data="a\0b"), "/user_data", "pattern"),
    Rule("a payload's content has no control characters", linux(user_data={"content": "a\x1bb"}), "/user_data/content", "pattern"),
    Rule("base64 is valid", linux(user_data={"base64": "%%%"}), "/user_data/base64", "pattern"),
    Rule("user_data is at most 1 MiB", linux(user_data="a" * (2**20 + 1)), "/user_data", "too_large"),
    Rule("user_data is counted in bytes, not in characters", linux(user_data="é" * (2**19 + 1)), "/user_data", "too_large"),
    Rule("user_data in base64 is at most 1 MiB", linux(user_data={"base64": base64.b64encode(bytes(2**20 + 1)).decode()}), "/user_data", "too_large"),
    Rule("meta_data is at most 256 KiB", linux(meta_data="a" * (2**18 + 1)), "/meta_data", "too_large"),
    Rule("network_config is at most 256 KiB", linux(network_config={"content": "a" * (2**18 + 1)}), "/network_config/content", "too_large"),
    Rule("unattend_xml is at most 1 MiB", example("windows", unattend_xml="a" * (2**20 + 1)), "/unattend_xml", "too_large"),
    Rule("ks_cfg is at most 256 KiB", example("esxi", ks_cfg="a" * (2**18 + 1)), "/ks_cfg", "too_large"),
    Rule("unattend_xml has no entities", example("windows", unattend_xml='<!DOCTYPE a [<!ENTITY b "c">]><a/>'), "/unattend_xml", "xml_doctype"),
    # the rest
    Rule("a host name is well-formed", linux(hostname="-a"), "/hostname", "pattern"),
    Rule("a host name has no line break", linux(hostname="a\nb: c"), "/hostname", "pattern"),
    Rule("variables begin with USER_", linux(env={"PATH": "/tmp"}), "/env/PATH", "pattern"),
    Rule("a variable's name has no = and no line break", linux(env={"USER_LD_PRELOAD=x\nA": "1"}), "/env/USER_LD_PRELOAD=x\nA", "pattern"),
    Rule("a variable is a string", linux(env={"USER_A": 1}), "/env/USER_A", "type"),
    Rule("a variable is on one line", linux(env={"USER_A": "1\nPATH=/tmp"}), "/env/USER_A", "pattern"),
    Rule("a variable has at most 4096 characters", linux(env={"USER_A": "a" * 4097}), "/env/USER_A", "too_large"),
    Rule("there are at most 64 variables", linux(env={f"USER_{n}": "" for n in range(65)}), "/env", "too_large"),
    Rule("notes have at most 2000 characters", linux(notes="a" * 2001), "/notes", "too_large"),
    Rule("notes have no control characters", linux(notes="\x1b[2J"), "/notes", "pattern"),
    Rule("on_success is a closed list", linux(on_success="shutdown"), "/on_success", "enum"),
    Rule("on_failure is a closed list", linux(on_failure="retry"), "/on_failure", "enum"),
    Rule("the timeout is at least a minute", linux(timeout_minutes=0), "/timeout_minutes", "out_of_range"),
    Rule("the timeout is at most a day", linux(timeout_minutes=1441), "/timeout_minutes", "out_of_range"),
]
# fmt: on


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_each_rule_refuses_and_points_at_the_place(rule: Rule) -> None:
    details = refused(rule.document)
    assert [(detail.path, detail.code) for detail in details if (detail.path, detail.code) == (rule.path, rule.code)]
    for detail in details:
        assert len(detail.message) > 10
        assert "\n" not in detail.message


def test_every_field_has_a_rule_that_refuses() -> None:
    assert {rule.path.split("/")[1] for rule in RULES if rule.path} >= set(FIELDS)


def test_another_validator_agrees_about_every_example_rule_and_file_on_the_medium() -> None:
    """The machine checks the recipe by the same schema with another library."""
    jsonschema = pytest.importorskip("jsonschema", reason="the second validator is not installed")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    other = jsonschema.Draft202012Validator(SCHEMA)
    for path in EXAMPLES.glob("*.json"):
        recipe = check(path.read_bytes())
        assert other.is_valid(recipe.plain), path
        assert other.is_valid(json.loads(recipe_files(recipe, "job")["recipe.json"])), path
    ours = {
        "conflict",
        "address",
        "too_small",
        "too_large",
        "xml_doctype",
    }  # codes that checks beyond the schema use too
    for rule in RULES:
        if rule.code not in ours:
            # "a\n" matches a Python `$`; the controller accepts nothing that ends like that.
            assert not other.is_valid(rule.document) or "\n" in str(rule.document["target_disk"]), rule.name
