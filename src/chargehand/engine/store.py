"""What the engine and the outbox ask of a store. `chargehand.store` has two of them; one conformance suite runs on both.

Every write is durable when it returns and guarded by what the caller saw. A write that lost its race says so by its answer
(None, False), never by overwriting. Errors are those of `chargehand.errors`, never a driver's.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from chargehand.engine.delivery import (
    Delivery,
    Endpoint,
    EndpointCount,
    EndpointState,
    Outgoing,
    Settle,
    Take,
    Taken,
    Told,
    Try,
)
from chargehand.engine.file import File, NewFile
from chargehand.engine.guard import Guard
from chargehand.engine.job import Event, Job, NewJob, QueueCount, QueueSettings, State
from chargehand.engine.moves import Change, Moved
from chargehand.engine.record import DropRecord, PutRecord, Record


class Submitted(msgspec.Struct, frozen=True, array_like=True, tag="submitted"):
    job_id: str
    created: bool  # False: the idempotency key was known, and this is the job it made
    fingerprint: str | None
    moved: Moved | None = None


class Claim(msgspec.Struct, frozen=True, array_like=True, tag="claim"):
    """Take up to `limit` due jobs of these queues: by priority, then age, over all of them."""

    queues: tuple[str, ...]
    owner: str
    lease_seconds: float
    limit: int = 1
    stage: str = ""  # given at once when taking the job is all there is to observe
    lease_random: int = 0  # the low 32 bits of the lease: nobody else can guess them


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag="claimed"):
    jobs: tuple[Job, ...]
    endpoints: tuple[str, ...] = ()


class Beat(msgspec.Struct, frozen=True, array_like=True, tag="beat"):
    guard: Guard
    lease_seconds: float


class Beaten(msgspec.Struct, frozen=True, array_like=True, tag="beaten"):
    lease_until: int | None


class Note(msgspec.Struct, frozen=True, array_like=True, tag="note"):
    """A line in a job's log without a move. Without a holder in its guard it may be written in any state."""

    guard: Guard
    level: str = "info"
    step: str = ""
    message: str = ""
    data: bytes | None = None


class Noted(msgspec.Struct, frozen=True, array_like=True, tag="noted"):
    seq: int | None


class TopicCount(msgspec.Struct, frozen=True, array_like=True):
    """Running jobs of a tenant and kind in one stage."""

    tenant: str
    kind: str
    topic: str  # what callers see
    count: int


class DueQueue(msgspec.Struct, frozen=True, array_like=True):
    queue: str
    ready: int  # counted up to the asked bound
    next_at: int | None  # when the next delayed job becomes ready


class QueueHead(msgspec.Struct, frozen=True, array_like=True):
    """What a scheduler must know of a queue with queued jobs to decide whether to claim from it."""

    queue: str
    ready: int  # due jobs, counted up to the asked bound; 0 where the queue is paused or runs as many as it may
    priority: int  # the highest with a due job; -1: nothing is due
    oldest_at: int | None  # run_at of the due job that waits longest
    next_at: int | None  # when the next delayed job becomes due


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """Whether there is work in a queue, and since when: what must be known to tell sleeping workers of it, once."""

    ready: int  # due jobs, counted up to the asked bound, whether or not the queue is paused
    oldest_at: int | None  # run_at of the due job that waits longest …
    newest_at: int | None  # … and of the one that waits shortest
    delayed: bool  # a job that was put in for later became due after `since`
    next_at: int | None  # when the next delayed job becomes due
    paused: bool
    at: int  # when this was so, by the store's clock


class JobFilter(msgspec.Struct, frozen=True):
    tenant: str | None = None
    kind: str | None = None
    queue: str | None = None
    state: State | None = None
    before: str | None = None  # a job id: the cursor
    limit: int = 50
    topic: str | None = None  # what callers see: `state:stage`
    stopped: bool = False  # failed or cancelled
    exact: bool = False  # this queue, and no part of it that belongs to a single node
    names: tuple[str, ...] = ()  # in small letters: one of these is the name in the queue, whichever the kind …
    starts: bool = False  # … or only how it starts
    kinds: tuple[str, ...] | None = None  # only jobs of these; None: whichever


class DeliveryFilter(msgspec.Struct, frozen=True):
    tenant: str | None = None
    endpoint_id: str | None = None
    job_id: str | None = None
    state: str | None = None
    before: str | None = None
    limit: int = 50


