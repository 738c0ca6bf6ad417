"""Decode the text of a recipe into a document. Check its limits before the decoder runs, and find duplicate members.

Four megabytes of `[[],[],…` decode to more than a million objects, which takes half a second, and the server answers nobody
meanwhile. So the strings, commas and brackets of the text are counted first, up to a limit.
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
MAX_MEMBERS = 64  # of one object or list: for each wrong member the validator copies all of them
MAX_NAME = 128  # characters of a member's name, so that every pointer can contain it
LONG = 65_536  # bytes: only payloads, which go onto the task medium, may be longer
MAX_SHOWN = 60  # characters of a caller's text that a message repeats

# A string is matched to its end, or to the end of the text, without backtracking, so the scan takes linear time.
_MARKS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_MORE_THAN_ASCII = re.compile(rb"[\x80-\xff]|\\u")
# Matches some kilobytes of a string, and splits neither a character nor an escape sequence.
_UNITS = re.compile(
    rb"(?:[^\\\x80-\xff]{1,64}+|[\x80-\xff][\x80-\xbf]{0,3}+|\\u[dD][89abAB]..\\u....|\\u....|\\.){1,1024}+", re.DOTALL
)
_WIDE_SPACE = re.compile(r"[^\S\x00-\x7f]")
_WIDE = re.compile(r"[^\x00-\x7f]")


Text = bytes | memoryview


class Unreadable(Exception):
    """The text is not JSON, or exceeds a limit."""

    def __init__(self, code: str, message: str, path: str = "") -> None:
        super().__init__(message)
        self.detail = RefusalDetail(path, code, message)


class _Open:
    """A list or an object that the scan is inside of; `at` is the current index or member."""

    def __init__(self, is_object: bool) -> None:
        self.is_object = self.wants_name = is_object
        self.names: set[str] = set()
        self.at: str | int = 0


def read(text: Text) -> tuple[Any, list[RefusalDetail]]:
    """Return the document and its duplicate members, which are errors: parsers differ in which one they use.

    The document is only for checks: in texts of more than `LONG` bytes, every character beyond ASCII is replaced by "?".
    With a single such character Python would store the whole text with up to four bytes for each character.
    """
    twice, long_strings = _scan(text)
    try:
        document = msgspec.json.decode(_narrowed(text, long_strings) if long_strings else text)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        # The text of a UnicodeDecodeError is not shown: it repeats a byte of what may be a secret.
        reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else f"is not JSON: {error}"
        raise Unreadable("syntax", reason) from None
    for at, members in _containers(document, ""):
        if len(members) > MAX_MEMBERS:
            what = "members" if isinstance(members, dict) else "entries"
            raise Unreadable("too_large", f"has {len(members)} {what}; at most {MAX_MEMBERS} are allowed", at)
        longest = max(map(len, members), default=0) if isinstance(members, dict) else 0
        if longest > MAX_NAME:
            raise Unreadable("too_large", f"has a member name of {longest} characters; the limit is {MAX_NAME}", at)
    return document, twice


def _scan(text: Text) -> tuple[list[RefusalDetail], list[slice]]:
    """Return the duplicate members, and the positions of long strings with characters beyond ASCII. The text is not decoded:
    if it is not JSON, the result means nothing, and the decoder refuses the text afterwards.
    """
    if len(text) > MAX_BYTES:
        raise Unreadable("too_large", f"has {len(text)} bytes; at most {MAX_BYTES} are allowed")
    containers: list[_Open] = []
    twice: dict[str, RefusalDetail] = {}
    long_strings: list[slice] = []
    for count, mark in enumerate(_MARKS.finditer(text)):
        if count >= MAX_MARKS:
            raise Unreadable("too_large", f"has more than {MAX_MARKS} strings, commas and brackets in all")
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
    """Return the name of a member; "" for one that is too long or invalid, which is refused later."""
    try:
        return msgspec.json.decode(text, type=str) if len(text) <= LONG else ""
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _narrowed(text: Text, long_strings: list[slice]) -> bytearray:
    """Return the text with those strings reduced to ASCII. Each keeps its number of characters."""
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
    """Yield the decoded text of a JSON string in pieces, so that wide characters take little memory."""
    for piece in _UNITS.finditer(string, 1, len(string) - 1):
        yield msgspec.json.decode(b'"%b"' % piece[0], type=str)


def ascii_only(text: str) -> str:
    """Replace each character beyond ASCII by "?", and each space beyond ASCII by a space, because it ends a name in YAML."""
    return text if text.isascii() else _WIDE.sub("?", _WIDE_SPACE.sub(" ", text))


def pointer(*segments: str | int) -> str:
    """Return the JSON pointer (RFC 6901)."""
    return "".join("/" + str(segment).replace("~", "~0").replace("/", "~1") for segment in segments)


def shown(value: object) -> str:
    """Return a caller's value for a message; for a long one, only what it is."""
    if isinstance(value, str):
        return ascii(value) if len(value) <= MAX_SHOWN else f"a text of {len(value)} characters"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    text = json.dumps(value)
    return text if len(text) <= MAX_SHOWN else f"a number of {len(text)} characters"


def _containers(value: Any, at: str) -> Iterator[tuple[str, dict[str, Any] | list[Any]]]:
    if isinstance(value, dict | list):
        yield at, value
        for name, member in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _containers(member, at + pointer(name))
