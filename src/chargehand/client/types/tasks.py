"""What travels, typed. Members that are empty are left out on this wire, so everything but the id has a default."""

from typing import Any, Literal

import msgspec

from chargehand.client.types.page import Page

Final = Literal["COMPLETED", "FAILED"]


class Progress(msgspec.Struct, frozen=True, rename="camel"):
    """What the worker last said of a task."""

    updated_at: str = ""
    percent: float | None = None
    message: str = ""
    data: Any = None


class Task(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    command: str = ""
    payload_json: str = msgspec.field(default="null", name="payload")  # the wire has it as text
    priority: int = 0
    webhook: str = ""
    status: str = "PENDING"  # IN_PROGRESS, COMPLETED, FAILED
    worker_id: str = ""
    lease_until: str = ""
    lease: int = 0  # 0: the server does not number its leases (codeQ)
    attempts: int = 0
    max_attempts: int = 0
    run_at: str = ""
    progress: Progress | None = None
    error: str = ""
    tenant_id: str = ""
    created_at: str = ""
    updated_at: str = ""

    @property
    def payload(self) -> Any:
        return msgspec.json.decode(self.payload_json)

    @property
    def finished(self) -> bool:
        return self.status in ("COMPLETED", "FAILED")


class Artifact(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """With a `url`, or with its content."""

    name: str
    url: str = ""
    content_base64: str = msgspec.field(default="", name="contentBase64")
    content_type: str = ""


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    task_id: str
    status: str
    result: Any = None
    error: str = ""
    artifacts: tuple[Artifact, ...] | None = None
    completed_at: str = ""


class Event(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A line of a task's log."""

    sequence: int
    at: str = ""
    move: str = ""
    status: str = ""
    level: str = "info"
    attempt: int = 0
    message: str = ""
    error: str = ""
    progress: Progress | None = None


class Ended(msgspec.Struct, frozen=True):
    """A task that has ended, and how."""

    task: Task
    result: Result


class Nacked(msgspec.Struct, frozen=True, rename="camel"):
    status: str  # requeued | dlq
    delay_seconds: float = 0


class Subscription(msgspec.Struct, frozen=True, rename="camel"):
    subscription_id: str
    expires_at: str = ""


class NewTask(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    command: str
    payload: Any
    priority: int = 0
    webhook: str = ""
    max_attempts: int = 0
    idempotency_key: str = ""
    unique_key: str = ""
    run_at: str = ""
    delay_seconds: float = 0


class Outcome(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a worker says of a task that it has ended."""

    status: Final
    result: Any = None
    error: str = ""
    artifacts: tuple[Artifact, ...] = ()
    lease: int = 0
    task_id: str = ""  # only in a batch


class Created(msgspec.Struct, frozen=True):
    """One item of a batch: a task, or why there is none."""

    task: Task | None = None
    error: str = ""


class CreatedMany(msgspec.Struct, frozen=True):
    results: list[Created]


class Claimed(msgspec.Struct, frozen=True):
    tasks: list[Task] = []
    error: str = ""


class Submitted(msgspec.Struct, frozen=True, rename="camel"):
    task_id: str = ""
    result: Result | None = None
    error: str = ""


class SubmittedMany(msgspec.Struct, frozen=True):
    results: list[Submitted]


class TaskPage(Page, frozen=True, kw_only=True):
    tasks: list[Task]
