"""Read the header of a GGUF file, without the weights."""

import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, Final

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING: Final = 8
_ARRAY: Final = 9
# fmt: off
_FILE_TYPES: Final = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}
# fmt: on


class NotGguf(Exception):
    """The file is not a GGUF file, or its header is truncated."""


@dataclass(frozen=True)
class GgufHeader:
    values: dict[str, Any]
    parameters: int  # in all tensors together

    @property
    def architecture(self) -> str:
        return str(self.values.get("general.architecture", "unknown"))

    @property
    def context_length(self) -> int:
        return int(self._own("context_length", 2048))

    @property
    def embedding_length(self) -> int:
        return int(self._own("embedding_length", 0))

    @property
    def quantization(self) -> str:
        return _FILE_TYPES.get(self.values.get("general.file_type", -1), "unknown")

    @property
    def template(self) -> str:
        return str(self.values.get("tokenizer.chat_template", ""))

    @property
    def pools(self) -> bool:
        """Is the model made for embeddings, with a rule for pooling the vectors of its tokens?"""
        return f"{self.architecture}.pooling_type" in self.values

    def _own(self, key: str, default: int) -> Any:
        return self.values.get(f"{self.architecture}.{key}", default)


@lru_cache(maxsize=64)
def read_header(path: Path) -> GgufHeader:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data).header()
    except (struct.error, ValueError, KeyError, UnicodeDecodeError) as error:
        raise NotGguf(f"{path} is not a GGUF file: {error}") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0

    def header(self) -> GgufHeader:
        magic, _version, tensors, values = self._unpack("4sIQQ")
        if magic != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        found = {self._string(): self._value(self._one("I")) for _ in range(values)}
        return GgufHeader(found, sum(self._tensor() for _ in range(tensors)))

    def _tensor(self) -> int:
        self._string()
        shape = self._unpack(f"{self._one('I')}Q")
        self._unpack("IQ")
        return prod(shape)

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._one(_SCALARS[kind])
        item, count = self._unpack("IQ")
        if item == _STRING:
            return [self._string() for _ in range(count)]
        return list(self._unpack(f"{count}{_SCALARS[item]}"))

    def _string(self) -> str:
        length = self._one("Q")
        if self._at + length > len(self._data):
            raise ValueError("it ends in its header")
        self._at += length
        return self._data[self._at - length : self._at].decode(errors="replace")

    def _one(self, form: str) -> Any:
        return self._unpack(form)[0]

    def _unpack(self, form: str) -> tuple[Any, ...]:
        shape = struct.Struct("<" + form)
        values = shape.unpack_from(self._data, self._at)
        self._at += shape.size
        return values
