"""A request for a model: reads what the door needs of its body without decoding all of it, and stores it.

A body may have a hundred megabytes and any shape. The door decodes the few fields that it needs and carries all others as bytes:
the number of objects does not grow with the body.
"""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from chargehand.config import ModelConfig
from chargehand.doors.inference.wire import FORMS, Form
from chargehand.errors import InvalidField
from chargehand.http.route import decode

SMALL_BYTES = 65_536  # for all fields together that are not among the large ones of an Outline
NOTHING = Raw(b"")  # an absent field
Fields = dict[str, Raw]


# reading ----------------------------------------------------------------------------------------------------------------


class Outline(msgspec.Struct):
    """The fields of a body of any of the APIs, undecoded."""

    model: Raw = NOTHING
    keep_alive: Raw = NOTHING
    stream: Raw = NOTHING
    options: Raw = NOTHING
    metadata: Raw = NOTHING
    artifacts: Raw = NOTHING
    webhook_events: Raw = NOTHING
    # These may be large:
    messages: Raw = NOTHING
    prompt: Raw = NOTHING
    input: Raw = NOTHING
    images: Raw = NOTHING
    system: Raw = NOTHING
    instructions: Raw = NOTHING
    suffix: Raw = NOTHING
    template: Raw = NOTHING
    context: Raw = NOTHING
    tools: Raw = NOTHING
    functions: Raw = NOTHING
    format: Raw = NOTHING
    response_format: Raw = NOTHING
    text: Raw = NOTHING
    prediction: Raw = NOTHING


READ = ("model", "keep_alive", "stream")
_NAMES = Outline.__struct_fields__
LARGE = _NAMES[_NAMES.index("messages") :]
_SMALL = _NAMES[: _NAMES.index("messages")]


class Essentials(msgspec.Struct):
    """The fields that the door itself reads; the rest is passed on to the target."""

    model: str
    keep_alive: Any = None
    stream: bool | None = None
    messages: Raw = NOTHING
    prompt: Raw = NOTHING


_outline = msgspec.json.Decoder(Outline)
_essentials = msgspec.json.Decoder(Essentials)
_fields = msgspec.json.Decoder(Fields)


def outline(body: bytes | Raw) -> Outline:
    """Split a large body into its fields. Raise unless all fields but the large ones are small."""
    found = decode(_outline, body, len(body))
    for name in _SMALL:
        if len(getattr(found, name)) > SMALL_BYTES:
            raise InvalidField(name, f"is over {SMALL_BYTES} bytes")
    other = len(body) - sum(len(getattr(found, name)) for name in LARGE)
    if other > SMALL_BYTES:
        text = f"has {other} bytes outside of {', '.join(LARGE)}; all other fields together have at most {SMALL_BYTES}"
        raise InvalidField("body", text)
    return found


async def give_way(body: bytes) -> None:
    """Let other tasks run between two passes over a large body."""
    if len(body) > SMALL_BYTES:
        await asyncio.sleep(0)


def essentials(body: bytes) -> Essentials:
    if len(body) <= SMALL_BYTES:
        return decode(_essentials, body)
    found = outline(body)
    given = {name: getattr(found, name) for name in READ if len(getattr(found, name))}
    asked = decode(_essentials, msgspec.json.encode(given))
    asked.messages, asked.prompt = found.messages, found.prompt
    return asked


def is_empty(asked: Essentials, path: str) -> bool:
    """Return whether the prompt is empty: Ollama then loads the model, or unloads it if keep_alive is 0."""
    content = {"/api/chat": asked.messages, "/api/generate": asked.prompt}.get(path)
    if content is None or len(content) > SMALL_BYTES:
        return False
    return b"".join(bytes(content).split()) in (b"", b'""', b"[]", b"null")


def fields_of(body: bytes | Raw) -> Fields:
    """Return all fields of a body that `outline` has checked."""
    return _fields.decode(body)


def unloads(asked: Essentials, path: str) -> bool:
    return leaves(asked.keep_alive) and is_empty(asked, path)


def leaves(keep_alive: Any) -> bool:
    """Return whether the target unloads the model right after the answer."""
    return keep_alive is not None and not _lasts(keep_alive)


def _lasts(keep_alive: Any) -> bool:
    return str(keep_alive).rstrip("smh") not in ("0", "0.0", "-0")


