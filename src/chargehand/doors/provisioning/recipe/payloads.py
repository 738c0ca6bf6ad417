"""Payloads: the parts of a recipe that go to the machine unchanged, within limits.

The checks refuse what could harm the program on the machine that reads them: control characters in text, XML that declares entities, and
YAML that grows when it is parsed.
"""

import base64
import codecs
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from chargehand.doors.provisioning.recipe.schema import FIELDS, PAYLOADS
from chargehand.doors.provisioning.recipe.text import LONG, Text, ascii_only, pointer, texts
from chargehand.doors.provisioning.refusals import RefusalDetail

# Field -> file on the task medium, and field -> limit in bytes, both from the schema.
FILES: dict[str, str] = {name: FIELDS[name]["properties"]["file"]["const"] for name in PAYLOADS}
_Given = msgspec.defstruct("_Given", [(name, msgspec.Raw, msgspec.Raw(b"")) for name in FILES])
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
LIMITS: dict[str, int] = {name: FIELDS[name]["maxLength"] for name in FILES}

MAX_ALIASES = 32
MAX_ANCHORS = 10_000

# Matches `&name` and `*name` anywhere, also in quotes and scripts: more than a YAML parser would find, and never fewer.
# A name ends where PyYAML ends it.
_ANCHORS_AND_ALIASES = re.compile(rb"([&*])([A-Za-z0-9_-]+|[^\s\x1c-\x1f,\[\]{}&*]+)")


def content(value: str | Mapping[str, str]) -> bytes:
    """Return the bytes of a payload that was checked before."""
    if isinstance(value, str):
        return value.encode()
    if "base64" in value:
        return base64.b64decode(value["base64"], validate=True)
    return value["content"].encode()


def payload_sizes(recipe: Text, payloads: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of each payload in bytes, from the recipe's own text: in the document, long texts were reduced to ASCII."""
    given = msgspec.json.decode(recipe, type=_Given)
    return {name: _size(value, getattr(given, name)) for name, value in payloads.items()}


def _size(value: str | Mapping[str, str], raw: msgspec.Raw) -> int:
    if isinstance(value, Mapping):
        if "content" not in value:
            encoded = value.get("base64", "")
            return len(encoded) // 4 * 3 - encoded[-2:].count("=")
        raw = _members.decode(raw)["content"]
    return sum(len(piece.encode()) for piece in texts(memoryview(raw)))


def payload_problems(payloads: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[RefusalDetail]:
    for name, value in payloads.items():
        yield from _problems_of(name, value, sizes[name])


def _problems_of(name: str, value: Any, size: int) -> Iterator[RefusalDetail]:
    at = pointer(name)
    if isinstance(value, dict) and "file" in value:
        yield RefusalDetail(
            at + "/file", "conflict", "is set by the controller, on the task medium; give content or base64"
        )
        return
    if size > LIMITS[name]:
        yield RefusalDetail(at, "too_large", f"has {size} bytes; at most {LIMITS[name]} are allowed")
        return
    try:
        text = searchable(value)
    except ValueError:
        yield RefusalDetail(at + "/base64", "pattern", "is not base64")
        return
    if name == "unattend_xml" and (b"<!DOCTYPE" in text or b"<!ENTITY" in text):
        yield RefusalDetail(
            at, "xml_doctype", "has a document type or entities, which can grow without bound; leave them out"
        )
    if name in ("meta_data", "network_config") or (name == "user_data" and b"#cloud-config" in text):
        used = aliases(text)
        if used > MAX_ALIASES:
            yield RefusalDetail(
                at,
                "yaml_aliases",
                f"has {used} aliases (*name) of YAML anchors (&name); at most {MAX_ALIASES} are allowed, because "
                f"aliases of aliases grow without bound. Write the values out; put a script that only looks like this into write_files with encoding b64",
            )


def searchable(value: str | Mapping[str, str]) -> bytes | bytearray:
    """Return a payload with every character beyond ASCII replaced: piece by piece, since a str takes up to four times its bytes."""
    if isinstance(value, str):
        return ascii_only(value).encode()
    if "base64" not in value:
        return ascii_only(value["content"]).encode()
    encoded, decoder, found = value["base64"], codecs.getincrementaldecoder("utf-8")("replace"), bytearray()
    for begin in range(0, len(encoded), LONG):
        found += ascii_only(decoder.decode(base64.b64decode(encoded[begin : begin + LONG], validate=True))).encode()
    return found


def aliases(text: bytes | bytearray) -> int:
    """Count the aliases of names that have an anchor somewhere: a `*.txt` in a script has none. With more than MAX_ANCHORS
    anchors, every alias counts.
    """
    anchors: set[bytes] = set()
    for found in _ANCHORS_AND_ALIASES.finditer(text):
        if found[1] == b"&" and len(anchors) <= MAX_ANCHORS:
            anchors.add(found[2])
    every = len(anchors) > MAX_ANCHORS
    # A second pass, so that nothing is kept that grows with the text.
    return sum(found[1] == b"*" and (every or found[2] in anchors) for found in _ANCHORS_AND_ALIASES.finditer(text))
