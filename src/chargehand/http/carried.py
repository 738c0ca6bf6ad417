"""Send answers that contain a large stored value in pieces: whole, they would hold it three times in memory, as text up to ten times."""

from collections.abc import AsyncGenerator, Iterator
from secrets import token_hex
from typing import Any

import msgspec

PIECE = 65_536
_PLACE = f'"{token_hex(16)}"'.encode()  # placeholder for a carried value; random, so that no caller can send it


class Carried:
    """Stored JSON that an answer contains as it is, or as the text of a string."""

    __slots__ = ("_data", "_is_text")

    def __init__(self, data: bytes, is_text: bool) -> None:
        self._data = data
        self._is_text = is_text

    def pieces(self) -> Iterator[bytes]:
        if self._is_text:
            yield b'"'
        for begin in range(0, len(self._data), PIECE):
            piece = self._data[begin : begin + PIECE]
            yield _escaped(piece) if self._is_text else piece
        if self._is_text:
            yield b'"'


def carried_json(data: bytes) -> Any:
    return msgspec.Raw(data) if len(data) <= PIECE else Carried(data, is_text=False)


def carried_text(data: bytes) -> Any:
    """Return a value that encodes as a string with this JSON as its text."""
    return data.decode() if len(data) <= PIECE else Carried(data, is_text=True)


def _escaped(piece: bytes) -> bytes:
    """Escape JSON text for a JSON string. Its only control characters are white space between tokens."""
    piece = piece.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return piece.replace(b"\n", b"\\n").replace(b"\r", b"\\r").replace(b"\t", b"\\t")


def whole(value: Any) -> msgspec.Raw:
    """Encoder hook that puts carried values into the text, for answers that must be in one piece."""
    if isinstance(value, Carried):
        return msgspec.Raw(b"".join(value.pieces()))
    raise NotImplementedError(f"{type(value).__name__} is not JSON")


class CarryingEncoder:
    """Encodes values with a placeholder for each carried value, and returns those separately, in order."""

    def __init__(self) -> None:
        self._found: list[Carried] = []
        self._encoder = msgspec.json.Encoder(enc_hook=self._note)

    def _note(self, value: Any) -> msgspec.Raw:
        if isinstance(value, Carried):
            self._found.append(value)
            return msgspec.Raw(_PLACE)
        raise NotImplementedError(f"{type(value).__name__} is not JSON")

    def encode(self, value: Any) -> tuple[bytes, list[Carried]]:
        try:
            return self._encoder.encode(value), self._found
        finally:
            if self._found:
                self._found = []


async def in_pieces(text: bytes, carried: list[Carried]) -> AsyncGenerator[bytes, None]:
    first, *others = text.split(_PLACE)
    yield first
    for value, text_after in zip(carried, others, strict=True):
        for piece in value.pieces():
            yield piece
        yield text_after
