"""What a job of this door asks for, as it is stored: the path and the body for the target, byte for byte as the caller sent it."""

from typing import Annotated, Any, Literal

import msgspec

from chargehand.config import ModelConfig
from chargehand.doors.inference.wire import FORMS, Form


class ArtifactWish(msgspec.Struct, forbid_unknown_fields=True):
    """A part of the answer that is to be kept as a file."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=200, examples=["answer.txt"])]
    source: Annotated[
        Literal["answer", "transcript", "structured"],
        msgspec.Meta(description="The answer's text, the whole conversation as JSON, or the answer as the JSON it is"),
    ] = msgspec.field(name="from", default="answer")


class Request(msgspec.Struct, omit_defaults=True):
    """The payload of a job."""

    path: str
    body: msgspec.Raw
    relay: bool = False  # somebody holds a connection for it: their bytes, and no second try
    artifacts: list[ArtifactWish] = []

    @property
    def form(self) -> Form:
        return FORMS[self.path]


class Essentials(msgspec.Struct):
    """What the door itself must know of a body; all the rest is between the caller and the target."""

    model: str
    stream: bool | None = None
    messages: list[msgspec.Raw] | None = None
    prompt: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b""))
    keep_alive: Any = None


essentials = msgspec.json.Decoder(Essentials)
_decoder = msgspec.json.Decoder(Request)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RUNNER_FIELDS = ("options", "keep_alive", "shift")


def encode_request(
    path: str, body: bytes, *, relay: bool = False, artifacts: list[ArtifactWish] | None = None
) -> bytes:
    return msgspec.json.encode(Request(path, msgspec.Raw(body), relay, artifacts or []))


def decode_request(payload: bytes) -> Request:
    return _decoder.decode(payload)


def is_empty(asked: Essentials, path: str) -> bool:
    """A request for nothing: Ollama takes it as an order to load the model, or with keep_alive 0 to unload it."""
    if path == "/api/chat":
        return not asked.messages
    return path == "/api/generate" and bytes(asked.prompt) in (b"", b'""', b"null")


def unloads(asked: Essentials, path: str) -> bool:
    return is_empty(asked, path) and asked.keep_alive is not None and not _lasts(asked.keep_alive)


def leaves(body: bytes, path: str) -> bool:
    """Whether the target throws the model out as soon as this was answered."""
    keep_alive = essentials.decode(body).keep_alive if path.startswith("/api/") else None
    return keep_alive is not None and not _lasts(keep_alive)


def _lasts(keep_alive: Any) -> bool:
    return str(keep_alive).rstrip("smh") not in ("0", "0.0", "-0")


def pinned(body: bytes, path: str, model: ModelConfig | None) -> bytes:
    """The body with the operator's options for this model put over the caller's; untouched where there are none."""
    if model is None or not path.startswith("/api/"):
        return body  # the other APIs have no words for them
    fields: dict[str, Any] = _fields.decode(body)
    if model.options:
        asked = msgspec.json.decode(fields["options"]) if "options" in fields else {}
        fields["options"] = {**(asked if isinstance(asked, dict) else {}), **model.options}
    if model.keep_alive:
        fields["keep_alive"] = model.keep_alive
    return msgspec.json.encode(fields)


def preload(path: str, body: bytes) -> tuple[str, bytes]:
    """The request that loads the model and does nothing else, with the same options as the one that follows."""
    fields = _fields.decode(body)
    if leaves(body, path):  # with nothing to answer that would be an order to unload
        del fields["keep_alive"]
    asked: dict[str, Any] = {"model": fields["model"], "stream": False}
    if FORMS[path] is Form.NATIVE:
        asked |= {name: fields[name] for name in _RUNNER_FIELDS if name in fields}
        return path, msgspec.json.encode(asked)
    if FORMS[path] is Form.VECTORS:
        kept = {name: fields[name] for name in _RUNNER_FIELDS if name in fields and path.startswith("/api/")}
        return "/api/embed", msgspec.json.encode({"model": fields["model"], "input": [], **kept})
    return "/api/chat", msgspec.json.encode(asked)
