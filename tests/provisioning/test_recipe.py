"""Recipes: what is accepted, the messages of refusals, and the files made from a recipe."""

import base64
import json
import re
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from chargehand.doors.provisioning.media.contents import recipe_files
from chargehand.doors.provisioning.recipe.partitions import bytes_of
from chargehand.doors.provisioning.recipe.recipe import MAX_PROBLEMS, Recipe, check, judge
from chargehand.doors.provisioning.recipe.schema import FIELDS, SCHEMA, SCHEMA_BYTES, SCHEMA_ID
from chargehand.doors.provisioning.refusals import ProvisioningRefused
from tests.provisioning.recipes import (
    ESP,
    EXAMPLES,
    GONE,
    ROOT,
    Document,
    accepted,
    example,
    layout,
    linux,
    part,
    refused,
    windows_layout,
)


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
def test_every_allowed_form_is_accepted(document: Document) -> None:
    assert accepted(document).plain == document


def test_all_problems_are_reported_at_once() -> None:
    document = linux(wipe=False, oci_url="https://x/y", env={"PATH": "x"}, partition_layout=[ROOT], ks_cfg="x")
    found = {(detail.path, detail.code) for detail in refused(document)}
    assert found == {
        ("/wipe", "enum"),
        ("/oci_url", "pattern"),
        ("/env/PATH", "pattern"),
        ("/partition_layout", "conflict"),
        ("/ks_cfg", "conflict"),
    }


def test_at_most_fifty_problems_are_reported() -> None:
    with pytest.raises(ProvisioningRefused) as caught:
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


def test_pointers_begin_at_the_given_path_and_are_escaped() -> None:
    with pytest.raises(ProvisioningRefused) as caught:
        check(json.dumps(linux(**{"a/b~c": 1})).encode(), at="/recipe")
    assert [detail.path for detail in caught.value.details] == ["/recipe/a~1b~0c"]


def test_a_recipe_has_defaults_and_the_kind_of_its_target() -> None:
    recipe = accepted(linux(on_failure=GONE))
    assert (recipe.target, recipe.kind) == ("install-linux.target", "install")
    assert (recipe.on_success, recipe.on_failure, recipe.timeout_minutes) == ("reboot", "leave", None)
    assert accepted(example("windows")).kind == "install"
    assert accepted(example("esxi")).kind == "esxi"
    assert accepted(example("supermicro-update")).kind == "maintenance"
    minutes = accepted(linux(timeout_minutes=30.0, on_success="power-off")).timeout_minutes
    assert (minutes, type(minutes)) == (30, int)


def test_payloads_become_files_unchanged() -> None:
    binary = bytes(range(256))
    recipe = accepted(
        linux(
            user_data={"base64": base64.b64encode(binary).decode()},
            meta_data="é: 1\r\n",
            network_config={"content": ""},
        )
    )
    files = recipe_files(recipe, "job-1")
    assert (files["user-data"], files["meta-data"], files["network-config"]) == (binary, "é: 1\r\n".encode(), b"")
    on_medium = json.loads(files["recipe.json"])
    assert [on_medium[name] for name in ("user_data", "meta_data", "network_config")] == [
        {"file": "user-data"},
        {"file": "meta-data"},
        {"file": "network-config"},
    ]
    assert files["recipe.schema.json"] == SCHEMA_BYTES
    assert list(files) == sorted(files)
    assert recipe_files(accepted(example("windows")), "j")["unattend.xml"].startswith(b"<?xml")
    assert recipe_files(accepted(example("esxi")), "j")["ks.cfg"].startswith(b"vmaccepteula")
    assert "meta-data" not in recipe_files(accepted(example("esxi")), "j")


def test_meta_data_is_made_of_the_job_and_the_host_name() -> None:
    made = recipe_files(accepted(linux(hostname="1e3")), '01"J')["meta-data"]
    assert yaml.safe_load(made) == {"instance-id": '01"J', "local-hostname": "1e3"}
    assert yaml.safe_load(recipe_files(accepted(linux(hostname=GONE)), "01J")["meta-data"]) == {"instance-id": "01J"}


def test_the_same_recipe_gives_the_same_files() -> None:
    document = linux()
    turned = dict(reversed(document.items()))
    assert recipe_files(accepted(document), "j") == recipe_files(accepted(turned), "j")


def test_the_public_part_of_a_recipe_contains_no_secret() -> None:
    document = linux(user_data="hunter2", env={"USER_A": "hunter2"}, meta_data={"base64": "aHVudGVyMg=="})
    recipe = accepted(document)
    public = judge(json.dumps(document).encode()).plain
    assert "hunter2" not in str(public)
    assert "aHVudGVyMg" not in str(public)
    assert public["user_data"] == {"redacted": True, "bytes": 7}
    assert public["meta_data"] == {"redacted": True, "bytes": 7}
    assert public["env"] == {"redacted": True, "bytes": len('{"USER_A":"hunter2"}')}
    assert public["partition_layout"] == document["partition_layout"]
    assert recipe.plain == document
    signed = example("supermicro-update", firmware_url="https://h/x?sig=hunter2")
    assert judge(json.dumps(signed).encode()).plain["firmware_url"] == "https://h/x?redacted"


def test_a_stored_recipe_is_read_without_being_checked_again() -> None:
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
