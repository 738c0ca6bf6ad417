"""Helpers for tests of the store and of the engine: jobs, reports, and jobs in each state."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import apsw
import asyncpg

from chargehand.engine.delivery import Delivery, DeliveryState, Endpoint, Settle, Take, endpoint_id
from chargehand.engine.file import File
from chargehand.engine.guard import Guard
from chargehand.engine.ids import UlidMaker
from chargehand.engine.job import Event, Job, NewJob, Report, State
from chargehand.engine.moves import Change, Moved
from chargehand.engine.queue import Queue
from chargehand.engine.reads import DeliveryFilter, EndpointFilter, FileFilter
from chargehand.engine.store import Claim, Claimed, Store
from chargehand.store import Clock, open_store

TENANT = "acme"
URL = "https://receiver.example/hook"
KILL = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

new_id = UlidMaker()


def a_queue(name: str | Queue = "q", tenant: str = TENANT, kind: str = "job") -> Queue:
    return name if isinstance(name, Queue) else Queue(kind, tenant, name)


def a_job(queue: str | Queue = "q", tenant: str = TENANT, kind: str = "job", **fields: Any) -> NewJob:
    return NewJob(**{"id": new_id(), "queue": a_queue(queue, tenant, kind), "payload": b"{}", **fields})


def a_report(url: str = URL, *on: str, tenant: str = TENANT) -> Report:
    return Report(url, endpoint_id(tenant, url), on=on)


async def submit(store: Store, **fields: Any) -> str:
    submitted = await store.write(a_job(**fields))
    assert submitted.created
    return submitted.job_id


async def submit_many(store: Store, count: int, **fields: Any) -> list[str]:
    return [await submit(store, **fields) for _ in range(count)]


async def claim(
    store: Store, *queues: str | Queue, limit: int = 1, stage: str = "", lease_seconds: float = 60
) -> Claimed:
    return await store.write(
        Claim(tuple(a_queue(queue) for queue in queues or ("q",)), "worker", lease_seconds, limit, stage)
    )


async def claimed_ids(store: Store, *queues: str | Queue, limit: int = 1) -> list[str]:
    return [job.id for job in (await claim(store, *queues, limit=limit)).jobs]


async def take_one(store: Store, *queues: str | Queue, stage: str = "", lease_seconds: float = 60) -> Job:
    [job] = (await claim(store, *queues, stage=stage, lease_seconds=lease_seconds)).jobs
    return job


def seen(job_id: str, tenant: str = TENANT, kind: str = "job") -> Guard:
    """Return a guard for a move that does not require to hold the job."""
    return Guard(job_id, tenant, kind, None, None)


async def move(store: Store, job: Job, name: str, **fields: Any) -> Moved | None:
    """Make the move as the holder of the job, guarded by its lease only."""
    return await store.write(Change(Guard(job.id, job.tenant, job.kind, job.lease, None), name, **fields))


async def running(store: Store, **fields: Any) -> Job:
    """Return a new running job, claimed from a queue of its own."""
    job_id = new_id()
    job = a_job(**{"id": job_id, "queue": job_id, **fields})
    assert (await store.write(job)).created
    return await take_one(store, job.queue)


async def job_in(store: Store, state: State, **fields: Any) -> Job:
    if state is State.QUEUED:
        return await get(store, await submit(store, **{"queue": new_id(), **fields}))
    job = await running(store, **fields)
    way = {State.SUCCEEDED: "succeed", State.FAILED: "fail", State.CANCELLED: "cancel"}
    if state in way:
        assert await move(store, job, way[state])
    return await get(store, job.id)


async def get(store: Store, job_id: str) -> Job:
    job = await store.get_job(job_id)
    assert job is not None
    return job


async def trace(store: Store, job_id: str) -> tuple[Job | None, list[Event]]:
    """Return all that can be read of a job, to check that nothing changed."""
    return await store.get_job(job_id), await store.list_events(job_id)


def a_take(url: str = URL, limit: int = 10, lease_seconds: float = 30, tenant: str = TENANT) -> Take:
    return Take(endpoint_id(tenant, url), limit, lease_seconds)


def a_settle(delivery_id: str, lease: int, state: DeliveryState = DeliveryState.DELIVERED, **fields: Any) -> Settle:
    values: dict[str, Any] = {"retry_seconds": 0.0, "reason": "", "status": 200, "duration_seconds": 0.5, **fields}
    return Settle(delivery_id, lease, state, **{"error": "", "answer": "ok", **values})


# around the store -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened(url: str, clock: Clock | None = None, **options: int) -> AsyncIterator[Store]:
    store = await open_store(url, clock=clock, **options)
    try:
        yield store
    finally:
        await store.close()


async def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on the database, without the store."""
    if url.startswith("sqlite:"):
        with apsw.Connection(url.removeprefix("sqlite:///")) as connection:
            return connection.execute(statement).fetchall()
    other = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await other.fetch(statement)]
    finally:
        await other.close()


async def until_held_up(holder: "asyncpg.Connection[asyncpg.Record]", task: "asyncio.Task[Any]") -> None:
    """Wait until the task waits for a lock that this connection holds, or has ended without it."""
    waiting = "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    async with asyncio.timeout(5):
        while not task.done() and not await holder.fetchval(waiting):
            pass


async def get_file(store: Store, file_id: str, tenant: str | None = None) -> File | None:
    return next(iter(await store.list_files(FileFilter(tenant, file_id))), None)


async def get_delivery(store: Store, delivery_id: str, tenant: str | None = None) -> Delivery | None:
    return next(iter(await store.list_deliveries(DeliveryFilter(tenant, id=delivery_id))), None)


async def get_endpoint(store: Store, endpoint_id: str, tenant: str | None = None) -> Endpoint | None:
    return next(iter(await store.list_endpoints(EndpointFilter(tenant, id=endpoint_id))), None)
