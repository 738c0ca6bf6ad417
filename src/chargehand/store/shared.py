"""What both stores do alike: every read, and the one way to write."""

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, TypeVar, cast

import msgspec

from chargehand.engine.delivery import Delivery, DeliveryState, Endpoint, EndpointState, Outgoing, Subject, Try
from chargehand.engine.file import DropFiles, File
from chargehand.engine.flow import Edge, FlowStep, FlowSteps
from chargehand.engine.ids import first_id_at
from chargehand.engine.job import SECOND, Event, Job, QueueCount, QueueLimits, QueueSettings, Rate, State
from chargehand.engine.moves import Prune
from chargehand.engine.operation import Operation
from chargehand.engine.queue import Queue
from chargehand.engine.reads import (
    DeliveryFilter,
    DueQueue,
    EndpointFilter,
    FileFilter,
    JobFilter,
    Pulse,
    QueueHead,
    RecordFilter,
    StepFilter,
    TopicCount,
    Waiting,
)
from chargehand.engine.record import Record
from chargehand.engine.store import FinishedJobs, KeptJobs, Old, OldFiles, OldJobs, OldPeriods
from chargehand.store import limits
from chargehand.store.group import Group, GroupsByKind
from chargehand.store.operations import AnyOperation, GiveUp
from chargehand.store.queries import Query, columns, queue_from

A = TypeVar("A")

Row = Sequence[Any]

LAST_ID = "z"  # sorts behind every id
LAST_INSTANT = EVERY = 2**62
# An id has the time of the node that made it, `created_at` that of the store: so a range of ids is widened by this on both sides.
CLOCK_SKEW = 60 * SECOND
_LIKE = re.compile("[!%_]")

_JOB = len(Job.__struct_fields__) + 1  # columns: four for the queue, and payload and result are elsewhere
_DELIVERY = len(Delivery.__struct_fields__)
_DELIVERY_STATES = {str(state): state for state in DeliveryState}
_edges = msgspec.json.Decoder(tuple[Edge, ...])
_STATES = {str(state): state for state in State}


def job_from(row: Row, payload: bytes | None = b"", result: bytes | None = None) -> Job:
    values: list[Any] = [row[0], queue_from(row, 1), _STATES[row[5]], *row[6:_JOB], payload or b"", result]
    return Job(*values)


def settings_from(row: Row) -> QueueSettings:
    limits = QueueLimits(_rate(row[6], row[7]), row[8], _rate(row[9], row[10]))
    return QueueSettings(queue_from(row), bool(row[4]), row[5], limits)


def _rate(count: int | None, length: int | None) -> Rate | None:
    return None if count is None or length is None else Rate(count, length / SECOND)


def flow_step_from(row: Row) -> FlowStep:
    number, name, outcome, need, parents, result = row[_JOB:]
    return FlowStep(number, name, outcome, need, _edges.decode(parents), job_from(row, result=result))


def event_from(row: Row) -> Event:
    values: list[Any] = [*row[:5], _STATES[row[5]], *row[6:]]
    return Event(*values)


def delivery_from(row: Row) -> Delivery:
    values: list[Any] = [*row[:7], _DELIVERY_STATES[row[7]], *row[8:_DELIVERY]]
    return Delivery(*values)


def endpoint_from(row: Row) -> Endpoint:
    return Endpoint(row[0], row[1], row[2], EndpointState(row[3]), *row[4:])


def _count_from(queue: Queue, rows: Sequence[Row]) -> QueueCount:
    by_priority: dict[int, int] = {}
    for row in rows:
        if row[4]:
            by_priority[row[3]] = by_priority.get(row[3], 0) + int(row[4])
    oldest_at = min((row[7] for row in rows if row[7] is not None), default=None)
    return QueueCount(queue, by_priority, sum(int(row[5]) for row in rows), sum(int(row[6]) for row in rows), oldest_at)


