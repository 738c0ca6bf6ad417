"""A schedule: the request, the stored record, the view."""

from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from chargehand.doors.tasks import cron
from chargehand.doors.tasks.wire import MAX_ATTEMPTS, CreateTask, checked_command, checked_key, checked_url, some_object
from chargehand.engine.delivery import shown_url
from chargehand.engine.job import PRIORITIES, rfc3339
from chargehand.engine.record import Record
from chargehand.errors import InvalidField
from chargehand.http.inputs import absent, json_or_absent
from chargehand.webhooks.egress import EgressPolicy

MAX_NAME = 200
SHOWN_TICKS = 3
NO_METADATA = msgspec.Raw(b"null")


class ScheduleRequest(msgspec.Struct, frozen=True, rename="camel"):
    """When to create which task; the fields of the task are those of `POST /tasks`."""

    cron: Annotated[
        str,
        msgspec.Meta(
            description=f"minute hour day-of-month month day-of-week, or one of {', '.join(cron.NAMED)}",
            examples=["30 2 * * *"],
        ),
    ]
    command: str
    name: Annotated[str, msgspec.Meta(description=f"1 to {MAX_NAME} printable characters, none of them /")] = ""
    timezone: Annotated[str, msgspec.Meta(description="An IANA name", examples=["Europe/Berlin"])] = "UTC"
    payload: Annotated[msgspec.Raw, msgspec.Meta(description="Any JSON but null")] = msgspec.field(
        default_factory=absent
    )
    priority: Annotated[int, msgspec.Meta(description="0 to 9, and 9 goes first; others are moved into that range")] = 0
    webhook: Annotated[str, msgspec.Meta(description="http or https; called when the task has ended")] = ""
    max_attempts: Annotated[int, msgspec.Meta(description="0: as the command's topic or the server says")] = 0
    limit_key: Annotated[str, msgspec.Meta(description="Whose limits hold, if the topic has limits for each key")] = ""
    metadata: Annotated[msgspec.Raw, msgspec.Meta(description="A JSON object that comes with the task")] = (
        msgspec.field(default_factory=lambda: NO_METADATA)
    )


class StoredSchedule(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of the record; the record's `due_at` is the next tick."""

    asked: ScheduleRequest
    paused: bool = False
    version: int = 1  # counts changes by callers; the record's own version also counts ticks
    last_run_at: int | None = None
    last_task_id: str = ""
    last_error: str = ""


class Schedule(msgspec.Struct, rename="camel"):
    name: str
    cron: str
    timezone: str
    command: str
    payload: Any
    priority: int
    webhook: Annotated[
        str, msgspec.Meta(description="Without its query; sent back like this, it keeps the query it has")
    ]
    max_attempts: int
    limit_key: str
    metadata: Any
    paused: bool
    next_run_at: str | None
    last_run_at: Annotated[str | None, msgspec.Meta(description="The tick that the last task was made for")]
    last_task_id: str
    last_error: Annotated[str, msgspec.Meta(description="Why the last tick made no task")]
    version: Annotated[int, msgspec.Meta(description="1, and one more with each change; ticks do not count")]
    created_at: str


class ScheduleView(Schedule):
    next_runs: Annotated[list[str], msgspec.Meta(description=f"The next {SHOWN_TICKS} ticks")]


class ScheduleList(msgspec.Struct):
    schedules: list[Schedule]


_bodies = msgspec.json.Decoder(StoredSchedule)


def kept_in(record: Record) -> StoredSchedule:
    return _bodies.decode(record.body)


def task_of(asked: ScheduleRequest) -> CreateTask:
    return CreateTask(
        command=asked.command,
        payload=asked.payload,
        priority=asked.priority,
        webhook=asked.webhook,
        max_attempts=asked.max_attempts,
        limit_key=asked.limit_key,
        metadata=asked.metadata,
    )


# checks -----------------------------------------------------------------------------------------------------------------


def checked(asked: ScheduleRequest, policy: EgressPolicy, now: int) -> ScheduleRequest:
    """Refuse now what would fail at a tick, where no caller sees the error."""
    if not is_name(asked.name):
        raise InvalidField(
            "name", f"must have 1 to {MAX_NAME} printable characters, none of them /, and no blanks around it"
        )
    cron.check(asked.cron, asked.timezone, now)
    payload = json_or_absent("payload", asked.payload)
    if payload is None:
        raise InvalidField("payload", "is missing; any JSON but null is allowed")
    return replace(
        asked,
        command=checked_command(asked.command),
        payload=msgspec.Raw(payload),
        priority=min(max(asked.priority, PRIORITIES[0]), PRIORITIES[-1]),
        webhook=checked_url(policy, "webhook", asked.webhook, "invalid webhook url") if asked.webhook else "",
        max_attempts=min(max(asked.max_attempts, 0), MAX_ATTEMPTS),
        limit_key=checked_key("limitKey", asked.limit_key) or "",
        metadata=some_object("metadata", asked.metadata) or NO_METADATA,
    )


def completed(asked: ScheduleRequest, kept: ScheduleRequest) -> ScheduleRequest:
    """Keep the stored webhook if the caller sent it as it is shown, which is without its query."""
    return replace(asked, webhook=kept.webhook) if asked.webhook == shown_webhook(kept) else asked


def is_name(name: str) -> bool:
    """Return whether the name can be part of a path; `.` and `..` cannot."""
    return (
        1 <= len(name) <= MAX_NAME
        and name.isprintable()
        and "/" not in name
        and name.strip() == name
        and name not in (".", "..")
    )


# views ------------------------------------------------------------------------------------------------------------------


def shown_webhook(asked: ScheduleRequest) -> str:
    return shown_url(asked.webhook) if asked.webhook else ""


def listed(record: Record) -> Schedule:
    return Schedule(**_members(record))


def view(record: Record) -> ScheduleView:
    ticks = [] if record.due_at is None else [record.due_at]
    if ticks:
        asked = kept_in(record).asked
        ticks += cron.following(asked.cron, asked.timezone, ticks[0], SHOWN_TICKS - 1)
    return ScheduleView(**_members(record), next_runs=[rfc3339(tick) for tick in ticks])


def _members(record: Record) -> dict[str, Any]:
    kept = kept_in(record)
    return {field: getattr(kept.asked, field) for field in ScheduleRequest.__struct_fields__} | {
        "webhook": shown_webhook(kept.asked),
        "paused": kept.paused,
        "next_run_at": None if record.due_at is None else rfc3339(record.due_at),
        "last_run_at": None if kept.last_run_at is None else rfc3339(kept.last_run_at),
        "last_task_id": kept.last_task_id,
        "last_error": kept.last_error,
        "version": kept.version,
        "created_at": rfc3339(record.created_at),
    }
