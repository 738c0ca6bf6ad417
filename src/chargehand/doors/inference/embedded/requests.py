"""Parse requests as strictly and as leniently as Ollama does."""

import json
import math
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar

import msgspec

from chargehand.doors.inference.embedded.backend import Failure, LoadOptions, Sampling
from chargehand.doors.inference.embedded.catalogue import Model
from chargehand.doors.inference.embedded.residents import FOR_EVER

DEFAULT_CONTEXT: Final = 4096
DEFAULT_BATCH: Final = 512
CONTEXTS_PER_ANSWER: Final = 10  # an answer without its own limit ends after so many contexts

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_AMOUNT: Final = r"(\d+(?:\.\d*)?|\.\d+)"
_NUMBER: Final = rf"{_AMOUNT}(ns|us|µs|ms|s|m|h)"
MAX_DURATION: Final = 100  # characters
MAX_INTEGER: Final = 2**31 - 1
_NAME = re.compile(r"(?:[\w.-]+(?::\d+)?/)?(?:[\w.-]+/)?[A-Za-z0-9_][\w.-]*(?::[A-Za-z0-9_][\w.-]*)?")
_WRONG_TYPE = re.compile(r"Expected `([^`]+)`, got `(\w+)`(?: - at `\$\.?([^`]*)`)?")
_GO_KINDS: Final = {"str": "string", "int": "number", "float": "number", "bool": "bool", "array": "array"}
_LOAD_INTEGERS: Final = frozenset({"num_ctx", "num_batch", "num_gpu", "main_gpu", "num_thread", "draft_num_predict"})

T = TypeVar("T")


class Message(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    images: list[Any] | None = None
    tool_calls: list[Any] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"role": (self.role or "").lower(), "content": self.content or ""}
        if self.tool_name:
            shown["name"] = self.tool_name
        return shown


class ModelRequest(msgspec.Struct):
    """Fields of all requests that run a model."""

    model: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: Any = None
    truncate: bool | None = None
    shift: bool | None = None


class GenerationRequest(ModelRequest):
    stream: bool | None = None
    format: Any = None
    think: Any = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    debug_render_only: bool | None = msgspec.field(default=None, name="_debug_render_only")


class ChatRequest(GenerationRequest):
    messages: list[Message] | None = None
    tools: list[Any] | None = None


class GenerateRequest(GenerationRequest):
    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: list[int] | None = None
    raw: bool | None = None
    images: list[Any] | None = None


class EmbedRequest(ModelRequest):
    input: Any = None
    dimensions: int | None = None


class EmbeddingsRequest(ModelRequest):
    prompt: str | None = None


class ShowRequest(msgspec.Struct):
    model: str | None = None
    name: str | None = None
    verbose: bool | None = None


def parse(body: bytes, kind: type[T]) -> T:
    """Decode the body, whatever its Content-Type is; ignore unknown fields."""
    if not body.strip():
        raise Failure(400, "missing request body")
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Failure(400, _as_go_says(str(error), kind.__name__)) from None
    except RecursionError:
        raise Failure(400, "exceeded max depth") from None
    except (msgspec.DecodeError, ValueError):
        first = body.strip()[:1].decode("latin-1")
        text = "unexpected EOF" if first in '{["' else f"invalid character '{first}' looking for beginning of value"
        raise Failure(400, text) from None


def _as_go_says(problem: str, kind: str) -> str:
    if found := _WRONG_TYPE.search(problem):
        wanted, given, where = found[1].removesuffix(" | null"), found[2], found[3] or ""
        field = f"struct field {kind}.{where}" if where else "value"
        return f"json: cannot unmarshal {_GO_KINDS.get(given, given)} into Go {field} of type {wanted}"
    return f"json: {problem}"


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name.strip()):
        raise Failure(400, "invalid model name")


