"""Bound the part of a body that must be decoded, as opposed to what is only stored or passed on: payloads, results (msgspec's Raw).

Raw parts take as much memory as their text. Decoded parts become objects that take many times theirs, so they have a bound.
"""

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.inspect import ListType, Metadata, RawType, StructType, Type, UnionType, VarTupleType, type_info

from chargehand.errors import TooLarge

READ_BYTES = 131_072


def weigh(kind: Any, body: bytes | Raw, most: int) -> None:
    """Raise TooLarge if the body has more than `most` bytes outside its Raw fields."""
    skeleton, names = _carried(kind)
    read = len(body) - (_size(msgspec.json.decode(body, type=skeleton)) if names else 0)
    if read > most:
        besides = f" beside {', '.join(names)}" if names else ""
        raise TooLarge(f"the body has {read} bytes{besides}; at most {most} are accepted there")


@lru_cache
def _carried(kind: Any) -> tuple[Any, tuple[str, ...]]:
    skeleton = _skeleton(type_info(kind))
    names = () if skeleton is None else tuple(each.encode_name for each in msgspec.structs.fields(skeleton))
    return skeleton, names


def _skeleton(info: Type) -> Any:
    """Return a type that decodes only the Raw fields and skips all else; None if there are none."""
    match info:
        case RawType():
            return Raw
        case Metadata(type=inner):
            return _skeleton(inner)
        case UnionType(types=types):
            found = [part for part in map(_skeleton, types) if part is not None]
            return found[0] | None if found else None
        case StructType(cls=cls, fields=fields):
            parts = [
                (each.name, part, msgspec.field(default=None, name=each.encode_name))
                for each in fields
                if (part := _skeleton(each.type)) is not None
            ]
            return msgspec.defstruct(cls.__name__, parts) if parts else None
        case ListType(item_type=item, max_length=most) | VarTupleType(item_type=item, max_length=most):
            part = _skeleton(item)
            return None if part is None else _at_most(most, part)
    return None


def _at_most(count: int | None, item: Any) -> Any:
    """Return a list type that fails at the first item too many; a plain list would create all items and then count."""
    if count is None:
        raise TypeError("a list with Raw items needs a max_length")
    places = [(f"item{number}", item, msgspec.field(default=None)) for number in range(count)]
    return msgspec.defstruct("List", places, array_like=True, forbid_unknown_fields=True)


def _size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, Raw):
        return len(value)
    return sum(_size(getattr(value, name)) for name in value.__struct_fields__)
