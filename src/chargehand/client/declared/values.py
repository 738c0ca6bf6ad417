"""What travels between who sends a task and who runs it: the arguments of its function, and what it returns.

Both sides check it against the function's annotations: types that msgspec knows, and pydantic's models, in any nesting.
"""

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_type_hints

import msgspec
from msgspec import UNSET, Raw, UnsetType

R = TypeVar("R")

VALUE = "value"  # the member of a result that holds what is no object
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
        hints = hints_of(self._function)
        fields = [_field(each, hints.get(name, Any)) for name, each in self._signature.parameters.items()]
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

    def unpack(self, payload: str | bytes) -> Any:
        return _decode(self._decoder, payload)


class Returns(Generic[R]):
    """What a function returns, as the JSON object that a result is: any other value is in `{"value": …}`, and None is `{}`.

    So are the objects that look like one of these.
    """

    def __init__(self, kind: Any) -> None:
        self._decoder = _decoder(kind)

    def pack(self, value: R) -> Raw:
        data = _encode(value)
        _decode(self._decoder, data)
        if data == b"null":
            return Raw(b"{}")
        return Raw(data if _is_plain_object(data) else b'{"value":' + data + b"}")

    def unpack(self, result: Any) -> R:
        """A worker that declares nothing may return `{}` or `{"value": …}` itself."""
        inner = _inner(result)
        try:
            value: R = _decode(self._decoder, msgspec.json.encode(inner))
        except PayloadError:
            if inner is result:
                raise
            value = _decode(self._decoder, msgspec.json.encode(result))
        return value


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    return get_type_hints(function, include_extras=True)


def _field(parameter: inspect.Parameter, kind: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name, kind
    return parameter.name, Union[kind, UnsetType], UNSET  # noqa: UP007 - `|` is not for names of types in quotes


def _is_plain_object(data: bytes) -> bool:
    if not data.startswith(b"{") or data == b"{}":
        return False
    return not data.startswith(b'{"value":') or msgspec.json.decode(data, type=dict[str, Raw]).keys() != {VALUE}


def _inner(result: Any) -> Any:
    if not isinstance(result, dict) or not result:
        return None
    return result[VALUE] if result.keys() == {VALUE} else result


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=_plain)
    except (TypeError, ValueError) as error:
        raise PayloadError(f"it cannot be written as JSON: {error}") from None


def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind, dec_hook=_made)


def _decode(decoder: "msgspec.json.Decoder[Any]", data: str | bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise PayloadError(_sentence(str(error))) from None


def _sentence(text: str) -> str:
    """Put the place first: msgspec says "Expected `int`, got `str` - at `$.orders[0].count`"."""
    what, _, where = text.replace("`", "").rpartition(" - at $")
    where = where.lstrip(".")
    return f"{where}: {what}" if where and what else text.replace("`", "").removesuffix(" - at $")


# pydantic is not imported here: its models are known by their methods.


def _plain(value: Any) -> Any:
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
