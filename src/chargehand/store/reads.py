"""The reading half of a store: the same for both databases, given a way to fetch rows."""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from chargehand.engine.delivery import (
    Delivery,
    DeliveryState,
    Endpoint,
    EndpointCount,
    EndpointState,
    Outgoing,
    Told,
    Try,
)
from chargehand.engine.file import File
from chargehand.engine.job import Event, Job, QueueCount, QueueSettings, State
from chargehand.engine.record import Record
from chargehand.engine.store import DeliveryFilter, DueQueue, JobFilter, Pulse, QueueHead, TopicCount

Row = Sequence[Any]

_JOB = len(Job.__struct_fields__) - 2
_DELIVERY = len(Delivery.__struct_fields__)
_DELIVERY_STATES = {str(state): state for state in DeliveryState}
_STATES = {str(state): state for state in State}


def job_from(row: Row, payload: bytes | None = b"", result: bytes | None = None) -> Job:
    values: list[Any] = [*row[:4], _STATES[row[4]], *row[5:_JOB], payload or b"", result]
    return Job(*values)


def event_from(row: Row) -> Event:
    values: list[Any] = [*row[:5], _STATES[row[5]], *row[6:]]
    return Event(*values)


def delivery_from(row: Row) -> Delivery:
    values: list[Any] = [*row[:7], _DELIVERY_STATES[row[7]], *row[8:_DELIVERY]]
    return Delivery(*values)


def endpoint_from(row: Row) -> Endpoint:
    return Endpoint(row[0], row[1], row[2], EndpointState(row[3]), *row[4:])