def _pruning(old: Old) -> tuple[str, dict[str, Any], Callable[[tuple[str, ...]], Operation[int]]]:
    """Return the read that finds what is too old, and the operation that removes it."""
    if isinstance(old, KeptJobs):
        return "prunable_kept", {}, lambda ids: Prune(ids, 0)
    if isinstance(old, FinishedJobs):
        values = msgspec.structs.asdict(old)
        return "prunable_finished", values, lambda ids: Prune(ids, 0, (old.tenant, old.kind))
    age = int(old.age_seconds * SECOND)
    if isinstance(old, OldJobs):
        return "prunable_jobs", {"age": age}, lambda ids: Prune(ids, age)
    if isinstance(old, OldFiles):
        return "prunable_files", {"age": age}, DropFiles
    reason = f"gave up: not delivered within {old.age_seconds:.0f} s"
    return "overdue_deliveries", {"age": age}, lambda ids: GiveUp(ids, reason)


def _newest_of_tenant(by: JobFilter) -> dict[str, str | int]:
    if by.tenant is None:
        raise ValueError("a list of jobs is that of a tenant")
    first = max(by.first, "" if by.since is None else first_id_at(by.since - CLOCK_SKEW))
    before = min(by.before or LAST_ID, LAST_ID if by.until is None else first_id_at(by.until + CLOCK_SKEW))
    until = LAST_INSTANT if by.until is None else by.until
    return {"tenant": by.tenant, "first": first, "before": before, "since": by.since or 0, "until": until}


