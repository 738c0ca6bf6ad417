"""Everything that callers, workers and a receiver saw of a server, with its times.

Times are seconds since the epoch. `began` is when a request was sent and `ended` when its answer was there; what the server did for it,
it did in between.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

ENDS = frozenset({"COMPLETED", "FAILED"})


class Outcome(StrEnum):
    DONE = "done"
    REFUSED = "refused"  # nothing was changed
    UNKNOWN = "unknown"  # no answer, or one that does not say: it may have been carried out


class Call(NamedTuple):
    """Any request, for the waiting times."""

    what: str
    node: int
    outcome: Outcome
    began: float
    ended: float


class Created(NamedTuple):
    """The server acknowledged a job. `key` is the producer's: it is the same when a request is repeated."""

    key: str
    job_id: str
    began: float
    ended: float


class Granted(NamedTuple):
    """A worker got a job. `at` is when, by the database's clock, and `seconds` for how long."""

    job_id: str
    lease: int
    seconds: float
    at: float


class Renewed(NamedTuple):
    """A heartbeat was acknowledged: the lease lasts for `seconds` more."""

    job_id: str
    lease: int
    seconds: float
    began: float


class Returned(NamedTuple):
    """A worker gave a job back before its lease ended, or tried to."""

    job_id: str
    lease: int
    outcome: Outcome
    began: float


class Completed(NamedTuple):
    """A worker sent a result. What it sent names its lease, so that the result can be told from others."""

    job_id: str
    lease: int
    outcome: Outcome
    began: float
    ended: float


class Told(NamedTuple):
    """A webhook was received, and answered with 200."""

    webhook_id: str
    job_id: str
    sequence: int
    status: str
    lease: int | None  # that its result names
    at: float


class Read(NamedTuple):
    """A job as it was shown at the end; its status is empty if there is no such job."""

    job_id: str
    status: str
    lease: int | None  # that its result names


Entry = Call | Created | Granted | Renewed | Returned | Completed | Told | Read


@dataclass
class History:
    calls: list[Call] = field(default_factory=list)
    created: list[Created] = field(default_factory=list)
    granted: list[Granted] = field(default_factory=list)
    renewed: list[Renewed] = field(default_factory=list)
    returned: list[Returned] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)

    def add(self, *entries: Entry) -> None:
        for entry in entries:
            match entry:
                case Call():
                    self.calls.append(entry)
                case Created():
                    self.created.append(entry)
                case Granted():
                    self.granted.append(entry)
                case Renewed():
                    self.renewed.append(entry)
                case Returned():
                    self.returned.append(entry)
                case Completed():
                    self.completed.append(entry)
                case Told():
                    self.told.append(entry)
                case Read():
                    self.read.append(entry)

    def about(self, job_id: str) -> list[Entry]:
        """Return all that is known of a job, for whoever looks into an anomaly."""
        known: list[Entry] = [*self.created, *self.granted, *self.renewed, *self.returned]
        known += [*self.completed, *self.told, *self.read]
        return [entry for entry in known if not isinstance(entry, Call) and entry.job_id == job_id]

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> "History":
        history = cls()
        history.add(*entries)
        return history
