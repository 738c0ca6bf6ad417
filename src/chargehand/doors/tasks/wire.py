"""The requests of producers and workers: codeQ's bodies, decoded as codeQ does, and their checks. `null` means left out."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Raw

from chargehand.doors.tasks.errors import TaskRefused, invalid_body, write_error
from chargehand.doors.tasks.names import MAX_COMMAND, TAG
from chargehand.engine.job import SECOND
from chargehand.errors import BadRequest, InvalidField
from chargehand.http.inputs import TEN_YEARS, absent, json_object, json_or_absent
from chargehand.http.request import Request
from chargehand.http.route import Handler, Route, decode, read_body
from chargehand.webhooks.egress import EgressPolicy

T = TypeVar("T")
Delay = Annotated[float, Meta(le=TEN_YEARS)]
Lease = Annotated[
    int,
    Meta(
        ge=1,
        le=2**53 - 1,
        description="The `lease` that came with the task; proves that the worker still holds the task",
    ),
]
MAX_BATCH = 100
MAX_ATTEMPTS = 1000
MAX_KEY = 255
MAX_DECODED = 1000  # above MAX_BATCH, so that a batch that is somewhat too large gets codeQ's own error


class CreateTask(msgspec.Struct, rename="camel"):
    """A task for a worker that claims its command."""

    command: Annotated[str, Meta(description="Names the queue; upper and lower case are the same to it")] = ""
    payload: Annotated[Raw, Meta(description="Any JSON but null; comes back as text")] = msgspec.field(
        default_factory=absent
    )
    priority: Annotated[int, Meta(description="0 to 9, 9 first; others are moved there")] | None = None
    webhook: Annotated[str, Meta(description="Called when the task is COMPLETED or FAILED")] | None = None
    max_attempts: Annotated[int, Meta(description="0: the topic's, or tasks.max_attempts")] | None = None
    idempotency_key: Annotated[str, Meta(description="A repeat answers with the task it made before")] | None = None
    unique_key: (
        Annotated[str, Meta(description="While a task of this command and key is live, it is answered with")] | None
    ) = None
    run_at: Annotated[str, Meta(description="RFC 3339; not before then; wins over delaySeconds")] | None = None
    delay_seconds: Delay | None = None
    metadata: Annotated[Raw, Meta(description="Ours: a JSON object that comes with the task")] = msgspec.field(
        default_factory=absent
    )
    limit_key: Annotated[str, Meta(description="Whose limits hold, if the topic has limits for each key")] | None = None


class CreateTasks(msgspec.Struct):
    tasks: Annotated[tuple[Raw, ...], Meta(max_length=MAX_DECODED)] = ()


class ClaimTask(msgspec.Struct, rename="camel"):
    """The commands that a worker can handle."""

    commands: (
        Annotated[tuple[str, ...], Meta(max_length=100, description="Default: all that the token allows")] | None
    ) = None
    lease_seconds: Annotated[float, Meta(description="Up to engine.max_lease_seconds")] | None = None
    wait_seconds: Annotated[float, Meta(description="Long poll, up to 30")] | None = None


class ClaimTasks(ClaimTask, rename="camel"):
    count: Annotated[int, Meta(description="1 to 10")] = 0


class StreamTasks(ClaimTask, rename="camel"):
    max_in_flight: Annotated[int, Meta(ge=1, le=1000, description="Tasks of this stream in progress at once")] = 10


class Heartbeat(msgspec.Struct, rename="camel"):
    extend_seconds: Annotated[float, Meta(description="From now, up to engine.max_lease_seconds")] | None = None
    lease: Lease | None = None


class Nack(msgspec.Struct, rename="camel"):
    delay_seconds: (
        Annotated[float, Meta(description="0: at once; left out: the policy; up to tasks.backoff_max_seconds")] | None
    ) = None
    reason: str | None = None
    lease: Lease | None = None


class Abandon(msgspec.Struct):
    lease: Lease | None = None


class ReportProgress(msgspec.Struct):
    """How far a worker has come."""

    percent: Annotated[float, Meta(ge=0, le=100)] | None = None
    message: Annotated[str, Meta(max_length=10_000)] | None = None
    data: Annotated[Raw, Meta(description="Any JSON")] = msgspec.field(default_factory=absent)
    lease: Lease | None = None


class NewArtifact(msgspec.Struct, rename="camel"):
    """A file of a result: its URL, or its content."""

    name: str = ""
    url: str | None = None
    content_base64: Annotated[Raw, Meta(description="Text")] = msgspec.field(default_factory=absent)
    content_type: str | None = None


class SubmitResult(msgspec.Struct, rename="camel"):
    """The result of a task."""

    status: Annotated[str, Meta(description="COMPLETED or FAILED")] = ""
    result: Annotated[Raw, Meta(description="A JSON object; required for COMPLETED")] = msgspec.field(
        default_factory=absent
    )
    error: Annotated[str, Meta(description="Required for FAILED")] | None = None
    artifacts: Annotated[tuple[NewArtifact, ...], Meta(max_length=100)] | None = None
    lease: Lease | None = None


class SubmitOne(SubmitResult, rename="camel"):
    task_id: str = ""


class SubmitResults(msgspec.Struct):
    results: Annotated[tuple[Raw, ...], Meta(max_length=MAX_DECODED)] = ()


class CleanUpTasks(msgspec.Struct):
    limit: int | None = None
    before: str | None = None


create_task = msgspec.json.Decoder(CreateTask)
create_tasks = msgspec.json.Decoder(CreateTasks)
claim_task = msgspec.json.Decoder(ClaimTask)
claim_tasks = msgspec.json.Decoder(ClaimTasks)
stream_tasks = msgspec.json.Decoder(StreamTasks)
heartbeat = msgspec.json.Decoder(Heartbeat)
nack = msgspec.json.Decoder(Nack)
abandon = msgspec.json.Decoder(Abandon)
progress = msgspec.json.Decoder(ReportProgress)
submit_result = msgspec.json.Decoder(SubmitResult)
submit_one = msgspec.json.Decoder(SubmitOne)
submit_results = msgspec.json.Decoder(SubmitResults)
cleanup = msgspec.json.Decoder(CleanUpTasks)


def route(method: str, path: str, handler: Handler, summary: str, description: str = "", **more: Any) -> Route:
    """Return a route of codeQ's wire. Every authenticated caller gets to its handler, which asks `access`."""
    return Route(
        method, path, handler, summary, "", TAG, description, error_writer=write_error, request_id=True, **more
    )


