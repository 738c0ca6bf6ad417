"""What can be read of a store, by noun: the filters, the answers, and a protocol for each noun.

A read sees the last commit and waits for no write.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from chargehand.engine.delivery import Delivery, Endpoint, Outgoing, Subject, Try
from chargehand.engine.file import File
from chargehand.engine.flow import FlowSteps
from chargehand.engine.job import Event, Job, QueueCount, QueueSettings, State
from chargehand.engine.queue import Queue
from chargehand.engine.record import Record


class JobFilter(msgspec.Struct, frozen=True):
    """Which jobs to list, newest first. Each field that is given narrows the list."""

    tenant: str | None = None  # None: goes with `late` alone
    kind: str | None = None
    queue: str | None = None  # its name
    state: State | None = None
    before: str | None = None  # a job id: the cursor
    limit: int = 50
    topics: tuple[str, ...] = ()  # what callers see: one of these, each `state:stage`
    stopped: bool = False  # failed or cancelled
    names: tuple[str, ...] = ()  # in small letters: one of these is the queue's name …
    starts: bool = False  # … or only how it starts
    kinds: tuple[str, ...] | None = None  # only jobs of these; None: whichever
    since: int | None = None  # created at this instant or later
    until: int | None = None  # created before this instant
    text: str = ""  # in the error, in upper or lower case
    first: str = ""  # a job id: this one or newer
    last_of: int = 0  # only the last of so many that a list looks at, whether or not it is like this
    searched: int | None = None  # so many are looked at, whether or not they are like this; None: all
    live: bool = False  # what waits or runs, in no order; goes with `tenant`, `kind`, `queue` and `limit` alone
    key: str | None = None  # the idempotency key; goes with `tenant` and `kinds` alone
    id: str | None = None  # of a job, or of one of its deliveries; goes with `tenant` and `kinds` alone
    late: Literal["", "lease", "deadline"] = ""  # whose lease or deadline has passed; goes with `limit` alone
    owner_prefix: str = ""  # late: leases of these owners, whether or not they have passed


class DeliveryFilter(msgspec.Struct, frozen=True):
    tenant: str | None = None
    endpoint_id: str | None = None
    job_id: str | None = None
    state: str | None = None
    before: str | None = None
    limit: int = 50
    id: str | None = None  # this one; goes with `tenant` alone


class EndpointFilter(msgspec.Struct, frozen=True):
    tenant: str | None = None
    after: str = ""
    limit: int = 50
    id: str | None = None  # this one; goes with `tenant` alone


class FileFilter(msgspec.Struct, frozen=True):
    """Files by id, by job (and name), or else those of a tenant that were uploaded for a purpose, newest first."""

    tenant: str | None = None
    id: str | None = None
    job_id: str | None = None
    name: str | None = None
    purpose: str | None = None
    before: str | None = None
    limit: int = 50


class RecordFilter(msgspec.Struct, frozen=True):
    """Records of a kind: one by tenant and name, those of a tenant after a name, all, or those that are due."""

    kind: str
    tenant: str | None = None
    name: str | None = None
    after: str = ""  # a name; needs a tenant
    limit: int = 1000
    due: bool = False  # the longest due first


class TopicCount(msgspec.Struct, frozen=True, array_like=True):
    """Running jobs of a tenant and kind in one stage."""

    tenant: str
    kind: str
    topic: str  # what callers see
    count: int


class DueQueue(msgspec.Struct, frozen=True, array_like=True):
    queue: Queue
    ready: int  # counted up to the asked bound
    next_at: int | None  # when the next delayed job becomes ready


class QueueHead(msgspec.Struct, frozen=True, array_like=True):
    """What a scheduler must know of a queue with queued jobs to decide whether to claim from it."""

    queue: Queue
    ready: int  # due jobs, counted up to the asked bound; 0 where the queue is paused or runs as many as it may
    priority: int  # the highest with a due job; -1: nothing is due
    oldest_at: int | None  # run_at of the due job that waits longest
    next_at: int | None  # when the next delayed job becomes due


class Pulse(msgspec.Struct, frozen=True, array_like=True):
    """Whether there is work in a queue, and since when: what a notifier must know to notify sleeping workers once."""

    ready: int  # due jobs, counted up to the asked bound, whether or not the queue is paused
    oldest_at: int | None  # run_at of the due job that waits longest …
    newest_at: int | None  # … and of the one that waits shortest
    delayed: bool  # a job that was put in for later became due after `since`
    next_at: int | None  # when the next delayed job becomes due
    paused: bool
    at: int  # when this was so, by the store's clock


class StepFilter(msgspec.Struct, frozen=True):
    """Steps of a flow from a number on, or those of these names, with their results."""

    flow_id: str
    first: int = 0
    limit: int = 500
    names: tuple[str, ...] | None = None
    measured: bool = False  # only how long the results of these names are
    counted: bool = False  # count all steps too, by kind and state


class Waiting(msgspec.Struct, frozen=True):
    """What a queued job waits for in its queue."""

    position: int | None  # jobs before it, counted up to the asked bound; None: it does not wait
    held_by: str  # why a due job is not claimed: paused, or which limit


class JobReads(Protocol):
    async def now(self) -> int: ...  # the clock that decides leases
    async def get_job(self, job_id: str, tenant: str | None = None, *, whole: bool = True) -> Job | None: ...
    async def list_jobs(self, by: JobFilter) -> list[Job]: ...
    async def list_events(
        self, job_id: str, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]: ...
    async def last_note(self, job_id: str, step: str) -> Event | None: ...
    async def list_steps(self, by: StepFilter) -> FlowSteps: ...
    async def waiting(self, job: Job, bound: int = 0) -> Waiting: ...

    async def due_queues(self, queues: Sequence[Queue], bound: int) -> list[DueQueue]: ...
    async def queue_heads(
        self, kind: str, bound: int, tenant: str | None = None, *, wide: bool = False
    ) -> list[QueueHead]: ...  # wide: many queues
    async def pulse(self, queue: Queue, since: int, bound: int) -> Pulse: ...
    async def count_queues(self) -> list[QueueCount]: ...
    async def count_topics(self) -> list[TopicCount]: ...
    async def count_stopped(self, topic: str) -> dict[Queue, int]: ...
    async def list_queue_settings(self) -> list[QueueSettings]: ...


class OutboxReads(Protocol):
    async def outgoing(self, delivery_ids: Sequence[str]) -> list[Outgoing]: ...
    async def due_endpoints(self, limit: int) -> list[tuple[str, int]]: ...
    async def list_deliveries(self, by: DeliveryFilter) -> list[Delivery]: ...
    async def list_tries(self, delivery_id: str) -> list[Try]: ...
    async def subjects(self, job_ids: Mapping[str, str]) -> list[Subject]:
        """Return what deliveries are about; `job_ids` has the job of each by its id."""
        ...

    async def list_endpoints(self, by: EndpointFilter) -> list[Endpoint]: ...


class FileReads(Protocol):
    async def list_files(self, by: FileFilter) -> list[File]: ...
    async def blobs_in_use(self, sha256s: Sequence[str]) -> set[str]: ...


class RecordReads(Protocol):
    async def list_records(self, by: RecordFilter) -> list[Record]: ...
