"""What the engine asks of a store: one way to write, and reads by noun. `chargehand.store` has two; one suite tests both.

Every write is an operation, durable when it returns, and guarded by what the caller saw. A write that lost its race says so by
its answer (None, False, 0), never by overwriting. Errors are those of `chargehand.errors`, never a driver's.

Only the engine, the outbox, the files and the wiring know a store. Doors ask the engine.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import msgspec

from chargehand.engine.hint import Hint
from chargehand.engine.job import Job
from chargehand.engine.operation import Operation
from chargehand.engine.queue import Queue
from chargehand.engine.reads import FileReads, JobReads, OutboxReads, RecordReads

A = TypeVar("A")
LOOK_ON = 0


class Claimed(msgspec.Struct, frozen=True, array_like=True, tag="claimed"):
    jobs: tuple[Job, ...]
    endpoints: tuple[str, ...] = ()
    later_at: int | None = None  # when a limit lets more start, although no job ends; LOOK_ON: not known yet


class Claim(Operation[Claimed], frozen=True, array_like=True, tag="claim"):
    """Take up to `limit` due jobs of these queues: by priority, then age, over all of them."""

    queues: tuple[Queue, ...]
    owner: str
    lease_seconds: float
    limit: int = 1
    stage: str = ""  # given at once when taking the job is all there is to observe
    lease_random: int = 0  # the low 32 bits of the lease: nobody else can guess them


# What is too old. The store searches with a read first, so that a search among a million rows never holds up the writer.


class OldJobs(msgspec.Struct, frozen=True):
    """Finished jobs without a time of their own."""

    age_seconds: float


class OldPeriods(msgspec.Struct, frozen=True):
    """Finished jobs of this age, many at once, where the store can drop them so. `OldJobs` are all others."""

    age_seconds: float


class KeptJobs(msgspec.Struct, frozen=True):
    """Finished jobs whose own time is over."""


class FinishedJobs(msgspec.Struct, frozen=True):
    """A tenant's jobs of a kind whose own time, or else this age, was over at an instant."""

    tenant: str
    kind: str
    before: int
    age: int  # microseconds


class OldFiles(msgspec.Struct, frozen=True):
    """Files that belong to no job."""

    age_seconds: float


class OldDeliveries(msgspec.Struct, frozen=True):
    """Pending deliveries. They are not removed but given up: they stay as dead ones."""

    age_seconds: float


Old = OldJobs | OldPeriods | KeptJobs | FinishedJobs | OldFiles | OldDeliveries


class Writes(Protocol):
    def write(self, operation: Operation[A]) -> Awaitable[A]: ...


class OutboxStore(OutboxReads, Writes, Protocol):
    """What the outbox sees of a store."""

    async def now(self) -> int: ...


class FileStore(FileReads, Writes, Protocol):
    """What the files see of a store."""

    async def prune(self, old: Old, limit: int) -> int: ...


class RecordStore(RecordReads, Writes, Protocol):
    """What the records see of a store."""


class Store(JobReads, OutboxStore, FileStore, RecordStore, Protocol):
    async def check(self) -> None: ...
    async def ended(self) -> str: ...  # returns, with the reason, when the store can never serve again
    def listen(self, heard: Callable[[Hint], None]) -> None: ...
    def notify(
        self,
        queue: Queue | None = None,
        run_at: int = 0,
        job_id: str = "",
        endpoints: tuple[str, ...] = (),
        stream: str = "",
    ) -> None: ...
    async def close(self) -> None: ...
