"""What travels between who sends a task and who runs it: the arguments of its function, and what it returns.

Both sides check it against the function's annotations: types that msgspec knows, and pydantic's models, in any nesting.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_type_hints

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.inspect import Type

from chargehand.client.declared.references import (
    TOKEN,
    VALUE,
    Referable,
    Reference,
    ResultShape,
    as_text,
    shape_of,
    type_of,
)
from chargehand.client.types.tasks import Task

R = TypeVar("R")

RESULTS = (
    "chargehand.results"  # in the metadata of a step: where in its payload results stand that may be in `{"value": …}`
)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class PayloadError(ValueError):
    """An argument or a result is not of the type that the task's function declares."""


class Arguments:
    """The arguments of a function as a JSON object. Those that the caller leaves out are not in it: the worker has the defaults."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._signature = inspect.signature(function)
        for name, parameter in self._signature.parameters.items():
            if parameter.kind not in _NAMED:
                raise TypeError(
                    f"{function.__name__}: {name}: a task's parameters have names; *, ** and / are not allowed"
                )

    @cached_property
    def _decoder(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder_of(self.required)

    @cached_property
    def _decoder_of_some(self) -> "msgspec.json.Decoder[Any]":
        return self._decoder_of([])

    def _decoder_of(self, required: Sequence[str]) -> "msgspec.json.Decoder[Any]":
        hints = hints_of(self._function)
        fields = [_field(name, hints.get(name, Any), name in required) for name in self._signature.parameters]
        return _decoder(msgspec.defstruct(self._function.__name__, fields, kw_only=True, forbid_unknown_fields=True))

    @property
    def required(self) -> list[str]:
        parameters = self._signature.parameters.items()
        return [name for name, each in parameters if each.default is inspect.Parameter.empty]

    def check_types(self) -> None:
        """Raise TypeError if a parameter has a type that cannot travel."""
        _ = self._decoder

    def pack(self, *args: Any, **kwargs: Any) -> Raw:
        """Raise TypeError as a call would, or PayloadError if an argument is of another type than declared."""
        bound = self._signature.bind(*args, **kwargs)
        data = _encode(bound.arguments)
        self.unpack(data)
        return Raw(data)

    def pack_step(self, *args: Any, **kwargs: Any) -> Raw:
        """As `pack`, but arguments may have references in them, and are not checked then."""
        bound = self._signature.bind(*args, **kwargs)
        data = as_text(_encode(bound.arguments, _plain_or_reference))
        arguments = msgspec.json.decode(data, type=dict[str, Raw])
        known = {name: value for name, value in arguments.items() if not TOKEN.search(value)}
        _decode(self._decoder_of_some, msgspec.json.encode(known))
        return Raw(data)

    def unpack(self, payload: str | bytes) -> dict[str, Any]:
        found = _decode(self._decoder, payload)
        return {name: value for name, value in msgspec.structs.asdict(found).items() if value is not UNSET}


class Single:
    """The only argument of a function that gets many at once: any JSON but null."""

    def __init__(self, kind: Any) -> None:
        self._decoder = _decoder(kind)

    def pack(self, value: Any) -> Raw:
        data = _encode(value)
        if data == b"null":
            raise PayloadError("a task's payload cannot be null")
        self.unpack(data)
        return Raw(data)

    def pack_step(self, value: Any) -> Raw:
        """As `pack`, but the value may have references in it, and is not checked then."""
        data = as_text(_encode(value, _plain_or_reference))
        if not TOKEN.search(data):
            self.pack(value)
        return Raw(data)

    def unpack(self, payload: str | bytes) -> Any:
        return _decode(self._decoder, payload)


class Returns(Generic[R]):
    """What a function returns, as the JSON object that a result is: any other value is in `{"value": …}`, and None is `{}`.

    If the declared type does not tell which it is, an object that looks like one of these is in `{"value": …}` too.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder = _decoder(kind)
        self._kind = kind

    @cached_property
    def type(self) -> Type:
        return type_of(self._kind)

    @cached_property
    def shape(self) -> ResultShape:
        return shape_of(self.type)

    def pack(self, value: R) -> Raw:
        data = _encode(value)
        _decode(self._decoder, data)
        if data == b"null":
            return Raw(b"{}")
        plain = data.startswith(b"{") if self.shape is ResultShape.OBJECT else _is_plain_object(data)
        return Raw(data if plain else b'{"value":' + data + b"}")

    def unpack(self, result: Any) -> R:
        """A worker that declares nothing may return `{}` or `{"value": …}` itself."""
        inner = _inner(result)
        first, second = (result, inner) if self.shape is ResultShape.OBJECT else (inner, result)
        try:
            value: R = _decode(self._decoder, msgspec.json.encode(first))
        except PayloadError:
            if inner is result:
                raise
            value = _decode(self._decoder, msgspec.json.encode(second))
        return value


