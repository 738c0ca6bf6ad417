"""Recipes: what is accepted, what each rule refuses, and what becomes of one that is accepted."""

import base64
import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml  # type: ignore[import-untyped]

from chargehand.doors.provisioning.errors import Detail, Refused
from chargehand.doors.provisioning.recipe import MAX_PROBLEMS, Recipe, check
from chargehand.doors.provisioning.recipe_layout import bytes_of
from chargehand.doors.provisioning.recipe_schema import FIELDS, SCHEMA, SCHEMA_BYTES, SCHEMA_ID

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "recipes"
GONE = object()  # as a value: the member is taken out

Document = dict[str, Any]


def example(name: str, **changes: Any) -> Document:
    document = json.loads((EXAMPLES / f"{name}.json").read_bytes())
    for member, value in changes.items():
        if value is GONE:
            del document[member.replace("__", ".")]
        else:
            document[member.replace("__", ".")] = value
    return document  # type: ignore[no-any-return]


def linux(**changes: Any) -> Document:
    return example("linux", **changes)


def part(**changes: Any) -> Document:
    made = {"size": "1G", "type_guid": "8300", "format": "ext4", **changes}
    return {name: value for name, value in made.items() if value is not GONE}


ESP = part(size="512M", type_guid="ef00", format="vfat", label="esp")
ROOT = part(size="100%", type_guid="8304", label="root", mountpoint="/")


def layout(*parts: Document) -> Document:
    return linux(partition_layout=list(parts))


def windows_layout(*parts: Document) -> Document:
    return example("windows", partition_layout=list(parts))


def refused(document: Any) -> list[Detail]:
    with pytest.raises(Refused) as caught:
        check(document if isinstance(document, bytes) else json.dumps(document).encode())
    assert (caught.value.http_status, caught.value.key) == (400, "validation.schema")
    return list(caught.value.details)


