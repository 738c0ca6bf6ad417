"""Types of `client.tasks`. Both sides leave out fields that are empty, so every field but the id has a default."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

Final = Literal["COMPLETED", "FAILED"]


class TaskProgress(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The last progress report of a task's worker."""

    updated_at: str = ""
    percent: float | None = None
    message: str = ""
    data: Any = None


class Task(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    id: str
    command: str = ""
    payload_json: str = msgspec.field(default="null", name="payload")  # JSON as text
    priority: int = 0
    webhook: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    status: str = ""  # PENDING, IN_PROGRESS, COMPLETED or FAILED
    last_known_location: str = ""
    worker_id: str = ""
    lease_until: str = ""
    lease: int = 0  # 0: the server does not number its leases (codeQ)
    attempts: int = 0
    max_attempts: int = 0
    run_at: str = ""
    limit_key: str = ""
    waiting_for: str = ""
    progress: TaskProgress | None = None
    error: str = ""
    result_key: str = ""
    metadata: Any = {}
    tenant_id: str = ""
    created_at: str = ""
    updated_at: str = ""

    @property
    def payload(self) -> Any:
        return msgspec.json.decode(self.payload_json)

    @property
    def finished(self) -> bool:
        return self.status in ("COMPLETED", "FAILED")


class Event(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A line of a task's log."""

    sequence: int
    at: str = ""
    move: str = ""
    status: str = ""
    level: str = "info"
    attempt: int = 0
    message: str = ""
    error: str = ""
    progress: TaskProgress | None = None


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
    metadata: Mapping[str, Any] = {}
    limit_key: str = ""


class Created(msgspec.Struct, frozen=True, omit_defaults=True):
    """One item of a batch: a task, or why there is none."""

    task: Task | None = None
    error: str = ""
    detail: str = ""


class TaskArtifact(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A file of a result: where it is (`url`), or its content."""

    name: str
    url: str = ""
    content_base64: str = msgspec.field(default="", name="contentBase64")
    content_type: str = ""


class NewResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How a task ended, as its worker reports it. `task_id` is for batches."""

    status: Final
    result: Any = None
    error: str = ""
    artifacts: tuple[TaskArtifact, ...] = ()
    lease: int = 0
    task_id: str = ""


class KeptArtifact(msgspec.Struct, frozen=True):
    """A file of a result, as the server keeps it."""

    name: str
    url: str = ""


class Result(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    task_id: str
    status: str
    completed_at: str = ""
    result: Any = None
    error: str = ""
    artifacts: tuple[KeptArtifact, ...] | None = None


class Ended(msgspec.Struct, frozen=True):
    """A task that has ended, and how."""

    task: Task
    result: Result


class ReportedResult(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One item of a batch of results: the result, or why the server refused it."""

    task_id: str = ""
    result: Result | None = None
    error: str = ""
    detail: str = ""


class Nacked(msgspec.Struct, frozen=True, rename="camel"):
    status: str  # requeued, or dlq
    delay_seconds: int = 0


class WorkerSubscription(msgspec.Struct, frozen=True, rename="camel"):
    subscription_id: str
    expires_at: str = ""


class ClaimedTasks(msgspec.Struct, frozen=True):
    tasks: list[Task] = []
