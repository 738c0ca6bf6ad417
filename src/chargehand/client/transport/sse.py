"""Server-sent events out of the bytes of a stream, as far as our own servers send them: what each is called, and its data. The
number of an event is in its data too.
"""

from typing import NamedTuple

MAX_EVENT = 16 << 20  # only so that a broken server cannot fill the memory


class TooLong(ValueError):
    """An event does not end."""


class ServerEvent(NamedTuple):
    name: str
    data: bytes


class Events:
    """Cuts what arrives into events. Comments are signs of life."""

    def __init__(self) -> None:
        self._begun = b""
        self._name = ""
        self._data: list[bytes] = []

    def read(self, arrived: bytes) -> list[ServerEvent]:
        found = []
        *lines, self._begun = (self._begun + arrived).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif name == b"event":
                self._name = value.removeprefix(b" ").decode("utf-8", "replace")
            elif not name and not value:
                if self._data:
                    found.append(ServerEvent(self._name, b"\n".join(self._data)))
                self._name, self._data = "", []
        if len(self._begun) + sum(map(len, self._data)) > MAX_EVENT:
            raise TooLong("an event does not end")
        return found
