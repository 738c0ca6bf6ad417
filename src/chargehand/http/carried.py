"""Answers that repeat a large value go out by pieces: as one they would hold it three times, as text up to ten times."""

from collections.abc import AsyncGenerator, Iterator
from secrets import token_hex
from typing import Any

import msgspec

PIECE = 65_536
_PLACE = f'"{token_hex(16)}"'.encode()  # where a carried value goes; nobody who sends one knows it


class Carried:
    """JSON that stands in an answer as it is, or as the text of a string."""

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
    """JSON in UTF-8, to be shown as a string."""
    return data.decode() if len(data) <= PIECE else Carried(data, is_text=True)


def _escaped(piece: bytes) -> bytes:
    """JSON has no control characters but those that may stand between its tokens."""
    piece = piece.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return piece.replace(b"\n", b"\\n").replace(b"\r", b"\\r").replace(b"\t", b"\\t")


def whole(value: Any) -> msgspec.Raw:
    """As an encoder's hook: for an answer that has to be in one piece."""
    if isinstance(value, Carried):
        return msgspec.Raw(b"".join(value.pieces()))
    raise NotImplementedError(f"{type(value).__name__} is not JSON")


class Answer:
    """Encodes values; what is carried in one comes out beside the text, in the order of its places."""

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
