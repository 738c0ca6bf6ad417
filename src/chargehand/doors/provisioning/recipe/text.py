"""From the bytes of a recipe to a document: bounded before anything is built of it, and without two meanings.

A JSON parser builds whatever it is given: four megabytes of `[[],[],…` are more than a million objects and half a second
in which the server answers nobody. So the marks of the text are counted first, and the count stops early.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from chargehand.doors.provisioning.refusals import RefusalDetail

MAX_BYTES = 4 << 20
MAX_MARKS = 20_000  # strings, commas and brackets; the largest sensible recipe has about 2,500
MAX_DEPTH = 8
MAX_MEMBERS = 64  # of one object or list; each wrong one costs the validator a copy of all of them
MAX_NAME = 128  # of a member, so that a pointer can always repeat it
LONG = 65_536  # bytes: more than any text may have but those that go onto the task medium
MAX_SHOWN = 60  # characters of a caller's text that a message repeats

# A string is matched to its end, or to the end of the text: never looked at twice, so the scan is linear.
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_MORE_THAN_ASCII = re.compile(rb"[\x80-\xff]|\\u")
# Some kilobytes of a string, and neither a character nor an escape is cut in two.
_UNITS = re.compile(
    rb"(?:[^\\\x80-\xff]{1,64}+|[\x80-\xff][\x80-\xbf]{0,3}+|\\u[dD][89abAB]..\\u....|\\u....|\\.){1,1024}+", re.DOTALL
)
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_WIDE = re.compile(r"[^\x00-\x7f]")


Text = bytes | memoryview


class Unreadable(Exception):
    """Not a document at all, or not one worth building."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.detail = RefusalDetail(path, code, message)


class _Open:
    """A list or an object whose end has not come yet, and where in it the text is."""

    def __init__(self, is_object: bool) -> None:
        self.is_object = self.wants_name = is_object
        self.names: set[str] = set()
        self.at: str | int = 0


def read(text: Text) -> tuple[Any, list[RefusalDetail]]:
    """The document, and the members that are given twice in it: parsers differ in which one they take.

    It is there to be judged: in its long texts (of more than `LONG` bytes) a "?" stands for every character beyond ASCII.
    One such character would make Python keep four bytes for each of a million others.
    """
    twice, long_strings = _scan(text)
    try:
        document = msgspec.json.decode(_narrowed(text, long_strings) if long_strings else text)
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


def _scan(text: Text) -> tuple[list[RefusalDetail], list[slice]]:
    """Members that are given twice, and where the long strings are that have more than ASCII. Nothing is built of the text:
    what comes out is meant for JSON, and is thrown away if the text turns out to be none.
    """
    if len(text) > MAX_BYTES:
        raise Unreadable("too_large", f"has {len(text)} bytes; at most {MAX_BYTES} are read")
    containers: list[_Open] = []
    twice: dict[str, RefusalDetail] = {}
    long_strings: list[slice] = []
    for count, mark in enumerate(_MARKS.finditer(text)):
        if count >= MAX_MARKS:
            raise Unreadable("too_large", f"has more than {MAX_MARKS} strings, commas and brackets")
        begin, end = mark.span()
        byte, inner = text[begin], containers[-1] if containers else None
        if byte in b"[{":
            containers.append(_Open(byte in b"{"))
            if len(containers) > MAX_DEPTH:
                raise Unreadable("too_deep", f"is nested deeper than {MAX_DEPTH} levels")
        elif byte in b'"':
            if end - begin > LONG and _MORE_THAN_ASCII.search(text, begin, end):
                long_strings.append(slice(begin, end))
            if inner is not None and inner.wants_name:
                inner.at = name = _name(text[begin:end])
                inner.wants_name = False
                if name in inner.names:
                    at = pointer(*(container.at for container in containers))
                    twice[at] = RefusalDetail(at, "duplicate", "is given more than once; give it once")
                inner.names.add(name)
        elif inner is not None and byte in b",":
            inner.wants_name = inner.is_object
            inner.at = inner.at + 1 if isinstance(inner.at, int) else inner.at
        elif inner is not None:
            containers.pop()
    return sorted(twice.values(), key=lambda detail: detail.path.count("/")), long_strings


def _name(text: Text) -> str:
    """Of a member. One that is too long is refused later, and need not be told from others."""
    try:
        return msgspec.json.decode(text, type=str) if len(text) <= LONG else ""
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _narrowed(text: Text, long_strings: list[slice]) -> bytearray:
    """The text with nothing but ASCII in those strings, and as many characters in each as before."""
    narrow, done = bytearray(), 0
    for place in long_strings:
        narrow += text[done : place.start]
        narrow += b'"'
        for piece in texts(text[place]):
            narrow += memoryview(msgspec.json.encode(ascii_only(piece)))[1:-1]
        narrow += b'"'
        done = place.stop
    narrow += text[done:]
    return narrow


def texts(string: Text) -> Iterator[str]:
    """What a string of JSON says, by pieces that are small however wide their characters are."""
    for piece in _UNITS.finditer(string, 1, len(string) - 1):
        yield msgspec.json.decode(b'"%b"' % piece[0], type=str)


def ascii_only(text: str) -> str:
    """As many characters. Spaces stay spaces, for a name in YAML ends there."""
    return text if text.isascii() else _WIDE.sub("?", _WIDE_SPACE.sub(" ", text))


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


def _containers(value: Any, at: str) -> Iterator[tuple[str, dict[str, Any] | list[Any]]]:
    if isinstance(value, dict | list):
        yield at, value
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _containers(member, at + pointer(name))
