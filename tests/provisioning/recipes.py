"""Recipes for tests: the examples of the docs, with changes."""

import json
from pathlib import Path
from typing import Any

import pytest

from chargehand.doors.provisioning.recipe.recipe import Recipe, check
from chargehand.doors.provisioning.refusals import ProvisioningRefused, RefusalDetail

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "recipes"
GONE = object()  # as a value: the member is removed

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


def refused(document: Any) -> list[RefusalDetail]:
    with pytest.raises(ProvisioningRefused) as caught:
        check(document if isinstance(document, bytes) else json.dumps(document).encode())
    assert (caught.value.http_status, caught.value.key) == (400, "validation.schema")
    return list(caught.value.details)


def accepted(document: Document) -> Recipe:
    return check(json.dumps(document).encode())