def payload_of(task: Task) -> str | bytes:
    """The payload of a task; results that it took over, and that may be in `{"value": …}`, stand there as they were returned."""
    places = task.metadata.get(RESULTS) if isinstance(task.metadata, dict) else None
    if not places:
        return task.payload_json
    payload = msgspec.json.decode(task.payload_json)
    try:
        for place in places:
            payload = _unwrapped_at(payload, place)
    except (LookupError, TypeError):
        raise PayloadError(f"the metadata {RESULTS!r} names a place that it does not have") from None
    return msgspec.json.encode(payload)


def _unwrapped_at(value: Any, place: Sequence[str | int | None]) -> Any:
    if not place:
        return unwrapped(value)
    for key in range(len(value)) if place[0] is None else [place[0]]:
        value[key] = _unwrapped_at(value[key], place[1:])
    return value


def unwrapped(result: Any) -> Any:
    return _inner(result) if isinstance(result, dict) else result


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function, include_extras=True)


def _field(name: str, kind: Any, required: bool) -> tuple[str, Any] | tuple[str, Any, Any]:
    if required:
        return name, kind
    return name, Union[kind, UnsetType], UNSET  # noqa: UP007 - `|` is not for names of types in quotes


def _is_plain_object(data: bytes) -> bool:
    if not data.startswith(b"{") or data == b"{}":
        return False
    return not data.startswith(b'{"value":') or msgspec.json.decode(data, type=dict[str, Raw]).keys() != {VALUE}


def _inner(result: Any) -> Any:
    if not isinstance(result, dict) or not result:
        return None
    return result[VALUE] if result.keys() == {VALUE} else result


def _encode(value: Any, plain: "Callable[[Any], Any] | None" = None) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=plain or _plain)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"it cannot be written as JSON: {error}") from None


def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind, dec_hook=_made)


def _decode(decoder: "msgspec.json.Decoder[Any]", data: str | bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise PayloadError(_sentence(str(error))) from None


def pack_body(value: Any) -> Raw:
    """The body of a step of any door, which may have references in it."""
    return Raw(_encode(value, _plain_or_reference))


def _sentence(text: str) -> str:
    """Put the place first: msgspec says "Expected `int`, got `str` - at `$.orders[0].count`"."""
    what, _, where = text.replace("`", "").rpartition(" - at $")
    where = where.lstrip(".")
    return f"{where}: {what}" if where and what else text.replace("`", "").removesuffix(" - at $")


def _plain_or_reference(value: Any) -> Any:
    if isinstance(value, Referable):
        return value.result
    return value._place.token if isinstance(value, Reference) else _plain(value)


# pydantic is not imported here: its models are known by their methods.


def _plain(value: Any) -> Any:
    if isinstance(value, Reference | Referable):
        raise TypeError("it has the result of a step in it, which only another step can take")
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} is no type that msgspec or pydantic knows")


def _made(kind: Any, value: Any) -> Any:
    if not hasattr(kind, "model_validate_json"):
        raise TypeError(f"{kind!r} is no type that msgspec or pydantic knows")
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_of_pydantic(error)) from None


def _of_pydantic(error: Any) -> str:
    wrongs = [(".".join(str(each) for each in wrong["loc"]), wrong["msg"]) for wrong in error.errors()]
    return "; ".join(f"{where}: {what}" if where else str(what) for where, what in wrongs)
