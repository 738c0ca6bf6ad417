"""Results of steps that have not run yet, in the arguments of other steps: `fetched.result.order`.

In the JSON of a step's body a reference is a token, alone in its string or within a longer one. When the flow is sent, the name of the
other step takes its place: `{{fetch.order}}`. Whatever else looks like a reference in an argument is escaped there, and stays text.
"""

import re
import secrets
from collections.abc import Iterator
from enum import Enum
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import msgspec
from msgspec import inspect

VALUE = "value"  # the member of a result that holds what is no object

_STANDS_FOR = r"\{\{(step-[0-9a-f]{16})([!?]?)((?:\.[^.{}\"\\\s]+)*)\}\}"
TOKEN = re.compile(_STANDS_FOR.encode())
TOKEN_IN_TEXT = re.compile(_STANDS_FOR)
_BRACES_IN_TEXT = re.compile(rf"(?!{_STANDS_FOR})\{{(?=\{{)".encode())
_PART = re.compile(r"[^.{}\"\\\s]+")
_steps: "WeakValueDictionary[str, Any]" = WeakValueDictionary()


class ResultShape(Enum):
    """How a result travels, as far as the type that the function declares tells."""

    OBJECT = "as it is"
    VALUE = "in the member `value`"
    EITHER = "either way: what came is looked at"


def type_of(kind: Any) -> inspect.Type:
    found = inspect.type_info(kind)
    return found.type if isinstance(found, inspect.Metadata) else found


def shape_of(kind: inspect.Type) -> ResultShape:
    match kind:
        case inspect.UnionType(types=types):
            shapes = {shape_of(each) for each in types}
            return shapes.pop() if len(shapes) == 1 else ResultShape.EITHER
        case inspect.StructType(array_like=False) | inspect.DataclassType() | inspect.TypedDictType():
            return ResultShape.OBJECT
        case inspect.DictType():
            return ResultShape.OBJECT
        case inspect.CustomType(cls=cls) if getattr(cls, "__pydantic_root_model__", True) is False:
            return ResultShape.OBJECT
        case inspect.AnyType() | inspect.RawType() | inspect.NoneType() | inspect.CustomType():
            return ResultShape.EITHER
    return ResultShape.VALUE


class Place(msgspec.Struct, frozen=True):
    """Where a value is: in the result of which step, behind which keys, and of which type."""

    step: Any
    kind: inspect.Type
    path: tuple[str, ...] = ()
    flag: str = ""  # "?" if the result may be in its member `value` or not; "!" for what a step has that failed

    def part(self, key: Any) -> "Place":
        at, kind = _part(self.kind, key)
        if not _PART.fullmatch(str(at)) or str(at).startswith("-"):
            raise ValueError(f"{key!r} cannot stand in a reference: it would need a name, or a number from 0 on")
        if self.flag == "?" and at == VALUE:
            raise ValueError(f"{self.step!r} may return an object or not: declare which, to refer to its {VALUE!r}")
        inside = (VALUE,) if self.flag == "?" and isinstance(at, int) else ()
        return Place(self.step, kind, (*self.path, *inside, str(at)))

    @property
    def token(self) -> str:
        return "{{" + ".".join((f"{self.step.token}{self.flag}", *self.path)) + "}}"


def _part(kind: inspect.Type, key: Any) -> tuple[str | int, inspect.Type]:
    """Return the key on the wire, an int for a place in a list, and what is there."""
    match kind:
        case inspect.UnionType(types=types) if len(some := [each for each in types if each != inspect.NoneType()]) == 1:
            return _part(some[0], key)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            for number, field in enumerate(kind.fields):
                if key in (field.name, number):
                    in_a_list = isinstance(kind, inspect.NamedTupleType) or getattr(kind, "array_like", False)
                    return number if in_a_list else field.encode_name, field.type
            raise AttributeError(f"{kind.cls.__name__} has no {key}")
        case inspect.DictType(value_type=value):
            return str(key), value
    return key, getattr(kind, "item_type", inspect.AnyType())


class Referable:
    """What has a result that can be referred to: a flow, or a step."""

    @property
    def result(self) -> Any:
        raise NotImplementedError


class Reference:
    """Stands for what a step will have returned. Its parts are named as those of the value: `.name`, `[0]`."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    def __getattr__(self, name: str) -> "Reference":
        if name.startswith("__"):
            raise AttributeError(name)
        return Reference(self._place.part(name))

    def __getitem__(self, key: Any) -> "Reference":
        return Reference(self._place.part(key))

    def __str__(self) -> str:
        """In a longer text; the value's own text takes its place."""
        if self._place.flag == "?":
            raise ValueError(f"{self._place.step!r} may return an object or not: declare which, to put it into a text")
        return self._place.token

    def __repr__(self) -> str:
        return f"<{'.'.join(('result', *self._place.path))} of {self._place.step!r}>"

    def _unknown(self) -> NoReturn:
        raise TypeError(f"{self!r} is not known before the flow runs; only a step can take it")

    def __bool__(self) -> bool:
        self._unknown()

    def __eq__(self, other: object) -> bool:
        self._unknown()

    def __iter__(self) -> Iterator[Any]:
        self._unknown()


def new_token(step: Any) -> str:
    """Name the step for the tokens of references to it. It must be kept alive by who uses them."""
    token = f"step-{secrets.token_hex(8)}"
    _steps[token] = step
    return token


def referred(body: bytes) -> dict[str, tuple[Any, bool]]:
    """Return the steps of all tokens in a body, and whether each is only referred to as one that failed."""
    found: dict[str, tuple[Any, bool]] = {}
    for match in TOKEN.finditer(body):
        token = match[1].decode()
        step = _steps.get(token)
        if step is None:
            raise ValueError("a text refers to a step that is gone: keep the step until the flow is made")
        found[token] = (step, match[2] == b"!" and found.get(token, (step, True))[1])
    return found


def as_text(data: bytes) -> bytes:
    """Return JSON in which nothing but tokens is a reference to the server; it means the same."""
    return _BRACES_IN_TEXT.sub(rb"\\u007b", data) if b"{{" in data else data


def places_of(value: Any, before: tuple[str | int | None, ...] = ()) -> Iterator[tuple[str | int | None, ...]]:
    """Yield where in decoded JSON a result stands that may be an object or not; None is each item of a list."""
    if _is_either(value):
        yield before
    elif isinstance(value, list) and value and all(map(_is_either, value)):
        yield (*before, None)
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, each in items:
            yield from places_of(each, (*before, key))


def _is_either(value: Any) -> bool:
    alone = TOKEN_IN_TEXT.fullmatch(value) if isinstance(value, str) else None
    return alone is not None and alone[2] == "?"