class Reads(ABC):
    """`_point` is for a row or a few by key; `_scan` for what may look at many and must not hold anybody up."""

    @abstractmethod
    async def _point(self, query_name: str, /, **values: Any) -> Sequence[Row]: ...

    @abstractmethod
    async def _scan(self, query_name: str, /, **values: Any) -> Sequence[Row]: ...

    @abstractmethod
    def _now(self) -> int | None:
        """None: the store's own clock."""

    async def get_job(self, job_id: str, tenant: str | None = None) -> Job | None:
        rows = await self._point("get_job", job_id=job_id, tenant=tenant)
        return job_from(rows[0], rows[0][-2], rows[0][-1]) if rows else None

    async def list_jobs(self, by: JobFilter) -> list[Job]:
        stopped = by.stopped or by.state in (State.FAILED, State.CANCELLED)
        rows = await self._scan(
            "list_stopped_jobs" if stopped else "list_jobs",
            tenant=by.tenant,
            kind=by.kind,
            any_kind=by.kinds is None,
            kinds=by.kinds or (),
            queue=by.queue,
            state=None if by.state is None else str(by.state),
            topic=by.topic,
            exact=by.exact,
            unnamed=not by.names,
            names=by.names,
            starts=by.starts,
            before=by.before,
            limit=by.limit,
        )
        return [job_from(row) for row in rows]

    async def jobs_of_key(self, tenant: str, kinds: Sequence[str], key: str) -> list[Job]:
        return [job_from(row) for row in await self._point("jobs_of_key", tenant=tenant, kinds=kinds, key=key)]

    async def state_of(self, job_id: str) -> State | None:
        rows = await self._point("state_of", job_id=job_id)
        return State(rows[0][0]) if rows else None

    async def holds(self, job_id: str, lease: int) -> bool:
        return bool(await self._point("holds", job_id=job_id, lease=lease))

    async def list_events(
        self, job_id: str, after: int = 0, limit: int = 1000, max_bytes: int | None = None
    ) -> list[Event]:
        """At least one, if there is one, and more while all before have less than `max_bytes`."""
        if max_bytes is not None:
            sizes = [int(row[0]) for row in await self._point("event_sizes", job_id=job_id, after=after, limit=limit)]
            limit = bisect_left([0, *accumulate(sizes)], max_bytes, hi=len(sizes))
        return [event_from(row) for row in await self._point("list_events", job_id=job_id, after=after, limit=limit)]

    async def last_note(self, job_id: str, step: str) -> Event | None:
        rows = await self._point("last_note", job_id=job_id, step=step)
        return event_from(rows[0]) if rows else None

    async def finished_jobs(self, tenant: str, kind: str, before: int, age: int, limit: int) -> list[str]:
        rows = await self._scan("finished_jobs", tenant=tenant, kind=kind, before=before, age=age, limit=limit)
        return [row[0] for row in rows]

    async def count_ready(self, queue: str) -> dict[int, int]:
        return {row[0]: int(row[1]) for row in await self._scan("count_ready", queue=queue, now=self._now())}

    async def count_stopped(self, tenant: str | None, topic: str) -> dict[str, int]:
        return {row[0]: int(row[1]) for row in await self._scan("count_stopped", tenant=tenant, topic=topic)}

    async def lapsed_jobs(self, limit: int, owner_prefix: str = "") -> list[Job]:
        rows = await self._scan("lapsed_jobs", limit=limit, owner_prefix=owner_prefix, now=self._now())
        return [job_from(row) for row in rows]

    async def overdue_jobs(self, limit: int) -> list[Job]:
        return [job_from(row) for row in await self._scan("overdue_jobs", limit=limit, now=self._now())]

    async def due_queues(self, queues: Sequence[str], bound: int) -> list[DueQueue]:
        rows = await self._scan("due_queues", queues=queues, bound=bound, now=self._now())
        return [DueQueue(queue, int(ready), next_at) for queue, ready, next_at in rows]

    async def queue_heads(self, prefix: str, bound: int, wide: bool = False) -> list[QueueHead]:
        read = self._scan if wide else self._point
        rows = await read("queue_heads", prefix=prefix, bound=bound, now=self._now())
        return [QueueHead(queue, min(int(ready), bound), *rest) for queue, ready, *rest in rows]

    async def pulse(self, queue: str, since: int, bound: int) -> Pulse:
        [row] = await self._scan("pulse", queue=queue, since=since, bound=bound, now=self._now())
        ready, oldest_at, newest_at, delayed, next_at, paused, at = row
        return Pulse(min(int(ready), bound), oldest_at, newest_at, bool(delayed), next_at, bool(paused), int(at))

    async def count_queues(self, prefix: str = "") -> list[QueueCount]:
        rows = await self._scan("count_queues", prefix=prefix, now=self._now())
        return [QueueCount(row[0], int(row[1]), int(row[2]), int(row[3]), row[4]) for row in rows]

    async def count_topics(self) -> list[TopicCount]:
        rows = await self._scan("count_topics")
        return [TopicCount(tenant, kind, topic, int(count)) for tenant, kind, topic, count in rows]

    async def list_queue_settings(self) -> list[QueueSettings]:
        rows = await self._point("list_queue_settings")
        return [QueueSettings(queue, bool(paused), max_running) for queue, paused, max_running in rows]

    async def position(self, job_id: str, bound: int) -> int | None:
        rows = await self._scan("position", job_id=job_id, bound=bound)
        return min(int(rows[0][0]), bound) if rows else None

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

    async def get_delivery(self, delivery_id: str, tenant: str | None = None) -> Delivery | None:
        rows = await self._point("get_delivery", delivery_id=delivery_id, tenant=tenant)
        return delivery_from(rows[0]) if rows else None

    async def list_tries(self, delivery_id: str) -> list[Try]:
        return [Try(*row) for row in await self._point("list_tries", delivery_id=delivery_id)]

    async def list_deliveries(self, by: DeliveryFilter) -> list[Delivery]:
        values: dict[str, Any] = {"tenant": by.tenant, "before": by.before, "limit": by.limit, "state": by.state}
        if by.job_id is not None:
            name, values["job_id"] = "list_deliveries_of_job", by.job_id
        else:
            name = "list_dead_deliveries" if by.state == DeliveryState.DEAD else "list_deliveries"
            values["endpoint_id"] = by.endpoint_id
        rows = [delivery_from(row) for row in await self._scan(name, **values)]
        if by.job_id is not None and by.endpoint_id is not None:
            rows = [row for row in rows if row.endpoint_id == by.endpoint_id]
        return rows

    async def told(self, delivery_ids: Sequence[str]) -> list[Told]:
        return [Told(*row) for row in await self._point("told", ids=delivery_ids)]

    async def get_endpoint(self, endpoint_id: str, tenant: str | None = None) -> Endpoint | None:
        rows = await self._point("get_endpoint", endpoint_id=endpoint_id, tenant=tenant)
        return endpoint_from(rows[0]) if rows else None

    async def list_endpoints(self, tenant: str | None, after: str, limit: int) -> list[Endpoint]:
        rows = await self._scan("list_endpoints", tenant=tenant, after=after, limit=limit)
        return [endpoint_from(row) for row in rows]

    async def count_endpoints(self, endpoint_ids: Sequence[str]) -> list[EndpointCount]:
        rows = await self._scan("count_endpoints", ids=endpoint_ids)
        return [EndpointCount(*row) for row in rows]

    async def get_file(self, file_id: str, tenant: str | None = None) -> File | None:
        rows = await self._point("get_file", file_id=file_id, tenant=tenant)
        return File(*rows[0]) if rows else None

    async def job_files(self, job_id: str) -> list[File]:
        return [File(*row) for row in await self._point("job_files", job_id=job_id)]

    async def job_file(self, job_id: str, name: str) -> File | None:
        rows = await self._point("job_file", job_id=job_id, name=name)
        return File(*rows[0]) if rows else None

    async def list_files(
        self, tenant: str, purpose: str | None = None, before: str | None = None, limit: int = 50
    ) -> list[File]:
        rows = await self._scan("list_files", tenant=tenant, purpose=purpose, before=before, limit=limit)
        return [File(*row) for row in rows]

    async def get_record(self, kind: str, tenant: str, name: str) -> Record | None:
        rows = await self._point("get_record", kind=kind, tenant=tenant, name=name)
        return Record(*rows[0]) if rows else None

    async def list_records(
        self, kind: str, tenant: str | None = None, after: str = "", limit: int = 1000
    ) -> list[Record]:
        if tenant is None:
            return [Record(*row) for row in await self._scan("list_records", kind=kind, limit=limit)]
        rows = await self._scan("list_records_of_tenant", kind=kind, tenant=tenant, after=after, limit=limit)
        return [Record(*row) for row in rows]

    async def due_records(self, kind: str, limit: int) -> list[Record]:
        return [Record(*row) for row in await self._scan("due_records", kind=kind, limit=limit, now=self._now())]

    async def blobs_in_use(self, sha256s: Sequence[str]) -> set[str]:
        return {row[0] for row in await self._scan("blobs_in_use", ids=sha256s)}