def keep_alive_seconds(value: Any) -> float | None:
    """Return the seconds, or None if not given. A negative number means for ever."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Failure(400, f"Unsupported type: '{type(value).__name__}'")
    seconds = go_duration(value) if isinstance(value, str) else value
    return FOR_EVER if seconds < 0 else float(min(seconds, FOR_EVER))


def go_duration(text: str) -> float:
    if text in ("0", "+0", "-0"):
        return 0.0
    if len(text) > MAX_DURATION or re.fullmatch(rf"[+-]?(?:{_NUMBER})+", text) is None:
        problem = "missing unit in" if re.fullmatch(rf"[+-]?{_AMOUNT}", text) else "invalid"
        raise Failure(400, f"time: {problem} duration {quoted(text[:MAX_DURATION])}")
    seconds = sum(float(amount) * _UNITS[unit] for amount, unit in re.findall(_NUMBER, text))
    return -seconds if text.startswith("-") else seconds


def quoted(text: str) -> str:
    """Quote like Go's %q."""
    return json.dumps(text, ensure_ascii=False)


# options --------------------------------------------------------------------------------------------------------------


def check_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the known options. A value of the wrong type is a 500, as in Ollama; unknown names are ignored."""
    checked: dict[str, Any] = {}
    for name, value in (options or {}).items():
        kind = _KINDS.get(name)
        if value is None or kind is None:
            continue
        if kind == "array":
            if not isinstance(value, list):
                raise Failure(500, f"option {quoted(name)} must be of type array")
            if not all(isinstance(item, str) for item in value):
                raise Failure(500, f"option {quoted(name)} must be of an array of strings")
            checked[name] = tuple(value)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            raise Failure(500, f"option {quoted(name)} must be of type {kind}")
        else:
            checked[name] = max(-MAX_INTEGER, min(int(value), MAX_INTEGER)) if kind == "integer" else _float(value)
    return checked


def _float(value: float) -> float:
    """Convert to float; an integer in JSON may be larger than any float."""
    try:
        return float(value)
    except OverflowError:
        return math.copysign(sys.float_info.max, value)


_SAMPLING_KINDS: Final = {
    field.name: {int: "integer", float: "float32"}.get(type(field.default), "array")
    for field in fields(Sampling)
    if field.name not in ("schema", "top_logprobs")
}
_KINDS: Final = {**_SAMPLING_KINDS, **dict.fromkeys(_LOAD_INTEGERS, "integer")}


def load_options(options: Mapping[str, Any], model: Model, threads: int, shift: bool | None) -> LoadOptions:
    """Return the load options. Unlike in Ollama, a batch has at most as many tokens as the context."""
    trained = model.header.context_length
    context = min(max(options.get("num_ctx", 0) or DEFAULT_CONTEXT, 4), trained)
    return LoadOptions(
        num_ctx=context,
        num_batch=min(max(options.get("num_batch", 0) or DEFAULT_BATCH, 1), context),
        num_thread=options.get("num_thread", 0) or threads or default_threads(),
        shift=shift is not False,
    )


def default_threads() -> int:
    """Return half of the cores: the server needs the other half."""
    return max(1, (os.cpu_count() or 2) // 2)


def sampling(options: Mapping[str, Any], request: GenerationRequest, context: int) -> Sampling:
    given = {name: value for name, value in options.items() if name in _SAMPLING_KINDS}
    limit = CONTEXTS_PER_ANSWER * context
    wanted = given.get("num_predict", -1)
    given["num_predict"] = limit if wanted < 0 else min(wanted, limit)
    top = request.top_logprobs or 0
    return Sampling(**given, schema=schema(request.format), top_logprobs=top if request.logprobs else None)


def schema(format: Any) -> dict[str, Any] | None:
    if format is None or format == "":
        return None
    if format == "json":
        return {"type": "object"}
    if isinstance(format, dict):
        return format
    given = quoted(json.dumps(format, ensure_ascii=False, separators=(",", ":")))
    raise Failure(500, f'invalid format: {given}; expected "json" or a valid JSON Schema object')
