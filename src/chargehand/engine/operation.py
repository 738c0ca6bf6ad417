"""A write to the store, as a value. What the store answers is the type's parameter: `Claim(Operation[Claimed])`."""

from typing import Generic, TypeVar

import msgspec

Answered = TypeVar("Answered", covariant=True)


class Operation(msgspec.Struct, Generic[Answered], frozen=True, array_like=True):
    pass
