"""Types of `client.engine`: jobs of all doors, their events, claims and queues."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

State = Literal["queued", "running", "succeeded", "failed", "cancelled"]


class Webhook(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the server reports the changes of a job: those to the states in `on`, or all of them."""

    url: str
    on: Sequence[State] = ()


class SubmittedJob(msgspec.Struct, frozen=True):
    job_id: str


class MovedJob(msgspec.Struct, frozen=True):
    """The state of a job after a move, and the number of the event that recorded it."""

    job_id: str
    state: str
    sequence: int = 0


class ListedJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job in a list: without payload, result and metadata."""

    id: str
    kind: str = ""
    queue: str = ""
    state: str = "queued"
    stage: str = ""
    previous: str = ""
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    run_at: str | None = ""  # None: it waits for other steps of its flow
    deadline_at: str | None = None
    waiting_for: str | None = None
    error: str | None = None
    failed_step: str | None = None
    lease_owner: str | None = None
    lease_until: str | None = None
    flow: str | None = None  # of a step: the id of its flow …
    step: int | None = None  # … and its number there
    sequence: int = 0
    created_at: str = ""
    updated_at: str = ""
    finished_at: str | None = None

    @property
    def finished(self) -> bool:
        return self.state in ("succeeded", "failed", "cancelled")


class Job(ListedJob, frozen=True, kw_only=True):
    position: int | None = None
    idempotency_key: str | None = None
    limit_key: str = ""
    metadata: Any = None
    payload: Any = None
    result: Any = None


class LeasedJob(Job, frozen=True, kw_only=True):
    """A claimed job. It is yours until `lease_until` unless you beat; every move needs its `lease`."""

    lease: int
    traceparent: str = ""
    tracestate: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a job's log."""

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


class RateOfStarts(msgspec.Struct, frozen=True):
    """At most so many starts in any stretch of time of this length."""

    count: int
    seconds: float = 1.0


class QueueStatus(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    queue: str
    ready: int = 0
    delayed: int = 0
    running: int = 0
    oldest_at: str | None = None
    paused: bool = False
    max_running: int | None = None
    rate: RateOfStarts | None = None
    key_max_running: int | None = None
    key_rate: RateOfStarts | None = None
