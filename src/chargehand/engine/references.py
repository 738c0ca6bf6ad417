"""What a step takes over of the results of those before it: `"{{install.address}}"` in a string of its payload.

Alone in its string a reference stands for the JSON value; inside of a longer one, for its text. Where a step has no result, that is null
and no text. Payloads are not decoded, so that all
else stays to the letter as it was sent.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from chargehand.engine.flow import FlowStep
from chargehand.engine.job import State

MARK = b"{{"
MAX_BYTES = 16 << 20  # of a payload with all that it takes over

_STRING = re.compile(rb'"((?:[^"\\]|\\.)*)"(\s*:)?')
_REFERENCE = re.compile(rb"\{\{([A-Za-z0-9_-]+)((?:\.[^.{}\"\\\s]+)*)\}\}")
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_array = msgspec.json.Decoder(list[msgspec.Raw])


class Missing(Exception):
    """A step refers to something that a result does not have."""


def references(payload: bytes) -> set[str]:
    """Return the names of the steps that are referred to."""
    if MARK not in payload:
        return set()
    strings = (string[1] for string in _STRING.finditer(payload) if not string[2])
    return {found[1].decode() for string in strings if MARK in string for found in _REFERENCE.finditer(string)}


def filled(payload: bytes, results: Mapping[str, FlowStep]) -> bytes:
    """Return the payload with what it refers to. Raise Missing where that is not there."""
    left = MAX_BYTES - len(payload)

    def fill(string: re.Match[bytes]) -> bytes:
        nonlocal left
        if MARK not in string[1] or string[2]:
            return string[0]
        done = _string_filled(string[1], results)
        left -= len(done)
        if left < 0:
            raise Missing(f"with the results put in, the payload is larger than {MAX_BYTES} bytes")
        return done

    return _STRING.sub(fill, payload)


def _string_filled(string: bytes, results: Mapping[str, FlowStep]) -> bytes:
    if (alone := _REFERENCE.fullmatch(string)) is not None:
        return _value(alone, results) or b"null"
    return b'"' + _REFERENCE.sub(lambda found: _as_text(_value(found, results)), string) + b'"'


def _as_text(value: bytes) -> bytes:
    """Return JSON as what stands inside of a string: a string without its quotes, all else escaped."""
    return value[1:-1] if value.startswith(b'"') else msgspec.json.encode(value.decode())[1:-1]


def _value(reference: re.Match[bytes], results: Mapping[str, FlowStep]) -> bytes:
    """Return JSON, or nothing: of a step that did not succeed, or has not ended, there is no result, whichever it is at this moment."""
    text = reference[0].decode()
    name, *path = text.strip("{}").split(".")
    if name not in results:
        raise Missing(f"{text}: there is no step {name!r}")
    value = _result(results[name])
    for at, key in enumerate(path):
        found = _member(value, key)
        if found is None:
            if results[name].job.state is not State.SUCCEEDED:
                return b""
            raise Missing(f"{text}: the result of step {name!r} has no {'.'.join(path[: at + 1])}")
        value = found
    return value


def _result(step: FlowStep) -> bytes:
    """A step that failed hands on its state and its error, one that has not ended nothing."""
    job = step.job
    if job.state is State.SUCCEEDED:
        return (job.result or b"null").strip()
    return msgspec.json.encode({"state": job.state, "error": job.error}) if job.finished else b""


def _member(value: bytes, key: str) -> bytes | None:
    found: Any = None
    if value.startswith(b"{"):
        found = _object.decode(value).get(key)
    elif value.startswith(b"[") and key.isascii() and key.isdigit() and len(key) < 10:
        items = _array.decode(value)
        found = items[int(key)] if int(key) < len(items) else None
    return None if found is None else bytes(found).strip()