async def read(req: Request, decoder: "msgspec.json.Decoder[T]", max_bytes: int, text: str = "invalid body") -> T:
    return parse(decoder, await read_body(req, max_bytes), text)


def parse(decoder: "msgspec.json.Decoder[T]", body: bytes | Raw, text: str = "invalid body") -> T:
    try:
        return decode(decoder, body)
    except BadRequest as error:
        raise invalid_body(error, text) from None


def parse_or_ignore(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Return the defaults where there is no body that can be read: codeQ ignores such a body, and its clients rely on that."""
    try:
        return parse(decoder, body or b"{}")
    except TaskRefused:
        return parse(decoder, b"{}")


def check_batch(field: str, entries: Sequence[Raw]) -> None:
    if not entries:
        detail = f"{field}: must have 1 to {MAX_BATCH} entries"
        raise TaskRefused(400, "invalid body", detail=detail, field=field)
    if len(entries) > MAX_BATCH:
        raise TaskRefused(400, f"batch size exceeds maximum of {MAX_BATCH}")


def instant(field: str, text: str) -> int:
    """Return RFC 3339 as microseconds since the epoch."""
    try:
        at = datetime.fromisoformat(text)
        if at.tzinfo is None or "T" not in text.upper():
            raise ValueError
        return int(at.timestamp() * SECOND)
    except (ValueError, OverflowError):
        raise TaskRefused(400, f"invalid '{field}' (use RFC3339)", field=field) from None


def some_json(field: str, raw: Raw, text: str = "invalid body") -> bytes | None:
    try:
        return json_or_absent(field, raw)
    except InvalidField as error:
        raise invalid_body(error, text) from None


def some_object(field: str, raw: Raw) -> Raw | None:
    try:
        data = json_object(field, raw)
        return None if data is None else Raw(data)
    except InvalidField as error:
        raise invalid_body(error, "invalid body") from None


def checked_key(field: str, key: str | None) -> str | None:
    if not key:
        return None
    if len(key) > MAX_KEY or not key.isprintable():
        raise TaskRefused(400, "invalid body", detail=f"{field}: at most {MAX_KEY} printable characters", field=field)
    return key


def checked_command(command: str) -> str:
    if not command.strip():
        raise TaskRefused(400, "invalid command", detail="command: must not be blank", field="command")
    if len(command) > MAX_COMMAND or not command.isprintable() or "*" in command:
        raise TaskRefused(
            400,
            "invalid command",
            detail=f"command: must have at most {MAX_COMMAND} printable characters, and no *",
            field="command",
        )
    return command.strip()


def checked_url(policy: EgressPolicy, field: str, url: str, text: str) -> str:
    try:
        return policy.check_url(field, url.strip())
    except InvalidField as error:
        raise TaskRefused(400, text, detail=error.message, field=field) from None
