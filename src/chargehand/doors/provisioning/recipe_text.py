"""From the bytes of a recipe to a document: bounded before anything is built of it, and without two meanings.

A JSON parser builds whatever it is given: four megabytes of `[[],[],…` are more than a million objects and half a second
in which the server answers nobody. So the marks of the text are counted first, and the count stops early.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec

from chargehand.doors.provisioning.errors import Detail

MAX_BYTES = 4 << 20
MAX_MARKS = 20_000  # strings, commas and brackets; the largest sensible recipe has about 2,500
MAX_DEPTH = 8
MAX_MEMBERS = 64  # of one object or list; each wrong one costs the validator a copy of all of them
MAX_NAME = 128  # of a member, so that a pointer can always repeat it
MAX_SHOWN = 60  # characters of a caller's text that a message repeats

# A string is matched to its end, or to the end of the text: never looked at twice, so the scan is linear.
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)


Text = bytes | memoryview


class Unreadable(Exception):
    """Not a document at all, or not one worth building."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.detail = Detail(path, code, message)


def read(text: Text) -> tuple[Any, list[Detail]]:
    """The document, and the members that are given twice in it: parsers differ in which one they take."""
    _check_bounds(text)
    twice = _duplicates(text)  # first, so that what it takes is free again
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        # Of a UnicodeDecodeError only its name: its text repeats a byte of what may be a secret.
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"is not JSON: {error}"
        raise Unreadable("syntax", reason) from None
    for at, members in _containers(document, ""):
        if len(members) > MAX_MEMBERS:
            what = "members" if isinstance(members, dict) else "entries"
            raise Unreadable("too_large", f"has {len(members)} {what}; none has more than {MAX_MEMBERS}", at)
        longest = max(map(len, members), default=0) if isinstance(members, dict) else 0
        if longest > MAX_NAME:
            raise Unreadable("too_large", f"has a member whose name has {longest} characters, more than {MAX_NAME}", at)
    return document, twice


def _duplicates(text: Text) -> list[Detail]:
    twice: dict[int, tuple[dict[str, Any], list[str]]] = {}  # by identity, and held so that none is used again

    def hook(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) != len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice[id(members)] = members, [name for name, count in counts.items() if count > 1]
        return members

    try:
        document = json.loads(str(text, "utf-8"), object_pairs_hook=hook)
    except ValueError:
        return []  # what is wrong with it is said by who reads it next
    # An object that was itself overwritten by its twin is not met on the way, but the twin is told.
    return [
        Detail(at + pointer(name), "duplicate", "is given more than once; give it once")
        for at, members in (_containers(document, "") if twice else ())
        for name in twice.get(id(members), (members, []))[1]
    ]


def pointer(*segments: str | int) -> str:
    """RFC 6901."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in segments)


def shown(value: object) -> str:
    """A caller's value for a message, or nothing where it is long."""
    if isinstance(value, str):
        return ascii(value) if len(value) <= MAX_SHOWN else f"a text of {len(value)} characters"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else "a number that long"


def _check_bounds(text: Text) -> None:
    if len(text) > MAX_BYTES:
        raise Unreadable("too_large", f"has {len(text)} bytes; at most {MAX_BYTES} are read")
    depth = 0
    for count, mark in enumerate(_MARKS.finditer(text)):
        if count >= MAX_MARKS:
            raise Unreadable("too_large", f"has more than {MAX_MARKS} strings, commas and brackets")
        byte = text[mark.start()]
        if byte in b"[{":
            depth += 1
        elif byte in b"]}":
            depth -= 1
        if depth > MAX_DEPTH:
            raise Unreadable("too_deep", f"is nested deeper than {MAX_DEPTH} levels")


def _containers(value: Any, at: str) -> Iterator[tuple[str, dict[str, Any] | list[Any]]]:
    if isinstance(value, dict | list):
        yield at, value
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _containers(member, at + pointer(name))
