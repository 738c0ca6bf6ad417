"""Server-sent events out of the bytes of a stream, as far as our own servers send them: only their data is of interest, for the
number of an event is in it too.
"""

MAX_EVENT = 16 << 20  # only so that a broken server cannot fill the memory


class TooLong(ValueError):
    """An event does not end."""


class Events:
    """Cuts what arrives into the data of events. Comments are signs of life."""

    def __init__(self) -> None:
        self._begun = b""
        self._data: list[bytes] = []

    def read(self, arrived: bytes) -> list[bytes]:
        found = []
        *lines, self._begun = (self._begun + arrived).split(b"\n")
        for line in lines:
            name, _, value = line.removesuffix(b"\r").partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not name and not value and self._data:
                found.append(b"\n".join(self._data))
                self._data = []
        if len(self._begun) + sum(map(len, self._data)) > MAX_EVENT:
            raise TooLong("an event does not end")
        return found
