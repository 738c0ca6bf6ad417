"""Which headers and media types pass between a caller and a target: no more than a model's answer needs.

A target is trusted with prompts, but not with the caller's browser: a header or a type that is not listed here is dropped.
"""

import re
from collections.abc import Mapping
from urllib.parse import quote

from chargehand.errors import InvalidField
from chargehand.http.request import Request
from chargehand.http.response import Response

TYPES = frozenset(
    [
        "application/json",
        "application/problem+json",
        "application/x-ndjson",
        "application/jsonl",
        "text/event-stream",
        "text/plain",
        "application/octet-stream",
    ]
)
OTHER_TYPE = "application/octet-stream"  # replaces every other type: a browser neither runs nor shows it
TO_CALLER = frozenset(["content-length", "content-encoding", "retry-after", "request-id", "x-request-id"])
TO_TARGET = ("content-type", "accept", "user-agent")  # never our tokens or cookies
MAX_VALUE = 1000

_TYPE = re.compile(r"([a-z0-9.+/-]{1,100})\s*(?:;\s*charset=\"?(utf-8)\"?\s*)?", re.IGNORECASE)


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a target that its caller gets."""
    given = {name.lower(): value for name, value in headers.items()}
    kept = {name: value for name, value in given.items() if name in TO_CALLER and _is_plain(value)}
    return {"content-type": media_type(given.get("content-type", "")), **kept}


def _is_plain(value: str) -> bool:
    return len(value) <= MAX_VALUE and value.isascii() and value.isprintable()


def media_type(given: str) -> str:
    """Return the type as the target wrote it, if it is in TYPES with at most a charset."""
    match = _TYPE.fullmatch(given.strip()) if len(given) <= MAX_VALUE else None
    if match is not None and match[1].lower() in TYPES:
        return given.strip()
    base = given[:MAX_VALUE].partition(";")[0].strip().lower()
    return base if base in TYPES else OTHER_TYPE


def write_head(resp: Response, status: int, headers: Mapping[str, str]) -> None:
    resp.status = status if 200 <= status <= 599 else 502
    for name, value in headers.items():
        resp.set_header(name, value)


def request_headers(req: Request) -> dict[str, str]:
    return {name: value for name in TO_TARGET if (value := req.get_header(name)) is not None}


def path_below(prefix: str, field: str, name: str) -> str:
    """Return the path of a name that a caller gave. It stays below the prefix however often it is decoded."""
    parts = name.split("/")
    if any(part in ("", ".", "..") or "%" in part or "\\" in part or not part.isprintable() for part in parts):
        raise InvalidField(field, "must be a name: no empty part, not . or .. between slashes, no % and no backslash")
    return prefix + "/".join(quote(part, safe=":@") for part in parts)
