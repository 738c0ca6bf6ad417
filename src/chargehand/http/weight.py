"""How much of a body has to be read, and how much is only carried from here to there: payloads, results (msgspec's Raw).

What is carried costs its size. What is read becomes objects, which cost many times theirs; so that is what has a bound.
"""

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw
from msgspec.inspect import ListType, Metadata, RawType, StructType, Type, UnionType, VarTupleType, type_info

from chargehand.errors import TooLarge

READ_BYTES = 131_072


def weigh(kind: Any, body: bytes | Raw, most: int) -> None:
    """Raises TooLarge if the body has more than so many bytes beside what is carried."""
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
    """The type that decodes to what is carried and passes over all else; None if nothing is carried."""
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
    """A list that is refused at the first item too many, where the decoder would make them all and count then."""
    if count is None:
        raise TypeError("a list of what is only carried needs a max_length")
    places = [(f"item{number}", item, msgspec.field(default=None)) for number in range(count)]
    return msgspec.defstruct("List", places, array_like=True, forbid_unknown_fields=True)


def _size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, Raw):
        return len(value)
    return sum(_size(getattr(value, name)) for name in value.__struct_fields__)