Instant = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class Hint(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another node says has happened. Never the truth, only a reason to look."""

    queues: dict[str, Instant] = {}  # queue -> earliest run_at of what was put there
    jobs: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()  # names of workers' streams that are to end


class Store(Protocol):
    # jobs
    def submit(self, job: NewJob) -> Awaitable[Submitted]: ...
    def claim(self, claim: Claim) -> Awaitable[Claimed]: ...
    def change(self, change: Change) -> Awaitable[Moved | None]: ...
    async def beat(self, beat: Beat) -> int | None: ...
    async def note(self, note: Note) -> int | None: ...
    async def state_of(self, job_id: str) -> State | None: ...
    async def holds(self, job_id: str, lease: int) -> bool: ...  # whether the job still runs under this lease
    async def get_job(self, job_id: str, tenant: str | None = None) -> Job | None: ...
    async def list_jobs(self, by: JobFilter) -> list[Job]: ...
    async def jobs_of_key(self, tenant: str, kinds: Sequence[str], key: str) -> list[Job]: ...  # an idempotency key
    async def last_note(self, job_id: str, step: str) -> Event | None: ...
    async def finished_jobs(self, tenant: str, kind: str, before: int, age: int, limit: int) -> list[str]: ...
    async def list_events(
        self, job_id: str, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]: ...
    async def lapsed_jobs(self, limit: int, owner_prefix: str = "") -> list[Job]: ...
    async def overdue_jobs(self, limit: int) -> list[Job]: ...

    # queues
    async def due_queues(self, queues: Sequence[str], bound: int) -> list[DueQueue]: ...
    async def queue_heads(
        self, prefix: str, bound: int, wide: bool = False
    ) -> list[QueueHead]: ...  # wide: many queues
    async def pulse(self, queue: str, since: int, bound: int) -> Pulse: ...
    async def count_queues(self, prefix: str = "") -> list[QueueCount]: ...
    async def count_topics(self) -> list[TopicCount]: ...
    async def count_ready(self, queue: str) -> dict[int, int]: ...  # by priority
    async def count_stopped(self, tenant: str | None, topic: str) -> dict[str, int]: ...  # by queue
    async def set_queue(self, settings: QueueSettings) -> None: ...
    async def list_queue_settings(self) -> list[QueueSettings]: ...
    async def position(self, job_id: str, bound: int) -> int | None: ...

    # deliveries
    def take_deliveries(self, take: Take) -> Awaitable[Taken]: ...
    async def outgoing(self, delivery_ids: Sequence[str]) -> list[Outgoing]: ...
    def settle_delivery(self, settle: Settle) -> Awaitable[bool]: ...
    async def release_deliveries(self, ids: tuple[str, ...], leases: tuple[int, ...]) -> None: ...
    async def replay_delivery(self, delivery_id: str, tenant: str) -> str | None: ...
    async def replay_endpoint(self, endpoint_id: str, tenant: str, limit: int) -> int: ...
    async def give_up_deliveries(self, age_seconds: float, limit: int) -> int: ...
    async def due_endpoints(self, limit: int) -> list[tuple[str, int]]: ...
    async def get_delivery(self, delivery_id: str, tenant: str | None = None) -> Delivery | None: ...
    async def list_tries(self, delivery_id: str) -> list[Try]: ...
    async def list_deliveries(self, by: DeliveryFilter) -> list[Delivery]: ...
    async def told(self, delivery_ids: Sequence[str]) -> list[Told]: ...
    async def get_endpoint(self, endpoint_id: str, tenant: str | None = None) -> Endpoint | None: ...
    async def list_endpoints(self, tenant: str | None, after: str, limit: int) -> list[Endpoint]: ...
    async def count_endpoints(self, endpoint_ids: Sequence[str]) -> list[EndpointCount]: ...
    async def set_endpoint(self, endpoint_id: str, tenant: str, state: EndpointState, reason: str) -> bool: ...

    # files: the rows, not the bytes
    async def put_file(self, file: NewFile) -> File: ...
    async def drop_file(self, file_id: str, tenant: str | None = None) -> bool: ...
    async def get_file(self, file_id: str, tenant: str | None = None) -> File | None: ...
    async def job_files(self, job_id: str) -> list[File]: ...
    async def job_file(self, job_id: str, name: str) -> File | None: ...
    async def list_files(
        self, tenant: str, purpose: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[File]: ...
    async def blobs_in_use(self, sha256s: Sequence[str]) -> set[str]: ...

    # records: what doors remember besides jobs
    async def put_record(self, put: PutRecord) -> Record | None: ...  # None: the race was lost
    async def drop_record(self, drop: DropRecord) -> bool: ...
    async def get_record(self, kind: str, tenant: str, name: str) -> Record | None: ...
    async def list_records(
        self, kind: str, tenant: str | None = None, after: str = "", limit: int = 1000
    ) -> list[Record]: ...  # by tenant and name; `after` is a name, and needs a tenant
    async def due_records(self, kind: str, limit: int) -> list[Record]: ...  # the longest due first

    # upkeep
    async def prune(self, age_seconds: float, limit: int) -> int: ...
    async def prune_kept(self, limit: int) -> int: ...  # those with a time of their own
    async def purge(self, tenant: str, kind: str, ids: tuple[str, ...]) -> int: ...  # finished jobs, now
    async def prune_files(self, age_seconds: float, limit: int) -> int: ...
    async def now(self) -> int: ...
    async def check(self) -> None: ...
    async def ended(self) -> str: ...  # returns, with the reason, when the store can never serve again
    def listen(self, heard: Callable[[Hint], None]) -> None: ...
    def tell(self, queue: str = "", run_at: int = 0, job_id: str = "", endpoints: tuple[str, ...] = ()) -> None: ...
    def tell_stream(self, name: str) -> None: ...
    async def close(self) -> None: ...
