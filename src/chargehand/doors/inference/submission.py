"""The body of `POST /jobs`: its type, and the checks that a type cannot express."""

from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from chargehand.config import InferenceConfig
from chargehand.doors.inference import views
from chargehand.doors.inference.names import check_model
from chargehand.doors.inference.request import NOTHING, SMALL_BYTES, ArtifactWish, Fields, give_way, outline
from chargehand.errors import InvalidField
from chargehand.files import checked_name
from chargehand.http.inputs import TEN_YEARS, absent, check_utf8
from chargehand.http.route import decode

PRIORITY = 3  # below a caller who holds a connection, above a batch
MAX_ARTIFACTS = 32
MAX_UNKNOWN = 64  # unknown fields: they are passed on to the target
LONGEST_SLIP = 40  # characters of an unknown field's name that may be a misspelling of one of ours
EXTENSIONS = frozenset(
    [
        "state_webhook_url",
        "webhook_events",
        "priority",
        "max_attempts",
        "run_at",
        "delay_seconds",
        "deadline_seconds",
        "metadata",
        "artifacts",
    ]
)


class ChatMessage(msgspec.Struct):
    """Other fields of Ollama's messages are passed on unread."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = ""
    images: list[str] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Role(msgspec.Struct, gc=False):
    """The role of a message in a large body. There may be millions, so they are counted while they are decoded."""

    role: Literal["system", "user", "assistant", "tool"]
    content: msgspec.Raw = NOTHING

    left: ClassVar[int] = 0

    def __post_init__(self) -> None:
        Role.left -= 1
        if Role.left < 0:
            raise ValueError("has too many entries")  # stops the decoder
        if len(self.content) and bytes(memoryview(self.content)[:1]) not in (b'"', b"n"):
            raise ValueError("content must be a string")


class SubmitInference(msgspec.Struct):
    """The body of Ollama's `/api/chat` (or, with `prompt`, of `/api/generate`), and beside it what makes it a job."""

    model: Annotated[str, msgspec.Meta(examples=["smollm2:135m"])]
    messages: Annotated[list[ChatMessage], msgspec.Meta(description="A chat")] | None = None
    prompt: Annotated[str, msgspec.Meta(description="In place of messages: a completion")] | None = None
    format: Annotated[Any, msgspec.Meta(description="json, or a JSON Schema for the answer")] = None
    options: Annotated[dict[str, Any], msgspec.Meta(description="As Ollama's: temperature, num_ctx, …")] | None = None
    keep_alive: str | float | None = None
    tools: list[dict[str, Any]] | None = None
    think: bool | str | None = None
    system: str | None = None
    suffix: str | None = None
    template: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    stream: Annotated[bool, msgspec.Meta(description="Ignored: a job's answer comes whole")] | None = None
    state_webhook_url: Annotated[
        str, msgspec.Meta(description="Every change of state is sent there", examples=["http://127.0.0.1:9000/hook"])
    ] | None = None  # fmt: skip
    webhook_events: Annotated[
        list[views.StateFilter], msgspec.Meta(max_length=len(views.TOPICS), description="Only these states; default: all")
    ] | None = None  # fmt: skip
    priority: Annotated[int, msgspec.Meta(ge=0, le=9, description="9 goes first")] = PRIORITY
    max_attempts: Annotated[int, msgspec.Meta(ge=1, le=1000, description="Default: engine.max_attempts")] | None = None
    run_at: Annotated[datetime, msgspec.Meta(tz=True, description="Not before this instant (RFC 3339)")] | None = None
    delay_seconds: Annotated[float, msgspec.Meta(ge=0, le=TEN_YEARS, description="Not before so many seconds")] = 0.0
    deadline_seconds: Annotated[
        float, msgspec.Meta(ge=0.001, le=TEN_YEARS, description="Fails when it has not finished so many seconds after submission")
    ] | None = None  # fmt: skip
    metadata: Annotated[msgspec.Raw, msgspec.Meta(description="A JSON object that is kept with the job")] = (
        msgspec.field(default_factory=absent)
    )
    artifacts: Annotated[
        list[ArtifactWish], msgspec.Meta(max_length=MAX_ARTIFACTS, description="What to keep of the answer as a file")
    ] = []


_decoder = msgspec.json.Decoder(SubmitInference)
_fields = msgspec.json.Decoder(Fields)
_roles = msgspec.json.Decoder(list[Role])
KNOWN = frozenset(field.encode_name for field in msgspec.structs.fields(SubmitInference))
# The first character of values that may be too large to decode: the target checks what is inside of them.
BEGINNINGS = {
    "messages": "[", "tools": "[", "images": "[",
    "prompt": '"', "system": '"', "suffix": '"', "template": '"',
}  # fmt: skip