def accepted(document: Document) -> Recipe:
    return check(json.dumps(document).encode())


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
    Rule("a disk's path climbs nowhere", linux(target_disk="/dev/../etc/passwd"), "/target_disk", "pattern"),
    Rule("a disk is no Windows path", linux(target_disk="\\\\.\\PhysicalDrive0"), "/target_disk", "pattern"),
    Rule("a disk's path has no control characters", linux(target_disk="/dev/sda\n"), "/target_disk", "pattern"),
    Rule("a SCSI partition is no disk", linux(target_disk="/dev/sda1"), "/target_disk", "conflict"),
    Rule("an NVMe partition is no disk", linux(target_disk="/dev/nvme0n1p2"), "/target_disk", "conflict"),
    Rule("a partition by id is no disk", linux(target_disk={"path": "/dev/disk/by-id/a-part1"}), "/target_disk/path", "conflict"),
    Rule("a CD drive is no disk", linux(target_disk="/dev/sr0"), "/target_disk", "conflict"),
    Rule("at least one hint", linux(target_disk={}), "/target_disk", "too_small"),
    Rule("hints are a closed list", linux(target_disk={"colour": "red"}), "/target_disk/colour", "unknown_field"),
    Rule("a serial is not empty", linux(target_disk={"serial": ""}), "/target_disk/serial", "too_small"),
    Rule("a serial has no control characters", linux(target_disk={"serial": "a\0"}), "/target_disk/serial", "pattern"),
    Rule("a WWN has its form", linux(target_disk={"wwn": "0x50 "}), "/target_disk/wwn", "pattern"),
    Rule("a model is short", linux(target_disk={"model": "m" * 129}), "/target_disk/model", "too_large"),
    Rule("a size hint has a unit", linux(target_disk={"min_size": "100"}), "/target_disk/min_size", "pattern"),
    Rule("a size hint is no percentage", linux(target_disk={"max_size": "100%"}), "/target_disk/max_size", "pattern"),
    Rule("the least is below the most", linux(target_disk={"min_size": "2T", "max_size": "1T"}), "/target_disk/min_size", "conflict"),
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
    Rule("an image climbs nowhere", linux(oci_url="host/../image"), "/oci_url", "pattern"),
    Rule("an image has no user", linux(oci_url="user:pw@host/image"), "/oci_url", "pattern"),
    Rule("a digest is whole", linux(oci_url="host/image@sha256:abc"), "/oci_url", "pattern"),
    Rule("an image is not on the metadata address", linux(oci_url="169.254.169.254/image"), "/oci_url", "address"),
    Rule("nor on another spelling of it", linux(oci_url="2852039166/image"), "/oci_url", "address"),
    Rule("nor inside IPv6", linux(oci_url="[::ffff:169.254.169.254]:80/image"), "/oci_url", "address"),
    Rule("nor under its name", linux(oci_url="metadata.google.internal/image"), "/oci_url", "address"),
    Rule("a port is a port", linux(oci_url="host:99999/image"), "/oci_url", "address"),
    Rule("image formats are a closed list", linux(image_format="qcow2"), "/image_format", "enum"),
    Rule("a tree is no Windows", example("windows", image_format="rootfs-tar"), "/image_format", "enum"),
    Rule("a raw disk brings its partitions", linux(image_format="raw-disk"), "/partition_layout", "conflict"),
    Rule("a raw disk has no WIM", example("windows", image_format="raw-disk"), "/wim_index", "conflict"),
    Rule("a WIM index begins at 1", example("windows", wim_index=0), "/wim_index", "out_of_range"),
    Rule("a WIM index is a whole number", example("windows", wim_index=1.5), "/wim_index", "type"),
    # partitions
    Rule("Linux needs partitions", linux(partition_layout=GONE), "/partition_layout", "required"),
    Rule("Windows needs partitions", example("windows", partition_layout=GONE), "/partition_layout", "required"),
    Rule("at least one partition", layout(), "/partition_layout", "too_small"),
    Rule("at most 64 partitions", layout(*[part()] * 65), "/partition_layout", "too_large"),
    Rule("a partition is an object", layout("root"), "/partition_layout/0", "type"),  # type: ignore[arg-type]
    Rule("a partition has a size", layout(ESP, part(size=GONE), ROOT), "/partition_layout/1/size", "required"),
    Rule("a partition has a type", layout(ESP, part(type_guid=GONE), ROOT), "/partition_layout/1/type_guid", "required"),
    Rule("a partition has a format", layout(ESP, part(format=GONE), ROOT), "/partition_layout/1/format", "required"),
    Rule("a partition has no other members", layout(ESP, part(fs="x"), ROOT), "/partition_layout/1/fs", "unknown_field"),
    Rule("no size without a unit", layout(ESP, part(size="512"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no decimal units", layout(ESP, part(size="512MB"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no other percentage", layout(ESP, part(size="50%"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no size of nothing", layout(ESP, part(size="0M"), ROOT), "/partition_layout/1/size", "pattern"),
    Rule("no size below 1M", layout(ESP, part(size="64K"), ROOT), "/partition_layout/1/size", "too_small"),
    Rule("no ESP below 32M", layout({**ESP, "size": "16M"}, ROOT), "/partition_layout/0/size", "too_small"),
    Rule("no sizes beyond all disks", layout(ESP, part(size="9999T"), ROOT), "/partition_layout", "conflict"),
    Rule("no more than the largest disk that fits", linux(target_disk={"max_size": "1G"}), "/partition_layout", "conflict"),
    Rule("100% is last", layout(ESP, ROOT, part()), "/partition_layout/1/size", "conflict"),
    Rule("100% is given once", layout(ESP, part(size="100%"), ROOT), "/partition_layout/1/size", "conflict"),
    Rule("types are known", layout(ESP, part(type_guid="abcd"), ROOT), "/partition_layout/1/type_guid", "pattern"),
    Rule("formats are a closed list", layout(ESP, part(format="zfs"), ROOT), "/partition_layout/1/format", "enum"),
    Rule("a label has no colon", layout(ESP, part(label="a:b"), ROOT), "/partition_layout/1/label", "pattern"),
    Rule("a label has no control characters", layout(ESP, part(label="a\x1b"), ROOT), "/partition_layout/1/label", "pattern"),
    Rule("a label has 36 characters", layout(ESP, part(label="a" * 37), ROOT), "/partition_layout/1/label", "pattern"),
    Rule("labels are unique without case", layout(ESP, {**ROOT, "label": "ESP"}), "/partition_layout/1/label", "conflict"),
    Rule("a mountpoint is absolute", layout(ESP, part(mountpoint="var"), ROOT), "/partition_layout/1/mountpoint", "pattern"),
    Rule("a mountpoint climbs nowhere", layout(ESP, part(mountpoint="/../x"), ROOT), "/partition_layout/1/mountpoint", "pattern"),
    Rule("mountpoints are unique", layout(ESP, part(mountpoint="/"), ROOT), "/partition_layout/2/mountpoint", "conflict"),
    Rule("nothing is mounted over the kernel's own", layout(ESP, part(mountpoint="/proc/x"), ROOT), "/partition_layout/1/mountpoint", "conflict"),
    Rule("swap is not mounted", layout(ESP, part(type_guid="8200", format="swap", mountpoint="/s"), ROOT), "/partition_layout/1/mountpoint", "conflict"),
    Rule("no format, no mountpoint", layout(ESP, part(format="none", mountpoint="/s"), ROOT), "/partition_layout/1/mountpoint", "conflict"),
    Rule("swap has its type", layout(ESP, part(format="swap"), ROOT), "/partition_layout/1/format", "conflict"),
    Rule("bootable is a boolean", layout(ESP, part(bootable=1), ROOT), "/partition_layout/1/bootable", "type"),
    Rule("an ESP is vfat", layout({**ESP, "format": "ext4"}, ROOT), "/partition_layout/0/format", "conflict"),
    Rule("an ESP by its GUID is vfat", layout(part(type_guid="C12A7328-F81F-11D2-BA4B-00A0C93EC93B"), ROOT), "/partition_layout/0/format", "conflict"),
    Rule("BIOS boot has no file system", layout(part(type_guid="EF02"), ROOT), "/partition_layout/0/format", "conflict"),
    Rule("Linux needs something to boot from", layout(ROOT), "/partition_layout", "conflict"),
    Rule("Linux needs a root", layout(ESP, part()), "/partition_layout", "conflict"),
    Rule("a root is a Linux file system", layout(ESP, {**ROOT, "format": "vfat"}), "/partition_layout/1/format", "conflict"),
    Rule("Windows needs an ESP", windows_layout(part(format="ntfs")), "/partition_layout", "conflict"),
    Rule("Windows needs NTFS", windows_layout(ESP, part()), "/partition_layout", "conflict"),
    Rule("which NTFS is Windows", windows_layout(ESP, part(format="ntfs"), part(format="ntfs")), "/partition_layout", "conflict"),
    Rule("Windows mounts nothing", windows_layout(ESP, part(format="ntfs", mountpoint="/")), "/partition_layout/1/mountpoint", "conflict"),
    # firmware and installers
    Rule("an update needs firmware", example("supermicro-update", firmware_url=GONE), "/firmware_url", "required"),
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
    Rule("a payload is no number", linux(user_data=5), "/user_data", "type"),
    Rule("a payload is no URL", linux(user_data={"url": "http://h/x"}), "/user_data/url", "unknown_field"),
    Rule("a payload is no path", linux(user_data={"path": "/etc/passwd"}), "/user_data/path", "unknown_field"),
    Rule("a payload is no file of the medium", linux(user_data={"file": "user-data"}), "/user_data/file", "conflict"),
    Rule("a payload is given", linux(user_data={}), "/user_data", "too_small"),
    Rule("a payload is given in one way", linux(user_data={"content": "a", "base64": "YQ=="}), "/user_data", "too_large"),
    Rule("a payload's text has no NUL", linux(user_data="a\0b"), "/user_data", "pattern"),
    Rule("nor inside content", linux(user_data={"content": "a\x1bb"}), "/user_data/content", "pattern"),
    Rule("base64 is base64", linux(user_data={"base64": "%%%"}), "/user_data/base64", "pattern"),
    Rule("user_data is at most 1 MiB", linux(user_data="a" * (2**20 + 1)), "/user_data", "too_large"),
    Rule("of bytes, not of characters", linux(user_data="é" * (2**19 + 1)), "/user_data", "too_large"),
    Rule("also in base64", linux(user_data={"base64": base64.b64encode(bytes(2**20 + 1)).decode()}), "/user_data", "too_large"),
    Rule("meta_data is at most 256 KiB", linux(meta_data="a" * (2**18 + 1)), "/meta_data", "too_large"),
    Rule("network_config is at most 256 KiB", linux(network_config={"content": "a" * (2**18 + 1)}), "/network_config/content", "too_large"),
    Rule("unattend_xml is at most 1 MiB", example("windows", unattend_xml="a" * (2**20 + 1)), "/unattend_xml", "too_large"),
    Rule("ks_cfg is at most 256 KiB", example("esxi", ks_cfg="a" * (2**18 + 1)), "/ks_cfg", "too_large"),
    Rule("unattend_xml has no entities", example("windows", unattend_xml='<!DOCTYPE a [<!ENTITY b "c">]><a/>'), "/unattend_xml", "xml_doctype"),
    # the rest
    Rule("a host name is one", linux(hostname="-a"), "/hostname", "pattern"),
    Rule("a host name has no line break", linux(hostname="a\nb: c"), "/hostname", "pattern"),
    Rule("variables begin with USER_", linux(env={"PATH": "/tmp"}), "/env/PATH", "pattern"),
    Rule("and hide nothing", linux(env={"USER_LD_PRELOAD=x\nA": "1"}), "/env/USER_LD_PRELOAD=x\nA", "pattern"),
    Rule("a variable is a string", linux(env={"USER_A": 1}), "/env/USER_A", "type"),
    Rule("a variable is on one line", linux(env={"USER_A": "1\nPATH=/tmp"}), "/env/USER_A", "pattern"),
    Rule("a variable has 4096 characters", linux(env={"USER_A": "a" * 4097}), "/env/USER_A", "too_large"),
    Rule("64 variables", linux(env={f"USER_{n}": "" for n in range(65)}), "/env", "too_large"),
    Rule("notes have 2000 characters", linux(notes="a" * 2001), "/notes", "too_large"),
    Rule("notes have no control characters", linux(notes="\x1b[2J"), "/notes", "pattern"),
    Rule("what follows success is a closed list", linux(on_success="shutdown"), "/on_success", "enum"),
    Rule("what follows failure is a closed list", linux(on_failure="retry"), "/on_failure", "enum"),
    Rule("a minute at least", linux(timeout_minutes=0), "/timeout_minutes", "out_of_range"),
    Rule("a day at most", linux(timeout_minutes=1441), "/timeout_minutes", "out_of_range"),
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


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_every_example_of_the_docs_is_accepted(path: Path) -> None:
    recipe = check(path.read_bytes())
    assert recipe.plain == json.loads(path.read_bytes())


def test_there_is_an_example_for_every_target() -> None:
    targets = {json.loads(path.read_bytes())["task_target"] for path in EXAMPLES.glob("*.json")}
    assert targets == set(FIELDS["task_target"]["enum"])


@pytest.mark.parametrize(
    "document",
    [
        linux(target_disk="/dev/nvme0n1"),
        linux(target_disk="/dev/disk/by-path/pci-0000:00:17.0-ata-1"),
        linux(target_disk={"wwn": "0x5000c500a1b2c3d4", "min_size": "1T", "max_size": "2TiB", "model": "ACME Größe 1"}),
        linux(oci_url="controller.lan:8080/os-images/demo-rootfs:1"),
        linux(oci_url="10.0.2.2:8080/a/b/c__d-e.f"),
        linux(oci_url="127.0.0.1:5000/a"),
        linux(oci_url="[2001:db8::1]:443/a@sha256:" + "0" * 64),
        linux(user_data={"base64": base64.b64encode(b"\x1f\x8b\0binary").decode()}),
        linux(user_data="a" * 2**20),
        linux(user_data="#cloud-config\nruncmd:\n" + "- ls *.txt && cp * /tmp & wait\n" * 100),
        linux(env={"USER_A": "é x=1 $HOME"}, notes="two\nlines\tand é"),
        linux(timeout_minutes=30.0),
        layout(part(size="1M", type_guid="ef02", format="none"), ROOT),
        layout(ESP, *[part(mountpoint=f"/m{n}") for n in range(62)], ROOT),
        windows_layout(ESP, part(format="ntfs", label="Recovery"), part(format="ntfs", label="Windows")),
        example("windows", image_format="raw-disk", partition_layout=GONE, wim_index=GONE, unattend_xml=GONE),
        example("supermicro-update", firmware_url="http://[2001:db8::1]:8080/a%20b?sig=x&y=(1)"),
    ],
    ids=lambda document: str(document)[:0],
)
def test_what_is_allowed_is_accepted(document: Document) -> None:
    assert accepted(document).plain == document


def test_all_problems_are_told_at_once() -> None:
    document = linux(wipe=False, oci_url="https://x/y", env={"PATH": "x"}, partition_layout=[ROOT], ks_cfg="x")
    found = {(detail.path, detail.code) for detail in refused(document)}
    assert found == {
        ("/wipe", "enum"),
        ("/oci_url", "pattern"),
        ("/env/PATH", "pattern"),
        ("/partition_layout", "conflict"),
        ("/ks_cfg", "conflict"),
    }


def test_no_more_than_fifty_problems_are_told() -> None:
    with pytest.raises(Refused) as caught:
        check(json.dumps(layout(*[part(size="x", label=":")] * 60)).encode())
    assert len(caught.value.details) == MAX_PROBLEMS
    assert "(and 119 more)" in caught.value.message


def test_messages_say_what_is_allowed() -> None:
    def message(document: Document) -> str:
        return refused(document)[0].message

    assert message(linux(task_target="x")).startswith("must be one of install-linux.target, install-windows.target")
    assert "root" in message(linux(env={"PATH": ""}))
    assert "USER_" in message(linux(env={"PATH": ""}))
    assert message(example("esxi", installer_iso=GONE)).startswith(
        "is missing, and install-esxi.target needs it: the plain name"
    )
    assert "did you mean ks_cfg?" in message(linux(ks__cfg="x"))
    assert "without a scheme" in message(linux(oci_url="https://x/y"))
    assert "at most 32" in message(linux(meta_data="a: &a 1\n" + "b: *a\n" * 33))


def test_pointers_begin_where_the_caller_says_and_are_escaped() -> None:
    with pytest.raises(Refused) as caught:
        check(json.dumps(linux(**{"a/b~c": 1})).encode(), at="/recipe")
    assert [detail.path for detail in caught.value.details] == ["/recipe/a~1b~0c"]


def test_defaults_and_kinds() -> None:
    recipe = accepted(linux(on_failure=GONE))
    assert (recipe.target, recipe.kind) == ("install-linux.target", "install")
    assert (recipe.on_success, recipe.on_failure, recipe.timeout_minutes) == ("reboot", "leave", None)
    assert accepted(example("windows")).kind == "install"
    assert accepted(example("esxi")).kind == "esxi"
    assert accepted(example("supermicro-update")).kind == "maintenance"
    minutes = accepted(linux(timeout_minutes=30.0, on_success="power-off")).timeout_minutes
    assert (minutes, type(minutes)) == (30, int)


def test_payloads_become_files_as_they_were_given() -> None:
    binary = bytes(range(256))
    recipe = accepted(
        linux(
            user_data={"base64": base64.b64encode(binary).decode()},
            meta_data="é: 1\r\n",
            network_config={"content": ""},
        )
    )
    files = recipe.files("job-1")
    assert (files["user-data"], files["meta-data"], files["network-config"]) == (binary, "é: 1\r\n".encode(), b"")
    on_medium = json.loads(files["recipe.json"])
    assert [on_medium[name] for name in ("user_data", "meta_data", "network_config")] == [
        {"file": "user-data"},
        {"file": "meta-data"},
        {"file": "network-config"},
    ]
    assert files["recipe.schema.json"] == SCHEMA_BYTES
    assert list(files) == sorted(files)
    assert accepted(example("windows")).files("j")["unattend.xml"].startswith(b"<?xml")
    assert accepted(example("esxi")).files("j")["ks.cfg"].startswith(b"vmaccepteula")
    assert "meta-data" not in accepted(example("esxi")).files("j")


def test_meta_data_is_made_of_the_job_and_the_host_name() -> None:
    made = accepted(linux(hostname="1e3")).files('01"J')["meta-data"]
    assert yaml.safe_load(made) == {"instance-id": '01"J', "local-hostname": "1e3"}
    assert yaml.safe_load(accepted(linux(hostname=GONE)).files("01J")["meta-data"]) == {"instance-id": "01J"}


def test_the_same_recipe_gives_the_same_files() -> None:
    document = linux()
    turned = dict(reversed(document.items()))
    assert accepted(document).files("j") == accepted(turned).files("j")


def test_what_is_shown_holds_no_secret() -> None:
    document = linux(user_data="hunter2", env={"USER_A": "hunter2"}, meta_data={"base64": "aHVudGVyMg=="})
    recipe = accepted(document)
    public = recipe.public()
    assert "hunter2" not in str(public)
    assert "aHVudGVyMg" not in str(public)
    assert public["user_data"] == {"redacted": True, "bytes": 7}
    assert public["meta_data"] == {"redacted": True, "bytes": 7}
    assert public["env"] == {"redacted": True, "bytes": len('{"USER_A":"hunter2"}')}
    assert public["partition_layout"] == document["partition_layout"]
    assert recipe.plain == document
    signed = accepted(example("supermicro-update", firmware_url="https://h/x?sig=hunter2"))
    assert signed.public()["firmware_url"] == "https://h/x?redacted"


def test_a_recipe_that_was_let_in_is_taken_up_again_without_judgement() -> None:
    recipe = accepted(linux())
    assert Recipe.of(recipe.plain) == recipe
    assert Recipe.of({**recipe.plain, "notes": "n" * 5000}).kind == "install"


def test_sizes_are_powers_of_1024() -> None:
    assert [bytes_of(size) for size in ("1K", "3MiB", "2G", "1TiB")] == [1 << 10, 3 << 20, 2 << 30, 1 << 40]


def test_the_schema_is_a_closed_draft_2020_12_schema_with_a_versioned_id() -> None:
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert re.fullmatch(r"https://chargehand\.dev/schemas/recipe/\d+\.\d+/schema\.json", SCHEMA_ID)
    assert SCHEMA["additionalProperties"] is False
    assert SCHEMA["$defs"]["partition"]["additionalProperties"] is False
    assert SCHEMA["$defs"]["payload"]["additionalProperties"] is False
    assert FIELDS["target_disk"]["additionalProperties"] is False


def test_another_validator_agrees_about_every_example_rule_and_file_on_the_medium() -> None:
    """The machine checks the recipe by the same schema with a library of its own."""
    jsonschema = pytest.importorskip("jsonschema", reason="the second validator is not installed")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    other = jsonschema.Draft202012Validator(SCHEMA)
    for path in EXAMPLES.glob("*.json"):
        recipe = check(path.read_bytes())
        assert other.is_valid(recipe.plain), path
        assert other.is_valid(json.loads(recipe.files("job")["recipe.json"])), path
    ours = {
        "conflict",
        "address",
        "too_small",
        "too_large",
        "xml_doctype",
    }  # codes that rules beyond the schema have too
    for rule in RULES:
        if rule.code not in ours:
            # "a\n" passes a Python `$`; nothing that the controller lets in ends like that.
            assert not other.is_valid(rule.document) or "\n" in str(rule.document["target_disk"]), rule.name