# storing ----------------------------------------------------------------------------------------------------------------


class ArtifactWish(msgspec.Struct, forbid_unknown_fields=True):
    """A part of the answer to keep as a file."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200, examples=["answer.txt"])]
    source: Annotated[
        Literal["answer", "transcript", "structured"],
        msgspec.Meta(description="The answer's text, the whole conversation as JSON, or the answer as the JSON it is"),
    ] = msgspec.field(name="from", default="answer")


class StoredRequest(msgspec.Struct):
    """The payload of a job. The body is the last field, so that the others are decoded without it."""

    path: str
    relay: bool  # a caller holds a connection for it: it gets the target's bytes, and there is no retry
    leaves: bool  # the target unloads the model after it
    artifacts: list[ArtifactWish]
    body: Any  # byte for byte as the caller sent it; a view into the payload once decoded

    @property
    def form(self) -> Form:
        return FORMS[self.path]


class _Head(msgspec.Struct):
    path: str
    relay: bool | UnsetType = UNSET
    leaves: bool = False
    artifacts: list[ArtifactWish] = []


class _Old(msgspec.Struct):
    """A payload of an older version, whose body need not be the last field."""

    path: str
    body: Raw
    relay: bool = False
    artifacts: list[ArtifactWish] = []


_head = msgspec.json.Decoder(_Head)
_old = msgspec.json.Decoder(_Old)
_BODY = b',"body":'  # cannot occur inside a JSON string, so its first occurrence is the field


def encode_request(
    path: str,
    body: Raw | Mapping[str, Any],
    *,
    relay: bool = False,
    leaves: bool = False,
    artifacts: list[ArtifactWish] | None = None,
) -> bytes:
    """Encode the payload with a single copy of the body."""
    return msgspec.json.encode(StoredRequest(path, relay, leaves and path.startswith("/api/"), artifacts or [], body))


def decode_request(payload: bytes) -> StoredRequest:
    at = payload.find(_BODY)
    head = _head.decode(payload[:at] + b"}")
    if isinstance(head.relay, UnsetType):
        old = _old.decode(payload)
        gone = old.path.startswith("/api/") and leaves(essentials(bytes(old.body)).keep_alive)
        return StoredRequest(old.path, old.relay, gone, old.artifacts, memoryview(old.body))
    return StoredRequest(head.path, head.relay, head.leaves, head.artifacts, memoryview(payload)[at + len(_BODY) : -1])


# for the target ---------------------------------------------------------------------------------------------------------

_RUNNER_FIELDS = ("options", "keep_alive", "shift")


def pinned(request: StoredRequest, model: ModelConfig | None) -> StoredRequest:
    """Return the request with the operator's options for this model in place of the caller's."""
    if model is None or not request.path.startswith("/api/"):
        return request  # the other APIs have no such options
    fields: dict[str, Any] = _fields.decode(request.body)
    if model.options:
        asked = _options(fields.get("options", NOTHING))
        fields["options"] = {**asked, **model.options}
    if model.keep_alive:
        fields["keep_alive"] = model.keep_alive
    body = memoryview(msgspec.json.encode(fields))
    gone = not _lasts(model.keep_alive) if model.keep_alive else request.leaves
    return StoredRequest(request.path, request.relay, gone, request.artifacts, body)


def _options(raw: Raw) -> Fields:
    return _fields.decode(raw) if bytes(raw).startswith(b"{") else {}


def preload(request: StoredRequest) -> tuple[str, bytes]:
    """Return the request that only loads the model, with the same options as the one that follows."""
    fields, path = _fields.decode(request.body), request.path
    if request.leaves:  # with an empty prompt this would unload the model
        fields.pop("keep_alive", None)
    asked: dict[str, Any] = {"model": fields["model"], "stream": False}
    if FORMS[path] is Form.NATIVE:
        asked |= {name: fields[name] for name in _RUNNER_FIELDS if name in fields}
        return path, msgspec.json.encode(asked)
    if FORMS[path] is Form.VECTORS:
        kept = {name: fields[name] for name in _RUNNER_FIELDS if name in fields and path.startswith("/api/")}
        return "/api/embed", msgspec.json.encode({"model": fields["model"], "input": [], **kept})
    return "/api/chat", msgspec.json.encode(asked)