async def read_submission(body: bytes, settings: InferenceConfig) -> tuple[SubmitInference, Fields]:
    """Return the checked body: typed where it is small, and every field as it was sent."""
    check_utf8(body)
    if len(body) > SMALL_BYTES:
        outline(body)
        await give_way(body)
    fields = decode(_fields, body, len(body))  # the outline has shown that there are few
    asked = _decoded(body, fields)
    await give_way(body)
    _check(asked, fields, settings)
    return asked, fields


def target_path(fields: Fields) -> str:
    return "/api/generate" if _given(fields, "prompt") else "/api/chat"


def target_body(fields: Fields) -> dict[str, Any]:
    """Return the body for the target: without the fields of ours, and streamed, so that we see the answer grow."""
    kept: dict[str, Any] = {name: value for name, value in fields.items() if name not in EXTENSIONS}
    return kept | {"stream": True}


def _decoded(body: bytes, fields: Fields) -> SubmitInference:
    """Decode what is small. Of a large value, check only how it begins."""
    if len(body) <= SMALL_BYTES:
        return decode(_decoder, body)
    for name, raw in fields.items():
        if len(raw) > SMALL_BYTES and name in BEGINNINGS and not _begins(raw, BEGINNINGS[name]):
            raise InvalidField(name, f"must begin with {BEGINNINGS[name]}")
    small = msgspec.json.encode({name: raw for name, raw in fields.items() if len(raw) <= SMALL_BYTES})
    return decode(_decoder, small, len(small))


def _begins(raw: msgspec.Raw, beginning: str) -> bool:
    return bytes(memoryview(raw)[:1]) == beginning.encode()


def _given(fields: Fields, name: str) -> bool:
    return name in fields and bytes(memoryview(fields[name])[:4]) != b"null"


def _check(asked: SubmitInference, fields: Fields, settings: InferenceConfig) -> None:
    """Whether the model exists is not checked: only a target knows."""
    _check_names(fields)
    check_model(asked.model, settings.allow_cloud)
    chat, completion = _given(fields, "messages"), _given(fields, "prompt")
    if chat == completion:
        raise InvalidField("messages", "give either messages (a chat) or prompt (a completion)")
    if chat:
        _check_messages(asked.messages, fields["messages"], settings.max_messages)
    if completion and len(fields["prompt"]) <= 2:
        raise InvalidField("prompt", "must not be empty")
    if asked.run_at is not None and asked.delay_seconds:
        raise InvalidField("delay_seconds", "excludes run_at: give one of them")
    if asked.webhook_events and asked.state_webhook_url is None:
        raise InvalidField("webhook_events", "needs state_webhook_url")
    for index, wish in enumerate(asked.artifacts):
        checked_name(f"artifacts[{index}].name", wish.name)
    if len({wish.name for wish in asked.artifacts}) < len(asked.artifacts):
        raise InvalidField("artifacts", "has two of the same name")


def _check_messages(messages: Sequence[object] | None, raw: msgspec.Raw, most: int) -> None:
    """`messages` is None where they are too large to decode: then only their roles are read."""
    Role.left = most
    try:
        found = _roles.decode(raw) if messages is None else messages
        if not found:
            raise InvalidField("messages", "must not be empty")
        if len(found) > most:
            raise InvalidField("messages", f"has {len(found)} entries; at most {most} (inference.max_messages)")
    except msgspec.ValidationError as error:
        if Role.left < 0:
            text = f"has more than {most} entries, the most that are taken (inference.max_messages)"
            raise InvalidField("messages", text) from None
        message, _, path = str(error).partition(" - at `$")
        raise InvalidField(f"messages{path.rstrip('`')}", message) from None


def _check_names(fields: Fields) -> None:
    """Ollama ignores unknown fields, and so do we; but a misspelt field of ours would be a webhook that never comes."""
    unknown = [name for name in fields if name not in KNOWN]
    if len(unknown) > MAX_UNKNOWN:
        raise InvalidField("body", f"has {len(unknown)} fields that are not known here; at most {MAX_UNKNOWN}")
    for name in unknown:
        if meant := _meant(name):
            raise InvalidField(name, f"is not known here; did you mean {meant}?")


def _meant(name: str) -> str:
    if len(name) > LONGEST_SLIP:
        return ""
    nearest = get_close_matches(name, EXTENSIONS, n=1, cutoff=0.8)
    return nearest[0] if nearest else "state_webhook_url" if "webhook" in name or "callback" in name else ""
