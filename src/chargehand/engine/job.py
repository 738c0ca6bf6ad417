"""The values the engine works with. All frozen: a change makes a copy, and only a move changes a job.

Instants (`…_at`) are whole microseconds since the epoch, lengths (`…_seconds`) are seconds. Payloads and results are JSON as
the caller sent it: the engine never looks inside, so no digit of a large number is lost. Behind the JSON of a payload a door
may keep bytes that are never shown.
"""

from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from chargehand.engine.operation import Operation
from chargehand.engine.queue import Queue

if TYPE_CHECKING:
    from chargehand.engine.moves import Submitted  # noqa: F401 - what the store answers to a NewJob

SECOND = 1_000_000  # in the unit of every `…_at`


class State(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})
PRIORITIES = range(10)  # 9 is served first
LEASE_RANDOM_BITS = 32  # of a lease, below the count of claims; two million claims stay below 2**53, JavaScript's bound
RESTING = "resting"  # the stage of a queued job whose owner is gone: callers still see its last state

NEVER = 221_845_392_000_000_000  # the year 9000: the run_at of a job that another one will release

NOT_SHOWN = b"\0"  # which JSON cannot contain: it begins the part of a payload that is never shown

Level = Literal["info", "warn", "error"]


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a job's changes are sent, and in which dialect. `on` filters by state or `state:stage`; empty means all."""

    url: str
    endpoint_id: str
    dialect: str = "standard"
    on: tuple[str, ...] = ()
    max_attempts: int | None = None
    backoff_base_seconds: float | None = None
    backoff_max_seconds: float | None = None

    def wants(self, topic: str) -> bool:
        return not self.on or topic in self.on or topic.partition(":")[0] in self.on


class NewJob(Operation["Submitted"], frozen=True, array_like=True, tag="submit"):
    id: str
    queue: Queue
    payload: bytes
    priority: int = 0
    max_attempts: int = 1
    run_at: int | None = None
    delay_seconds: float = 0.0
    idempotency_key: str | None = None
    fingerprint: str | None = None
    traceparent: str = ""
    tracestate: str = ""
    reports: tuple[Report, ...] = ()
    metadata: bytes | None = None
    deadline_seconds: float | None = None  # counted from the submission
    unique_key: str | None = None  # at most one job of this queue and key is live: another submission finds that one
    keep_seconds: float | None = None  # after its end; None: as long as the server keeps finished jobs
    flow: str | None = None  # of a step: the job that is its flow …
    step: int | None = None  # … and its number there
    waits: bool = False  # for other steps; what `run_at` and `delay_seconds` say counts from their end
    limit_key: str = ""  # whose limits hold for it, if the queue has limits for each key

    @property
    def tenant(self) -> str:
        return self.queue.tenant

    @property
    def kind(self) -> str:
        return self.queue.kind


class Job(msgspec.Struct, frozen=True, array_like=True):
    """A row of `jobs`, with the payload and the result where they were asked for."""

    id: str
    queue: Queue
    state: State
    stage: str
    topic: str  # the last `state:stage` that callers could see
    previous: str  # and the one before that
    priority: int
    run_at: int
    attempt: int
    max_attempts: int
    lease: int  # grows with every claim, by a number nobody can guess: the fence against all who do not hold the job
    lease_owner: str | None
    lease_until: int | None
    waiting_for: str
    error: str | None
    failed_step: str | None
    idempotency_key: str | None
    traceparent: str
    tracestate: str
    reports: str  # JSON: tuple[Report, ...]; "" for nobody
    metadata: bytes | None
    seq: int
    created_at: int
    updated_at: int
    finished_at: int | None
    deadline_at: int | None
    flow: str | None = None  # of a step: the job that is its flow …
    step: int | None = None  # … and its number there
    limit_key: str = ""
    payload: bytes = b""
    result: bytes | None = None

    @property
    def tenant(self) -> str:
        return self.queue.tenant

    @property
    def kind(self) -> str:
        return self.queue.kind

    @property
    def claims(self) -> int:
        """Return how often the job was claimed."""
        return self.lease >> LEASE_RANDOM_BITS or self.lease  # 0.1.0 wrote the count alone

    @property
    def finished(self) -> bool:
        return self.state in FINAL

    @property
    def waits_for_steps(self) -> bool:
        """Return whether it is a step of a flow that others have to end before."""
        return self.state is State.QUEUED and self.run_at == NEVER


class Event(msgspec.Struct, frozen=True, array_like=True):
    """A line of a job's log. `seq` counts from 1 for each job, without a gap."""

    job_id: str
    seq: int
    at: int
    level: Level
    move: str  # the move that wrote it, or "note"
    state: State
    stage: str
    previous: str
    attempt: int
    step: str
    message: str
    error: str | None
    data: bytes | None


class Rate(msgspec.Struct, frozen=True, array_like=True):
    """At most so many starts in any stretch of time of this length."""

    count: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.count} in {self.seconds:g} s"


class QueueLimits(msgspec.Struct, frozen=True, array_like=True):
    """Limits of a queue besides max_running. Those named key_ hold for each limit key separately."""

    rate: Rate | None = None
    key_max_running: int | None = None
    key_rate: Rate | None = None

    @property
    def by_key(self) -> bool:
        return self.key_max_running is not None or self.key_rate is not None


class QueueSettings(msgspec.Struct, frozen=True, array_like=True):
    queue: Queue
    paused: bool = False
    max_running: int | None = None
    limits: QueueLimits = QueueLimits()

    @property
    def window(self) -> float:
        """Return for how many seconds a start counts; 0 where there is no rate."""
        return max((rate.seconds for rate in (self.limits.rate, self.limits.key_rate) if rate is not None), default=0)

    @property
    def frees_room(self) -> bool:
        """Return whether the end of a job may let another one start."""
        return self.max_running is not None or self.limits.key_max_running is not None


class SetQueue(Operation[None], frozen=True, array_like=True, tag="set_queue"):
    settings: QueueSettings


class QueueCount(msgspec.Struct, frozen=True, array_like=True):
    """What stands in a queue, with all that is there for single nodes."""

    queue: Queue
    by_priority: dict[int, int]  # ready jobs
    delayed: int
    running: int
    oldest_at: int | None  # run_at of the ready job that waits longest

    @property
    def ready(self) -> int:
        return sum(self.by_priority.values())


def topic_of(state: str, stage: str) -> str:
    return f"{state}:{stage}" if stage else str(state)


def visible(state: str, stage: str) -> bool:
    """Return whether callers see this state. A claimed job of which nothing was observed yet shows no new one.

    A job queued in a stage rests: its owner is gone and another will continue, so callers still see its last state.
    """
    return (stage != "") if state == State.RUNNING else (state != State.QUEUED or stage == "")


def shown_payload(payload: bytes) -> bytes:
    """Return the part of a payload that is JSON."""
    end = payload.find(NOT_SHOWN)
    return payload if end < 0 else payload[:end]


def rfc3339(at: int) -> str:
    return f"{_second(at // SECOND)}.{at // 1000 % 1000:03d}Z"


@lru_cache(maxsize=1024)  # much happens in the same second
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().removesuffix("+00:00")