class SharedStore(ABC):
    """What both stores do alike, given a way to fetch rows and a group of writes.

    `_point` is for a row or a few by key; `_scan` for what may read many rows and must not hold anybody up.
    """

    _group: Group | GroupsByKind
    _queries: dict[str, Query]

    @abstractmethod
    async def _point(self, query_name: str, /, **values: Any) -> Sequence[Row]: ...

    @abstractmethod
    async def _scan(self, query_name: str, /, **values: Any) -> Sequence[Row]: ...

    @abstractmethod
    def _now(self) -> int | None:
        """None: the store's own clock."""

    # writing ----------------------------------------------------------------------------------------------------------

    def write(self, operation: Operation[A]) -> Awaitable[A]:
        return cast("Awaitable[A]", self._group.put(cast(AnyOperation, operation)))

    async def prune(self, old: Old, limit: int) -> int:
        """Find what is too old with a read, so that a search among a million rows never holds up the writer; then remove it."""
        if isinstance(old, OldPeriods):
            return 0  # all rows lie together, and go one by one
        query, values, operation = _pruning(old)
        rows = await self._scan(query, **values, limit=limit, now=self._now())
        return await self.write(operation(tuple(row[0] for row in rows))) if rows else 0

    # jobs -------------------------------------------------------------------------------------------------------------

    async def get_job(self, job_id: str, tenant: str | None = None, *, whole: bool = True) -> Job | None:
        if not whole:
            rows = await self._point("get_job_row", job_id=job_id, tenant=tenant)
            return job_from(rows[0]) if rows else None
        rows = await self._point("get_job", job_id=job_id, tenant=tenant)
        return job_from(rows[0], rows[0][-2], rows[0][-1]) if rows else None

    async def list_jobs(self, by: JobFilter) -> list[Job]:
        if by.key is not None or by.id is not None:
            rows = await self._point("find_jobs", tenant=by.tenant, kinds=by.kinds or (), key=by.key, id=by.id)
        elif by.late == "lease":
            rows = await self._scan("list_lapsed_jobs", limit=by.limit, owner_prefix=by.owner_prefix, now=self._now())
        elif by.live:
            values = {"kind": by.kind, "tenant": by.tenant, "queue": by.queue, "limit": by.limit}
            rows = await self._point("list_live_jobs", **values)
        elif by.late:
            rows = await self._scan("list_overdue_jobs", limit=by.limit, now=self._now())
        else:
            rows = await self._filtered_jobs(by)
        return [job_from(row) for row in rows]

    def _list_name(self, by: JobFilter) -> str:
        """Return the statement that says the state, if there is one: it reads the fewest other jobs."""
        if by.stopped or by.state in (State.FAILED, State.CANCELLED):
            return "list_stopped_jobs"
        of_state = f"list_{by.state}_jobs"
        return of_state if of_state in self._queries else "list_jobs"

    async def _filtered_jobs(self, by: JobFilter) -> Sequence[Row]:
        if by.last_of:
            return await self._scan(f"end_of_{self._list_name(by)}", **_newest_of_tenant(by), skip=by.last_of - 1)
        text = "%" + _LIKE.sub(r"!\g<0>", by.text) + "%" if by.text else None
        return await self._scan(
            self._list_name(by),
            **_newest_of_tenant(by),
            kind=by.kind,
            any_kind=by.kinds is None,
            kinds=by.kinds or (),
            queue=by.queue,
            state=None if by.state is None else str(by.state),
            any_topic=not by.topics,
            topics=by.topics,
            unnamed=not by.names,
            names=by.names,
            starts=by.starts,
            text=text,
            text_lower=text and text.lower(),
            limit=by.limit,
            searched=EVERY if by.searched is None else by.searched,
        )

    async def list_events(
        self, job_id: str, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]:
        """Return at least one event, if there is one, and more while those before have less than `max_bytes`."""
        if max_bytes is not None:
            sizes = [int(row[0]) for row in await self._point("event_sizes", job_id=job_id, after=after, limit=limit)]
            limit = bisect_left([0, *accumulate(sizes)], max_bytes, hi=len(sizes))
        return [event_from(row) for row in await self._point("list_events", job_id=job_id, after=after, limit=limit)]

    async def last_note(self, job_id: str, step: str) -> Event | None:
        rows = await self._point("last_note", job_id=job_id, step=step)
        return event_from(rows[0]) if rows else None

    async def list_steps(self, by: StepFilter) -> FlowSteps:
        if by.measured:
            rows = await self._point("lengths_of_results", job_id=by.flow_id, names=by.names)
            return FlowSteps([], {}, {row[0]: int(row[1]) for row in rows})
        if by.names is not None:
            rows = await self._point("list_named_steps", job_id=by.flow_id, names=by.names)
        else:
            rows = await self._scan("list_steps", job_id=by.flow_id, first=by.first, limit=by.limit)
        counts = await self._scan("count_steps_by_state", job_id=by.flow_id) if by.counted else ()
        return FlowSteps([flow_step_from(row) for row in rows], {(row[0], row[1]): int(row[2]) for row in counts}, {})

    async def count_stopped(self, topic: str) -> dict[Queue, int]:
        return {queue_from(row): int(row[4]) for row in await self._scan("count_stopped", topic=topic)}

    async def due_queues(self, queues: Sequence[Queue], bound: int) -> list[DueQueue]:
        rows = await self._scan("due_queues", queues=queues, bound=bound, now=self._now())
        return [DueQueue(queue_from(row), int(row[4]), row[5]) for row in rows]

    async def queue_heads(
        self, kind: str, bound: int, tenant: str | None = None, *, wide: bool = False
    ) -> list[QueueHead]:
        read = self._scan if wide else self._point
        rows = await read("queue_heads", kind=kind, tenant=tenant, bound=bound, now=self._now())
        return [QueueHead(queue_from(row), min(int(row[4]), bound), *row[5:]) for row in rows]

    async def pulse(self, queue: Queue, since: int, bound: int) -> Pulse:
        [row] = await self._scan("pulse", **columns(queue), since=since, bound=bound, now=self._now())
        ready, oldest_at, newest_at, delayed, next_at, paused, at = row
        return Pulse(min(int(ready), bound), oldest_at, newest_at, bool(delayed), next_at, bool(paused), int(at))

    async def count_queues(self) -> list[QueueCount]:
        rows = await self._scan("count_queues", now=self._now())
        return [_count_from(queue, list(of_it)) for queue, of_it in groupby(rows, lambda row: Queue(*row[:3]))]

    async def count_topics(self) -> list[TopicCount]:
        rows = await self._scan("count_topics")
        return [TopicCount(tenant, kind, topic, int(count)) for tenant, kind, topic, count in rows]

    async def list_queue_settings(self) -> list[QueueSettings]:
        return [settings_from(row) for row in await self._point("list_queue_settings")]

    async def waiting(self, job: Job, bound: int = 0) -> Waiting:
        rows = await self._scan("position", job_id=job.id, bound=bound) if bound else ()
        return Waiting(min(int(rows[0][0]), bound) if rows else None, await self._held_by(job))

    async def _held_by(self, job: Job) -> str:
        rows = await self._point("queue_settings", **columns(job.queue.shared))
        if not rows:
            return ""
        asking = limits.holding(settings_from(rows[0]), job.limit_key)
        try:
            name, values = next(asking)
            while True:
                name, values = asking.send(await self._point(name, **values, now=self._now()))
        except StopIteration as ended:
            return str(ended.value)

    async def outgoing(self, delivery_ids: Sequence[str]) -> list[Outgoing]:
        rows = await self._point("outgoing", ids=delivery_ids)
        job_end = _DELIVERY + _JOB
        return [
            Outgoing(
                delivery_from(row[:_DELIVERY]),
                job_from(row[_DELIVERY:job_end], result=row[job_end]),
                event_from(row[job_end + 1 :]),
            )
            for row in rows
        ]

    async def due_endpoints(self, limit: int) -> list[tuple[str, int]]:
        return [(row[0], row[1]) for row in await self._scan("due_endpoints", limit=limit)]

    async def list_tries(self, delivery_id: str) -> list[Try]:
        return [Try(*row) for row in await self._point("list_tries", delivery_id=delivery_id)]

    async def list_deliveries(self, by: DeliveryFilter) -> list[Delivery]:
        if by.id is not None:
            rows = await self._point("get_delivery", delivery_id=by.id, tenant=by.tenant)
            return [delivery_from(row) for row in rows]
        values: dict[str, Any] = {"tenant": by.tenant, "before": by.before, "limit": by.limit, "state": by.state}
        if by.job_id is not None:
            name, values["job_id"] = "list_deliveries_of_job", by.job_id
        elif by.state == DeliveryState.DEAD and by.endpoint_id is None:
            name, values["before"] = "newest_dead_deliveries", by.before or LAST_ID
        else:
            name = "dead_deliveries_of_endpoint" if by.state == DeliveryState.DEAD else "list_deliveries"
            values["endpoint_id"] = by.endpoint_id
        found = [delivery_from(row) for row in await self._scan(name, **values)]
        if by.job_id is not None and by.endpoint_id is not None:
            found = [each for each in found if each.endpoint_id == by.endpoint_id]
        return found

    async def subjects(self, job_ids: Mapping[str, str]) -> list[Subject]:
        rows = await self._point("subjects", ids=tuple(job_ids), job_ids=tuple(job_ids.values()))
        return [Subject(*row) for row in rows]

    async def list_endpoints(self, by: EndpointFilter) -> list[Endpoint]:
        if by.id is not None:
            rows = await self._scan("get_endpoint", endpoint_id=by.id, tenant=by.tenant)
        else:
            rows = await self._scan("list_endpoints", tenant=by.tenant, after=by.after, limit=by.limit)
        return [endpoint_from(row) for row in rows]

    # files and records ------------------------------------------------------------------------------------------------

    async def list_files(self, by: FileFilter) -> list[File]:
        if by.id is not None:
            rows = await self._point("get_file", file_id=by.id, tenant=by.tenant)
        elif by.job_id is not None:
            rows = await self._point("list_files_of_job", job_id=by.job_id, name=by.name)
        else:
            rows = await self._scan(
                "list_files", tenant=by.tenant, purpose=by.purpose, before=by.before, limit=by.limit
            )
        return [File(*row) for row in rows]

    async def list_records(self, by: RecordFilter) -> list[Record]:
        if by.due:
            rows = await self._scan("list_due_records", kind=by.kind, limit=by.limit, now=self._now())
        elif by.name is not None:
            rows = await self._point("get_record", kind=by.kind, tenant=by.tenant, name=by.name)
        elif by.tenant is not None:
            rows = await self._scan(
                "list_records_of_tenant", kind=by.kind, tenant=by.tenant, after=by.after, limit=by.limit
            )
        else:
            rows = await self._scan("list_records", kind=by.kind, limit=by.limit)
        return [Record(*row) for row in rows]

    async def blobs_in_use(self, sha256s: Sequence[str]) -> set[str]:
        return {row[0] for row in await self._scan("blobs_in_use", ids=sha256s)}
