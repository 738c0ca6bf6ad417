"""Generate hostile bodies from the type with which a route decodes its body."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec.inspect import DictType, ListType, Metadata, StructType, Type, UnionType, VarTupleType, type_info

from chargehand.http.route import Route

Path = tuple[str, ...]  # the names from the body down to a value; "*" is an item of a list

# Other fields that must be valid so that a value is read, by the last part of the route's path.
RIGHT: dict[str, dict[str, Any]] = {
    "/engine/jobs": {"queue": "hostile", "payload": 1},
    "/engine/claims": {"queues": ["nothing-here"]},
    "/jobs": {"model": "m", "prompt": "hello"},
    "/v1/codeq/tasks": {"command": "hostile", "payload": 1},
    "/v1/codeq/schedules": {"name": "s", "cron": "0 0 1 1 *", "command": "c", "payload": 1},
    "/v1/batches": {"input_file_id": "file-0", "endpoint": "/v1/embeddings", "completion_window": "24h"},
    "/api/v1/jobs": {"server_serial": "SN-1", "recipe": {}},
    "stage": {"stage": "on-its-way"},
    "advance": {"stage": "on-its-way"},
    "note": {"message": "hello"},
    "retry": {"error": "broke"},
    "fail": {"error": "broke"},
    "result": {"status": "COMPLETED", "result": {}},
    "unload": {"model": "m"},
    "{server_serial}": {"bmc_address": "http://127.0.0.1:1"},
}


def right(route: Route) -> dict[str, Any]:
    """Return the other fields of the body, without which the route would not read a field."""
    body = dict(RIGHT.get(route.path) or RIGHT.get(route.path.rpartition("/")[2]) or {})
    if route.path.startswith("/engine/jobs/"):
        body["lease"] = 1
    return body


@cache
def values(size: int) -> list[tuple[str, bytes]]:
    """Yield JSON values of about this size, and invalid JSON."""
    return list(_values(size))


def _values(size: int) -> Iterator[tuple[str, bytes]]:

    def repeated(item: bytes) -> bytes:
        return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"

    keys = size // 12
    yield "a long text", b'"' + b"x" * size + b'"'
    yield "a long text with an emoji", b'"' + "😀".encode() + b"x" * size + b'"'
    yield "a long text with an escaped emoji", b'"\\ud83d\\ude00' + b"x" * size + b'"'
    yield "a text of escapes", b'"' + b"\\u0041" * (size // 6) + b'"'
    yield "a text of NULs", b'"' + b"\\u0000" * (size // 6) + b'"'
    yield "half an emoji", b'"' + b"\\ud83d" * (size // 6) + b'"'
    yield "no UTF-8", b'"' + b"\xff" * size + b'"'
    for item in (b"[]", b"{}", b'""', b"0", b'"queued"', b"null"):
        yield f"a long list of {item.decode()}", repeated(item)
    yield "a list in a list in a list", b"[" * (size // 2) + b"]" * (size // 2)
    yield "an object in an object", b'{"a":' * (size // 6) + b"1" + b"}" * (size // 6)
    yield "many keys", b"{" + b",".join(b'"k%07d":1' % number for number in range(keys)) + b"}"
    yield "one key, many times", b"{" + b",".join([b'"k":1'] * (size // 6)) + b"}"
    yield "one long key", b'{"' + b"k" * size + b'":1}'
    yield "a number of many digits", b"1" * size
    yield "a negative number of many digits", b"-" + b"1" * size
    yield "a fraction of many digits", b"0." + b"1" * size
    yield "an exponent of many digits", b"1e" + b"1" * size
    yield "a number beyond all", b"1e400"
    yield "minus zero", b"-0"
    yield "not a number", b"NaN"
    yield "infinity", b"-Infinity"
    yield "blanks", b" " * size + b"1"


def places(route: Route) -> list[Path]:
    """Yield the path of every value in a body of the route's type, also nested ones."""
    return [] if route.request is None else list(_places(type_info(route.request), ()))


def _places(info: Type, above: Path) -> Iterator[Path]:
    if len(above) > 4:
        return
    match info:
        case Metadata(type=inner):
            yield from _places(inner, above)
        case UnionType(types=types):
            for each in types:
                yield from _places(each, above)
        case StructType(fields=fields):
            for field in fields:
                yield (*above, field.encode_name)
                yield from _places(field.type, (*above, field.encode_name))
        case ListType(item_type=item) | VarTupleType(item_type=item):
            yield (*above, "*")
            yield from _places(item, (*above, "*"))
        case DictType(value_type=item):
            yield from _places(item, (*above, "key"))


def at(place: Path, value: bytes, body: dict[str, Any]) -> bytes:
    """Return the body with the value at its path."""
    rest = msgspec.json.encode({name: each for name, each in body.items() if name != place[0]})[1:-1]
    for name in reversed(place):
        value = b"[" + value + b"]" if name == "*" else b"{" + msgspec.json.encode(name) + b":" + value + b"}"
    return value[:-1] + (b"," + rest if rest else b"") + b"}"


def filled(path: str, known: dict[str, str]) -> str:
    return re.sub(r"\{(\w+).*?\}", lambda field: known.get(field[1], "x"), path)
