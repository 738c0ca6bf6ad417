"""What travels between a client and the engine's own API, typed: jobs, claims, deliveries, queues."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from chargehand.client.types.page import Page

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]
DeliveryState = Literal["pending", "delivered", "dead"]


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who is told of the changes of a job, and of which; none named: of all."""

    url: str
    on: Sequence[State] = ()


class Submitted(msgspec.Struct, frozen=True):
    job_id: str


class Moved(msgspec.Struct, frozen=True):
    job_id: str
    state: str
    sequence: int = 0


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    kind: str = ""
    queue: str = ""
    state: str = "queued"
    stage: str = ""
    previous: str = ""
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    run_at: str = ""
    deadline_at: str | None = None
    waiting_for: str | None = None
    error: str | None = None
    failed_step: str | None = None
    lease_owner: str | None = None
    lease_until: str | None = None
    sequence: int = 0
    created_at: str = ""
    updated_at: str = ""
    finished_at: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


class Job(Summary, frozen=True, kw_only=True):
    position: int | None = None
    metadata: Any = None
    payload: Any = None
    result: Any = None


class Claimed(Job, frozen=True, kw_only=True):
    """A job in your hands, until `lease_until` unless you beat. Each move needs its `lease`."""

    lease: int
    traceparent: str = ""
    tracestate: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    sequence: int
    at: str = ""
    level: str = "info"
    move: str = ""
    state: str = ""
    stage: str = ""
    previous: str = ""
    attempt: int = 0
    step: str = ""
    message: str = ""
    error: str | None = None
    data: Any = None


class Queue(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    queue: str
    ready: int = 0
    delayed: int = 0
    running: int = 0
    oldest_at: str | None = None
    paused: bool = False
    max_running: int | None = None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    job_id: str = ""
    sequence: int = 0
    endpoint_id: str = ""
    url: str = ""
    dialect: str = ""
    state: str = "pending"
    tries: int = 0
    due_at: str = ""
    reason: str = ""
    created_at: str = ""
    updated_at: str = ""


class Try(msgspec.Struct, frozen=True):
    number: int
    at: str = ""
    status: int | None = None
    duration_seconds: float = 0.0
    error: str = ""
    answer: str = ""


class DeliveryDetail(Delivery, frozen=True, kw_only=True):
    attempts: tuple[Try, ...] = ()  # the newest first


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    url: str = ""
    state: str = "active"  # paused, or disabled because it answered 410
    reason: str = ""
    pending: int = 0
    dead: int = 0
    oldest_due_at: str | None = None
    created_at: str = ""


class JobPage(Page, frozen=True, kw_only=True):
    jobs: list[Summary]


class DeliveryPage(Page, frozen=True, kw_only=True):
    deliveries: list[Delivery]


class EndpointPage(Page, frozen=True, kw_only=True):
    endpoints: list[Endpoint]


class ClaimReply(msgspec.Struct, frozen=True):
    jobs: list[Claimed]


class QueueList(msgspec.Struct, frozen=True):
    queues: list[Queue]


class Beaten(msgspec.Struct, frozen=True):
    lease_until: str


class Replayed(msgspec.Struct, frozen=True):
    replayed: int
