"""What a step takes over of the results of those before it: `"{{install.address}}"` in a string of its payload.

Alone in its string a reference stands for the JSON value; inside of a longer one, for its text. Where a step has no result, that is null
and no text. Payloads are not decoded, so that all
else stays to the letter as it was sent.
"""

import re
from collections.abc import Iterator, Mapping
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
    return {found[1].decode() for found in _found(payload)}


def _found(payload: bytes) -> Iterator[re.Match[bytes]]:
    if MARK in payload:
        for string in _STRING.finditer(payload):
            if MARK in string[1] and not string[2]:
                yield from _REFERENCE.finditer(string[1])


class Filling:
    """A payload, and what it takes over: taken of one step after the other, since all their results together may be any size."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._wanted: dict[str, dict[bytes, re.Match[bytes]]] = {}
        self._values: dict[bytes, bytes] = {}
        self._taken = 0
        for found in _found(payload):
            self._wanted.setdefault(found[1].decode(), {})[found[0]] = found

    @property
    def names(self) -> tuple[str, ...]:
        """The steps that are referred to."""
        return tuple(sorted(self._wanted))

    def take(self, step: FlowStep) -> None:
        """Take over what is wanted of the step. Raise Missing where it has not that, or all together is too much."""
        for reference, found in self._wanted[step.name].items():
            self._values[reference] = value = _value(found, step)
            self._taken += len(value)
            if self._taken > MAX_BYTES:
                raise _too_large()

    def filled(self) -> bytes:
        """Return the payload with all that was taken. Raise Missing where something was not there."""
        left = MAX_BYTES - len(self._payload)

        def fill(string: re.Match[bytes]) -> bytes:
            nonlocal left
            if MARK not in string[1] or string[2]:
                return string[0]
            done = self._string_filled(string[1])
            left -= len(done)
            if left < 0:
                raise _too_large()
            return done

        return _STRING.sub(fill, self._payload)

    def _string_filled(self, string: bytes) -> bytes:
        if (alone := _REFERENCE.fullmatch(string)) is not None:
            return self._value_of(alone) or b"null"
        return b'"' + _REFERENCE.sub(lambda found: _as_text(self._value_of(found)), string) + b'"'

    def _value_of(self, reference: re.Match[bytes]) -> bytes:
        if (value := self._values.get(reference[0])) is None:
            raise Missing(f"{reference[0].decode()}: there is no step {reference[1].decode()!r}")
        return value


def portions(lengths: Mapping[str, int]) -> Iterator[tuple[str, ...]]:
    """Divide steps by the lengths of their results into as many as may be held in memory; one that is too long stands alone."""
    portion: list[str] = []
    size = 0
    for name, length in lengths.items():
        if portion and size + length > MAX_BYTES:
            yield tuple(portion)
            portion, size = [], 0
        portion.append(name)
        size += length
    if portion:
        yield tuple(portion)


def _too_large() -> Missing:
    return Missing(f"with the results put in, the payload is larger than {MAX_BYTES} bytes")


def _as_text(value: bytes) -> bytes:
    """Return JSON as what stands inside of a string: a string without its quotes, all else escaped."""
    return value[1:-1] if value.startswith(b'"') else msgspec.json.encode(value.decode())[1:-1]


def _value(reference: re.Match[bytes], step: FlowStep) -> bytes:
    """Return JSON, or nothing: of a step that did not succeed, or has not ended, there is no result, whichever it is at this moment."""
    text = reference[0].decode()
    name, *path = text.strip("{}").split(".")
    value = _result(step)
    for at, key in enumerate(path):
        found = _member(value, key)
        if found is None:
            if step.job.state is not State.SUCCEEDED:
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
