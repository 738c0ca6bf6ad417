"""Parse server-sent events, as far as our servers use them: name and data. The id of an event is in its data too."""

from typing import NamedTuple

MAX_EVENT = 16 << 20  # a broken server must not fill the memory


class TooLong(ValueError):
    """An event has more than MAX_EVENT bytes."""


class ServerEvent(NamedTuple):
    name: str
    data: bytes


class EventParser:
    """Splits arriving bytes into events. Comments are keep-alives."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = ""
        self._data: list[bytes] = []

    def read(self, arrived: bytes) -> list[ServerEvent]:
        found = []
        *lines, self._rest = (self._rest + arrived).split(b"\n")
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
        if len(self._rest) + sum(map(len, self._data)) > MAX_EVENT:
            raise TooLong(f"an event has more than {MAX_EVENT} bytes")
        return found
